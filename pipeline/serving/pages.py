"""Pages of a servable's table: their format, and the writing of a part.

A table is a sequence of part files, each a sequence of pages, all sorted by key. A page is always read as a whole, and
no row crosses a page boundary. The *fence* of a page is the top 32 bits of its first key; only fences are kept in RAM.
Keys that share their top 32 bits share a page, so the fences alone determine the only page that may contain a key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.page_rows import HEADER_BYTES
from pipeline.kernels.read_pages import WRONG_COUNT, WRONG_FENCE, set_page_tags
from pipeline.kernels.read_rows import PAGE_BYTES, WRONG_TAG
from pipeline.records import F32, I64, RESERVED, U32, U64, Array
from pipeline.storage.files import Files

U8 = NDArray[np.uint8]

MAX_PART_PAGES = 1 << 16
MAX_FLOAT16 = 65_504
PAGE_DAMAGE = {
    WRONG_TAG: "its tag is wrong", WRONG_COUNT: "it has no rows, or more than fit",
    WRONG_FENCE: "its first key is not that of its fence",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PageFormat:
    """Format of a table's pages; `kernels/page_rows.py` defines the byte layout. Unused bytes are zero."""

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
        """Smallest multiple of PAGE_BYTES such that rows fill at least 1 / 1.025 of a page."""
        num_bytes = PAGE_BYTES
        while 1025 * self._rows_in(num_bytes) * self.row_bytes < 1000 * num_bytes:
            num_bytes += PAGE_BYTES
        return num_bytes

    @property
    def max_rows(self) -> int:
        """Number of rows in a full page."""
        return self._rows_in(self.page_bytes)

    def _rows_in(self, page_bytes: int) -> int:
        return (page_bytes - HEADER_BYTES) // self.row_bytes


def part_file(folder: Path, number: int) -> Path:
    return folder / f"{number:04}"


def write_part(
    files: Files, folder: Path, number: int, format: PageFormat, keys_N: U64, weights_NC: F32
) -> tuple[str, U32]:
    """Write part `number` of a table and return its checksum and fences. A part file under its final name is complete
    and durable. Raises ValueError as `pack_part` does."""
    pages_MB, fences_M = pack_part(number, format, keys_N, weights_NC)
    return files.replace(part_file(folder, number), [pages_MB]), fences_M


def pack_part(number: int, format: PageFormat, keys_N: U64, weights_NC: F32) -> tuple[U8, U32]:
    """Return the pages [M, page_bytes] and the fences [M] of rows with these ascending keys.

    Keys that share their top 32 bits must be in one part. Raises ValueError if keys do not ascend, if too many keys
    share their top 32 bits, if the part has more than MAX_PART_PAGES pages, or if the precision cannot represent a
    weight.
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
    for array_MRV, values_NV in zip(_arrays(pages_MB, format), values, strict=True):
        array_MRV[page_N, row_N] = values_NV
    words_MW = pages_MB.view(np.uint32)
    words_MW[:, 1] = counts_M
    set_page_tags(words_MW, page_numbers(number, np.arange(len(pages_MB))))
    return pages_MB, words_MW[:, 3].copy()


def page_numbers(parts: int | I64, pages_M: I64) -> U32:
    """Number of each page in the whole table; its tag depends on it."""
    return (np.int64(parts) * MAX_PART_PAGES + pages_M).astype(np.uint32)


def _cut(keys_N: U64, format: PageFormat) -> I64:
    """First row of each page. A page ends early if its last keys share their top 32 bits with the next key."""
    prefixes_N = keys_N >> np.uint64(32)
    # Rows at which a page may start, and the end.
    begins = np.append(np.flatnonzero(np.diff(prefixes_N, prepend=~prefixes_N[:1])), len(keys_N))
    starts = [0]
    while starts[-1] < len(keys_N):
        end = int(begins[np.searchsorted(begins, starts[-1] + format.max_rows, side="right") - 1])
        if end == starts[-1]:
            shared = int(begins[np.searchsorted(begins, end, side="right")]) - end
            raise ValueError(
                f"{shared} keys share their top 32 bits ({int(prefixes_N[end]):#010x}) and so must share a page, which "
                f"holds at most {format.max_rows} rows; export in a precision with smaller rows"
            )
        starts.append(end)
    return np.array(starts[:-1], np.int64)


def _arrays(pages_MB: U8, format: PageFormat) -> Iterator[NDArray[Any]]:
    """Views [M, R, V] of the keys and of each array of weights."""
    at = HEADER_BYTES
    for dtype, width in [(np.uint64, 1), *format.columns]:
        end = at + format.max_rows * width * np.dtype(dtype).itemsize
        yield pages_MB[:, at:end].view(dtype).reshape(len(pages_MB), format.max_rows, width)
        at = end


def misplaced(pages_RB: U8, fences_R: U32, ends_R: U64, format: PageFormat) -> Iterator[tuple[int, str]]:
    """Yield the position and the fault of pages that have correct tags but wrong rows. `fences_R`: fence of each page;
    `ends_R`: fence of the next page, 2**32 for the last page."""
    keys_RNV, *weights = _arrays(pages_RB, format)
    keys_RN = keys_RNV[..., 0]
    free_RN = np.arange(format.max_rows) >= pages_RB.view(np.uint32)[:, 1:2]
    prefixes_RN = keys_RN >> np.uint64(32)
    strange_RN = ((prefixes_RN < fences_R[:, None]) | (prefixes_RN >= ends_R[:, None])) & ~free_RN
    falling_RN = (keys_RN[:, 1:] <= keys_RN[:, :-1]) & ~free_RN[:, 1:]
    rest_RB = pages_RB[:, HEADER_BYTES + format.max_rows * format.row_bytes :]
    filled_R = rest_RB.any(1) | ((keys_RN != 0) & free_RN).any(1)
    for array_RNV in weights:
        filled_R |= (array_RNV.view(np.uint8).any(2) & free_RN).any(1)
    for wrong_R, what in (
        (strange_RN.any(1), "it has a key of another page"), (falling_RN.any(1), "its keys do not ascend"),
        (filled_R, "what its rows leave free is not zero"),
    ):  # fmt: skip
        yield from ((number, what) for number in np.flatnonzero(wrong_R).tolist())


def _encode(keys_N: U64, weights_NC: F32, format: PageFormat) -> list[Array]:
    """Encoded values of each array of weights. Raises ValueError if a weight cannot be represented."""
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
    # A scale may underflow to 0, or be slightly too small.
    steps_ND = np.rint(embeddings_ND / np.where(scales_N1 > 0, scales_N1, np.float32(np.inf)))
    return [scales_N1, first_order_N1, np.clip(steps_ND, -127, 127).astype(np.int8)]
