"""Pages of a servable's table: their format, writing a part, checking a part.

A table is a sequence of part files, each a sequence of pages, sorted by key throughout. A page is read whole and no row
crosses one. The *fence* of a page is the top 32 bits of its first key; fences are all that is kept in RAM. Keys that
share their top 32 bits share a page, so the fences alone say which page holds a key if any does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.page_rows import HEADER_BYTES
from pipeline.kernels.page_tag import WRONG_COUNT, WRONG_FENCE, check_pages, set_page_tags
from pipeline.kernels.read_rows import PAGE_BYTES, WRONG_TAG
from pipeline.kernels.tag import tag_factors
from pipeline.records import F32, I64, RESERVED, U32, U64, Array
from pipeline.storage.files import Files

U8 = NDArray[np.uint8]

MAX_PART_PAGES = 1 << 16
CHECKED_BYTES = 1 << 20
"""Bytes of a part that `check_part` holds in memory, at least one page."""
MAX_FLOAT16 = 65_504
PAGE_DAMAGE = {
    WRONG_TAG: "its tag is wrong", WRONG_COUNT: "it has no rows, or more than fit",
    WRONG_FENCE: "its first key is not that of its fence",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PageFormat:
    """Format of a table's pages; `kernels/page_rows.py` has the order of their bytes. What rows leave free is zero."""

    embedding_dim: int
    first_order: bool
    precision: Literal["float32", "float16", "int8"] = "float32"

    @property
    def num_weights(self) -> int:
        return self.embedding_dim + self.first_order

    @property
    def columns(self) -> list[tuple[type, int]]:
        """Type and width of each array of weights."""
        if self.precision == "int8":
            # Scale of the embedding, first-order weight, embedding.
            return [(np.float32, 1), (np.float32, int(self.first_order)), (np.int8, self.embedding_dim)]
        return [(np.float16 if self.precision == "float16" else np.float32, self.num_weights)]

    @property
    def row_bytes(self) -> int:
        return 8 + sum(np.dtype(dtype).itemsize * width for dtype, width in self.columns)

    @property
    def page_bytes(self) -> int:
        """Smallest multiple of PAGE_BYTES of which full rows take up at least 1 / 1.025."""
        num_bytes = PAGE_BYTES
        while 1025 * self._rows_in(num_bytes) * self.row_bytes < 1000 * num_bytes:
            num_bytes += PAGE_BYTES
        return num_bytes

    @property
    def max_rows(self) -> int:
        """Rows of a full page."""
        return self._rows_in(self.page_bytes)

    def _rows_in(self, page_bytes: int) -> int:
        return (page_bytes - HEADER_BYTES) // self.row_bytes


def part_file(folder: Path, number: int) -> Path:
    return folder / f"{number:04}"


def write_part(
    files: Files, folder: Path, number: int, format: PageFormat, keys_N: U64, weights_NC: F32
) -> tuple[str, U32]:
    """Write part `number` of a table and return its checksum and its fences. A part that has its name is whole and
    durable. Raises ValueError as `pack_part` does."""
    pages_MB, fences_M = pack_part(number, format, keys_N, weights_NC)
    return files.replace(part_file(folder, number), [pages_MB]), fences_M


def read_fences(path: Path, format: PageFormat) -> U32:
    """Fences of a part, from its file. Raises ValueError if that is no whole number of pages."""
    words_MW = np.fromfile(path, np.uint32).reshape(-1, format.page_bytes // 4)
    return words_MW[:, 3].copy()


def pack_part(number: int, format: PageFormat, keys_N: U64, weights_NC: F32) -> tuple[U8, U32]:
    """Return the pages [M, page_bytes] and the fences [M] of rows with these ascending keys.

    Keys that share their top 32 bits must be in one part. Raises ValueError if keys do not ascend, if too many of them
    share their top 32 bits, if the part has more than MAX_PART_PAGES pages, or if the precision cannot hold a weight.
    """
    out_of_order = np.flatnonzero(keys_N[1:] <= keys_N[:-1])
    if len(out_of_order) or RESERVED in keys_N[-1:]:
        at = int(out_of_order[0]) + 1 if len(out_of_order) else len(keys_N) - 1
        raise ValueError(f"key {keys_N[at]} (row {at} of part {number}) is reserved, or not above the key before it")
    starts_M = _cut(keys_N, format)
    if len(starts_M) > MAX_PART_PAGES:
        raise ValueError(
            f"part {number} has {len(keys_N):,} rows, which are {len(starts_M):,} pages; "
            f"cut the table into parts of at most {MAX_PART_PAGES:,} pages"
        )
    pages_MB = np.zeros((len(starts_M), format.page_bytes), np.uint8)
    counts_M = np.diff(starts_M, append=len(keys_N))
    page_N = np.repeat(np.arange(len(starts_M)), counts_M)
    row_N = np.arange(len(keys_N)) - starts_M[page_N]
    values = [keys_N[:, None], *_encode(keys_N, weights_NC, format)]
    for array_MRV, values_NV in zip(_arrays(pages_MB, format), values, strict=False):
        array_MRV[page_N, row_N] = values_NV
    words_MW = pages_MB.view(np.uint32)
    words_MW[:, 1] = counts_M
    set_page_tags(words_MW, page_numbers(number, np.arange(len(pages_MB))))
    return pages_MB, words_MW[:, 3].copy()


def page_numbers(parts: int | I64, pages_M: I64) -> U32:
    """Number of each page within all pages of a table, which its tag depends on."""
    return (np.int64(parts) * MAX_PART_PAGES + pages_M).astype(np.uint32)


def _cut(keys_N: U64, format: PageFormat) -> I64:
    """First row of each page. A page ends early if its last keys share their top 32 bits with the next key."""
    prefixes_N = keys_N >> np.uint64(32)
    # Rows at which a page may begin, and the end.
    begins = np.append(np.flatnonzero(np.diff(prefixes_N, prepend=~prefixes_N[:1])), len(keys_N))
    starts = [0]
    while starts[-1] < len(keys_N):
        end = int(begins[np.searchsorted(begins, starts[-1] + format.max_rows, side="right") - 1])
        if end == starts[-1]:
            shared = int(begins[np.searchsorted(begins, end, side="right")]) - end
            raise ValueError(
                f"{shared} keys share their top 32 bits ({int(prefixes_N[end]):#010x}) and so must share a page, which "
                f"has {format.max_rows} rows at most; export in a precision with smaller rows"
            )
        starts.append(end)
    return np.array(starts[:-1], np.int64)


def _arrays(pages_MB: U8, format: PageFormat) -> Iterator[NDArray[Any]]:
    """Views [M, R, V] of the keys and of each array of weights, and [M, 1, V] of the bytes behind them."""
    at = HEADER_BYTES
    for dtype, width in [(np.uint64, 1), *format.columns]:
        end = at + format.max_rows * width * np.dtype(dtype).itemsize
        yield pages_MB[:, at:end].view(dtype).reshape(len(pages_MB), format.max_rows, width)
        at = end
    yield pages_MB[:, None, at:]


def _encode(keys_N: U64, weights_NC: F32, format: PageFormat) -> list[Array]:
    """Values of each column. Raises ValueError if there are none for a weight."""
    largest = MAX_FLOAT16 if format.precision == "float16" else np.finfo(np.float32).max
    if len(refused := np.argwhere(~(np.abs(weights_NC) <= largest))):
        row, column = refused[0].tolist()
        value = weights_NC[row, column]
        change = f"above {MAX_FLOAT16:,}: float16 cannot hold it; export float32"
        if not np.isfinite(value):
            change = "not finite; export a commit from before the training diverged"
        raise ValueError(f"key {keys_N[row]}: weight {column} is {value}, {change}")
    if format.precision != "int8":
        return [weights_NC.astype(format.columns[0][0], copy=False)]
    embeddings_ND, first_order_N1 = np.split(weights_NC, [format.embedding_dim], axis=1)
    scales_N1 = np.abs(embeddings_ND).max(axis=1, keepdims=True, initial=0) / np.float32(127)
    # A scale may be 0 by underflow, or a little too small.
    steps_ND = np.rint(embeddings_ND / np.where(scales_N1 > 0, scales_N1, np.float32(np.inf)))
    return [scales_N1, first_order_N1, np.clip(steps_ND, -127, 127).astype(np.int8)]


def check_part(folder: Path, number: int, format: PageFormat, fences_M: U32, end: int = 1 << 32) -> Iterator[str]:
    """Check all of a part's file and yield what is wrong with it. `fences_M` are the part's, `end` is the fence that
    follows them."""
    path, page_bytes = part_file(folder, number), format.page_bytes
    bounds_M = np.append(fences_M.astype(np.int64), end)
    pages_RB = np.empty((max(1, CHECKED_BYTES // page_bytes), page_bytes), np.uint8)
    try:
        with open(path, "rb") as file:
            found, expected = os.fstat(file.fileno()).st_size, len(fences_M) * page_bytes
            if found != expected:
                yield f"{path}: has {found:,} bytes instead of {expected:,}"
            for first in range(0, min(found // page_bytes, len(fences_M)), len(pages_RB)):
                got = file.readinto(pages_RB.data) // page_bytes
                bounds_R = bounds_M[first : first + got + 1]
                for r, what in _faults(pages_RB[: len(bounds_R) - 1], number, first, bounds_R, format):
                    yield f"{path}: page {first + r} (at offset {(first + r) * page_bytes}) is damaged: {what}"
    except OSError as error:
        yield f"{path}: cannot be read: {error.strerror or error}"


def _faults(pages_RB: U8, part: int, first: int, bounds_R: I64, format: PageFormat) -> Iterator[tuple[int, str]]:
    """Yield each damaged page, counted from page `first` of the part, and the first thing that is wrong with it.
    `bounds_R` [R + 1] are the pages' fences and the one that follows."""
    words_RW, reasons_R = pages_RB.view(np.uint32), np.empty(len(pages_RB), np.int32)
    numbers_R, odd_W = page_numbers(part, first + np.arange(len(pages_RB))), tag_factors(words_RW.shape[1])
    check_pages(words_RW, numbers_R, bounds_R[:-1].astype(np.uint32), format.max_rows, odd_W, reasons_R)
    keys_RN1, *weights, rest_R1V = _arrays(pages_RB, format)
    keys_RN, free_RN = keys_RN1[:, :, 0], np.arange(format.max_rows) >= words_RW[:, 1:2]
    last_R = np.where(free_RN, 0, keys_RN).max(axis=1)
    filled_RN = np.any([array.any(axis=2) for array in (keys_RN1, *weights)], axis=0) & free_RN
    faults = {what: reasons_R == why for why, what in PAGE_DAMAGE.items()} | {
        "its keys do not ascend": ((keys_RN[:, 1:] <= keys_RN[:, :-1]) & ~free_RN[:, 1:]).any(axis=1),
        "it has a key of a later page": (last_R >> np.uint64(32)).astype(np.int64) >= bounds_R[1:],
        "it has the reserved key": last_R == RESERVED,
        "bytes that no row has are not zero": filled_RN.any(axis=1) | rest_R1V.any(axis=(1, 2)),
    }
    wrong_FR = np.array([*faults.values()])
    for r in np.flatnonzero(wrong_FR.any(axis=0)).tolist():
        yield r, [*faults][wrong_FR[:, r].argmax()]
