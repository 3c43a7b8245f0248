"""Splitting of concatenated texts, each prefixed with its length in 4 bytes, little-endian."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels import cpu
from pipeline.records import I32

U8 = NDArray[np.uint8]


def split_texts_reference(data: bytes, count: int) -> list[bytes]:
    texts = []
    for _ in range(count):
        length = int.from_bytes(data[:4], "little")
        texts.append(data[4 : 4 + length])
        data = data[4 + length :]
    return texts


@cpu
def split_texts(data: U8, out_offsets: I32, out: U8) -> int:
    """Copy the texts of `data` to `out`, without their lengths, and write their offsets [n + 1].

    Returns -1 if `data` holds exactly n texts. Otherwise returns the first text that is incomplete, or n if more bytes
    follow. `out` has the size of `data` minus 4 bytes per text.
    """
    num_texts = out_offsets.size - 1
    read, write = 0, 0
    out_offsets[0] = 0
    for n in range(num_texts):
        if read + 4 > data.size:
            return n
        length = 0
        for i in range(4):
            length |= int(data[read + i]) << 8 * i
        read += 4
        # A text that exceeds the space left in `out` leaves too few bytes for the texts after it.
        if length > min(data.size - read, out.size - write):
            return n
        for i in range(length):
            out[write + i] = data[read + i]
        read += length
        write += length
        out_offsets[n + 1] = write
    return -1 if read == data.size else num_texts
