"""The disk tier: an append-only log of rows, as a Zarr v3 group that any Zarr reader opens.

`rows` [tail, W] uint32 and `keys` [tail] uint64, uncompressed, little-endian, in chunks of R rows with flat file names.
A chunk file is the raw rows, so the hot path computes (file, offset) itself. Each is written once, whole, and never
changed; what is written later wins. Padding carries the reserved key.
"""

from __future__ import annotations

import os
import resource
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from pipeline.kernels.read_rows import read_rows
from pipeline.records import I32, I64, RESERVED, U32
from pipeline.storage.layout import RowLayout, row_keys

NUM_READERS = 64
MAX_GAP = 2 << 10
"""Bytes between two rows up to which one read is taken for both. Measured, 80,000 rows scattered over 900 MB, cold:
160,000 rows/s with 64 readers, 110,000 with 16 readers and gaps of 8 KiB; warm 2.3 million."""
SPAN_BYTES = 256 << 10


class Log:
    """One writer (`write_back`), one reader (`prefetch`); a row is read only after the file with it was written."""

    def __init__(self, path: Path, layout: RowLayout, chunk_rows: int) -> None:
        """Create an empty log at `path`, which must not exist."""
        self.path = path
        self.chunk_rows = chunk_rows
        self.num_words = layout.num_words
        self._group: Any = zarr.open_group(path, mode="w-", zarr_format=3, attributes={"row": layout.describe()})
        for name, shape, chunks, fill in (
            ("rows", (0, self.num_words), (chunk_rows, self.num_words), 2**32 - 1),
            ("keys", (0,), (chunk_rows,), int(RESERVED)),
        ):
            self._group.create_array(
                name,
                shape=shape,
                chunks=chunks,
                dtype=f"uint{32 if name == 'rows' else 64}",
                fill_value=fill,
                compressors=None,
                filters=None,
                chunk_key_encoding={"name": "default", "separator": "."},
            )
        self._files: OrderedDict[int, int] = OrderedDict()
        self._max_files = max(64, min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))
        self._readers = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="log")
        self._scratch = threading.local()

    def file(self, chunk: int) -> Path:
        return self.path / "rows" / f"c.{chunk}.0"

    def gather(self, at_U: I32 | I64, out_UW: U32) -> None:
        """Read the rows at log positions `at_U`; an OSError names the file and offset that could not be read."""
        order = np.argsort(at_U, kind="stable")
        sorted_N = at_U[order].astype(np.int64)
        chunks_N = sorted_N // self.chunk_rows
        firsts = np.flatnonzero(np.diff(chunks_N, prepend=-1))
        # Never more files at once than may be open.
        for first in range(0, len(firsts), self._max_files):
            past = firsts[first + self._max_files] if first + self._max_files < len(firsts) else len(at_U)
            part = slice(firsts[first], past)
            self._read(sorted_N[part], chunks_N[part], order[part], out_UW)

    def _read(self, at_N: I64, chunks_N: I64, to_N: I64, out_UW: U32) -> None:
        wanted, which = np.unique(chunks_N, return_inverse=True)
        files_N = np.array([self._open(int(chunk)) for chunk in wanted], np.int32)[which]
        offsets_N = (at_N % self.chunk_rows) * (4 * self.num_words)
        num_parts = min(NUM_READERS, 1 + len(at_N) // 64)
        bounds = np.linspace(0, len(at_N), num_parts + 1).astype(int)
        parts = [slice(a, b) for a, b in pairwise(bounds)]
        read = [self._readers.submit(self._read_part, files_N[p], offsets_N[p], to_N[p], out_UW) for p in parts]
        failed = [(p.start + f.result()) for p, f in zip(parts, read, strict=True) if f.result() >= 0]
        if failed:
            file = self.file(int(chunks_N[failed[0]]))
            raise OSError(
                f"{file}: could not read {4 * self.num_words} bytes at offset {offsets_N[failed[0]]} "
                f"(the file has {file.stat().st_size}); the log is damaged"
            )

    def _read_part(self, files_N: I32, offsets_N: I64, to_N: I64, out_UW: U32) -> int:
        if not hasattr(self._scratch, "span"):
            self._scratch.span = np.empty(SPAN_BYTES, np.uint8)
        return int(read_rows(files_N, offsets_N, to_N, out_UW, self._scratch.span, MAX_GAP))

    def _open(self, chunk: int) -> int:
        """A descriptor of the chunk's file, from the bounded set that is kept open."""
        descriptor = self._files.pop(chunk, None)
        if descriptor is None:
            if len(self._files) >= self._max_files:
                os.close(self._files.popitem(last=False)[1])
            descriptor = os.open(self.file(chunk), os.O_RDONLY)
        self._files[chunk] = descriptor
        return descriptor

    def scatter(self, at_U: I32 | I64, rows_UW: U32) -> None:
        """Append rows at consecutive positions, the first of them the first of a chunk; pads the last chunk."""
        assert len(at_U) == 0 or (at_U[0] % self.chunk_rows == 0 and at_U[-1] - at_U[0] == len(at_U) - 1)
        for first in range(0, len(at_U), self.chunk_rows):
            self._write_chunk(int(at_U[first]) // self.chunk_rows, rows_UW[first : first + self.chunk_rows])

    def _write_chunk(self, chunk: int, rows_RW: U32) -> None:
        padding = self.chunk_rows - len(rows_RW)
        _write_file(self.file(chunk), [rows_RW, np.full((padding, self.num_words), 2**32 - 1, np.uint32)])
        _write_file(self.path / "keys" / f"c.{chunk}", [row_keys(rows_RW), np.full(padding, RESERVED)])

    def seal(self, tail: int) -> None:
        """Tell Zarr how many rows there are."""
        self._group["rows"].resize((tail, self.num_words))
        self._group["keys"].resize((tail,))

    def close(self) -> None:
        self._readers.shutdown()
        while self._files:
            os.close(self._files.popitem()[1])


def _write_file(path: Path, arrays: list[np.ndarray]) -> None:
    """Write a file that does not exist yet."""
    with open(path, "xb", buffering=0) as file:
        for array in arrays:
            left = np.ascontiguousarray(array).view(np.uint8).reshape(-1).data
            while left:
                left = left[file.write(left) :]
