"""The one form of UUIDs, whatever program wrote them: lower-case text with hyphens."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.files.buffers import texts

NUM_BYTES, LENGTH = 16, 36
"""Size of a UUID in bytes, and length of its text."""
GROUPS = ((0, 8), (9, 13), (14, 18), (19, 23), (24, 36))
"""Begin and end of each group of digits in the text."""
PATTERN = "^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"
PAIRS = np.frombuffer(bytes(range(256)).hex().encode(), np.uint16)
"""The two hexadecimal digits of each byte."""


def texts_of(array: pa.Array) -> pa.Array:
    """Texts of UUIDs stored as 16 bytes."""
    values = np.frombuffer(array.buffers()[1] or b"", np.uint8)[NUM_BYTES * array.offset :][: NUM_BYTES * len(array)]
    digits_NC = PAIRS[values].view(np.uint8).reshape(-1, 2 * NUM_BYTES)
    text_NC = np.full((len(array), LENGTH), ord("-"), np.uint8)
    for hyphens, (begin, end) in enumerate(GROUPS):
        text_NC[:, begin:end] = digits_NC[:, begin - hyphens : end - hyphens]
    ends, content = (pa.py_buffer(one) for one in (LENGTH * np.arange(len(array) + 1), text_NC.reshape(-1)))
    found = pa.Array.from_buffers(pa.large_string(), len(array), [None, ends, content])
    return pc.if_else(array.is_valid(), found, pa.scalar(None, found.type)) if array.null_count else found


def in_lower_case(array: pa.Array) -> pa.Array:
    """The same texts, or lists or a dictionary of them, with UUIDs in lower case."""
    found, buffers = array.type, array.buffers()
    if pa.types.is_dictionary(found):
        values = in_lower_case(array.dictionary)
        return pa.DictionaryArray.from_arrays(array.indices, values, ordered=found.ordered, safe=False)
    if pa.types.is_list(found) or pa.types.is_large_list(found):
        values = in_lower_case(array.values)
        return pa.Array.from_buffers(found, len(array), buffers[:2], array.null_count, array.offset, [values])
    if buffers[2] is None or buffers[2].size < LENGTH:
        return array
    # Most texts are not as long as UUIDs, most UUIDs are in lower case, and these tests take least time.
    bytes_B, ends_N = texts(array)
    if not (np.diff(ends_N) == LENGTH).any() or not (bytes_B[ends_N[0] : ends_N[-1]] - np.uint8(ord("A")) < 6).any():
        return array
    # Bytes need not be UTF-8, which none of these functions needs.
    text = array.view({pa.binary(): pa.string(), pa.large_binary(): pa.large_string()}.get(found, found))
    return pc.if_else(pc.match_substring_regex(array, PATTERN), pc.ascii_lower(text), text).view(found)
