"""The one form of UUIDs, whatever program wrote them: lower-case text with hyphens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.files.buffers import texts

NUM_BYTES, LENGTH = 16, 36
"""Size of a UUID in bytes, and length of its text."""
GROUPS = ((0, 8), (9, 13), (14, 18), (19, 23), (24, 36))
"""Begin and end of each group of digits in the text."""
PAIRS = np.frombuffer(bytes(range(256)).hex().encode(), np.uint16)
"""The two hexadecimal digits of each byte."""
HYPHEN, LOWER = np.uint8(ord("-")), np.uint8(0x20)
"""LOWER: bit that makes a letter lower-case, and that digits and hyphens have."""
BLOCK = 1 << 14
"""Number of texts examined at a time, which limits the memory that this takes."""
U8 = NDArray[np.uint8]


def texts_of(array: pa.Array) -> pa.Array:
    """Texts of UUIDs stored as 16 bytes."""
    values = np.frombuffer(array.buffers()[1] or b"", np.uint8)[NUM_BYTES * array.offset :][: NUM_BYTES * len(array)]
    digits_NC = PAIRS[values].view(np.uint8).reshape(-1, 2 * NUM_BYTES)
    text_NC = np.full((len(array), LENGTH), HYPHEN)
    for hyphens, (begin, end) in enumerate(GROUPS):
        text_NC[:, begin:end] = digits_NC[:, begin - hyphens : end - hyphens]
    ends, content = (pa.py_buffer(one) for one in (LENGTH * np.arange(len(array) + 1), text_NC.reshape(-1)))
    found = pa.Array.from_buffers(pa.large_string(), len(array), [None, ends, content])
    return pc.if_else(array.is_valid(), found, pa.scalar(None, found.type)) if array.null_count else found


def in_lower_case(array: pa.Array) -> pa.Array:
    """The same texts, or lists or a dictionary of them, with UUIDs in lower case; the array itself if they all are."""
    found, buffers, nulls = array.type, array.buffers(), array.null_count
    if pa.types.is_dictionary(found):
        values = in_lower_case(before := array.dictionary)
        return (
            array if values is before else pa.DictionaryArray.from_arrays(array.indices, values, ordered=found.ordered)
        )
    if pa.types.is_list(found) or pa.types.is_large_list(found):
        values = in_lower_case(before := array.values)
        if values is before:
            return array
        return pa.Array.from_buffers(found, len(array), buffers[:2], nulls, array.offset, [values])
    if buffers[2] is None or buffers[2].size < LENGTH:
        return array
    bytes_B, ends_N = texts(array)
    starts_M, lower_B = ends_N[:-1][np.diff(ends_N) == LENGTH], None
    for begin in range(0, len(starts_M), BLOCK):
        starts = starts_M[begin : begin + BLOCK]
        text_MC = _windows(bytes_B)[starts].view(np.uint8).reshape(-1, LENGTH)
        # Most UUIDs are in lower case, and this is the cheapest test.
        if (text_MC - np.uint8(ord("A")) < 6).any() and (is_uuid_M := _are_uuids(text_MC)).any():
            lower_B = bytes_B.copy() if lower_B is None else lower_B
            _windows(lower_B)[starts[is_uuid_M]] = (text_MC[is_uuid_M] | LOWER).view(f"V{LENGTH}")[:, 0]
    if lower_B is None:
        return array
    return pa.Array.from_buffers(found, len(array), [*buffers[:2], pa.py_buffer(lower_B)], nulls, array.offset)


def _windows(bytes_B: U8) -> NDArray[Any]:
    """The text of a UUID's length that starts at each byte, without a copy."""
    return np.ndarray(len(bytes_B) - LENGTH + 1, f"V{LENGTH}", bytes_B, strides=1)


def _are_uuids(text_MC: U8) -> NDArray[np.bool_]:
    has_hyphens_M: NDArray[np.bool_] = (text_MC[:, [end for _, end in GROUPS[:-1]]] == HYPHEN).all(axis=1)
    is_digit_MC = (text_MC - np.uint8(ord("0")) < 10) | ((text_MC | LOWER) - np.uint8(ord("a")) < 6)
    return has_hyphens_M & (is_digit_MC.sum(axis=1, dtype=np.uint8) == 2 * NUM_BYTES)
