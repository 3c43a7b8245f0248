"""The disk tier: an append-only log of rows, as a Zarr v3 group that any Zarr reader opens.

`rows` [tail, W] uint32 and `keys` [tail] uint64, uncompressed, little-endian, in chunks of R rows with flat file names.
A chunk file is the raw rows, so the hot path computes (file, offset) itself. Each is written once, whole, and never
changed; what is written later wins. Padding carries the reserved key. Chunks that no commit needs any more are deleted:
a Zarr reader finds padding there.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import zarr

from pipeline.kernels.tag import set_tags
from pipeline.records import I32, I64, RESERVED, U32, U64
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.files import Damaged, Files, checksum
from pipeline.storage.layout import RowLayout, row_keys
from pipeline.storage.reader import Reader, WrongTag

HELP = "the row is not used; `python -m pipeline.verify RUN_DIR` says what else is wrong, and --repair goes back"


def rows_file(path: Path, chunk: int) -> Path:
    return path / "rows" / f"c.{chunk}.0"


def keys_file(path: Path, chunk: int) -> Path:
    return path / "keys" / f"c.{chunk}"


def metadata(layout: RowLayout, chunk_rows: int, tail: int) -> dict[str, bytes]:
    """The files, named relative to the group, that tell a Zarr reader what is there: `tail` rows."""
    content: dict[str, zarr.core.buffer.Buffer] = {}
    store = zarr.storage.MemoryStore(content)
    group = zarr.open_group(store, mode="w", zarr_format=3, attributes={"row": layout.describe()})
    words = layout.num_words
    for name, shape, chunks, fill in (
        ("rows", (tail, words), (chunk_rows, words), 2**32 - 1),
        ("keys", (tail,), (chunk_rows,), int(RESERVED)),
    ):
        group.create_array(
            name,
            shape=shape,
            chunks=chunks,
            dtype=f"uint{32 if name == 'rows' else 64}",
            fill_value=fill,
            compressors=None,
            filters=None,
            chunk_key_encoding={"name": "default", "separator": "."},
        )
    return {name: buffer.to_bytes() for name, buffer in content.items()}


def describe(path: Path, layout: RowLayout, chunk_rows: int, tail: int, files: Files) -> None:
    """Tell Zarr readers that the log at `path` has `tail` rows."""
    for name, content in metadata(layout, chunk_rows, tail).items():
        file = path / name
        if not file.exists() or file.read_bytes() != content:
            files.replace(file, [content])


def gather_reference(path: Path, at_U: I64) -> U32:
    """The plain twin of `Log.gather`, through Zarr alone: what any of its readers sees of a log that was described."""
    return np.asarray(zarr.open_array(path / "rows", mode="r").oindex[at_U], np.uint32)


class Log:
    """One writer (`write_back`, and commits once the pipeline is drained), one reader (`prefetch`); a row is read only
    after the file with it was written."""

    def __init__(
        self,
        path: Path,
        layout: RowLayout,
        chunk_rows: int,
        speed: DiskSpeed,
        files: Files,
        checksums: dict[int, tuple[str, str]] | None = None,
        direct: bool = False,
    ) -> None:
        """Open the log at `path`, which holds the chunks named in `checksums`; without them, make an empty one."""
        self.path = path
        self.chunk_rows = chunk_rows
        self.layout = layout
        self.checksums = checksums or {}
        """Of the files of rows and of keys of each chunk that there is."""
        self.written_bytes = 0
        self._files = files
        self._reader = Reader(lambda chunk: rows_file(path, chunk), layout.num_words, chunk_rows, speed, direct)
        if checksums is None:
            for folder in (path, path / "rows", path / "keys"):
                files.make_folder(folder)
            self.describe(0)

    @property
    def chunk_bytes(self) -> int:
        return self.chunk_rows * (self.layout.num_bytes + 8)

    def gather(self, at_U: I32 | I64, out_UW: U32) -> None:
        """Read the rows at log positions `at_U`.

        An OSError names the file and offset that could not be read; Damaged names the row whose tag is wrong.
        """
        try:
            self._reader.gather(at_U, out_UW)
        except WrongTag as wrong:
            at = wrong.position
            raise Damaged(f"{self.where(at)}: the row of key {self._key(at)} has a wrong tag; {HELP}") from None

    def where(self, at: int) -> str:
        chunk, row = divmod(at, self.chunk_rows)
        return f"{rows_file(self.path, chunk)}, offset {row * self.layout.num_bytes}"

    def _key(self, at: int) -> str:
        """What the column of keys says, if it can be trusted."""
        try:
            return f"{self.keys(at // self.chunk_rows)[at % self.chunk_rows]:#018x}"
        except OSError:
            return "unknown (the column of keys is damaged, too)"

    def keys(self, chunk: int) -> U64:
        """[R] the keys of a chunk, `RESERVED` for padding. Damaged if the file is not what was written."""
        file = keys_file(self.path, chunk)
        content = file.read_bytes()
        if len(content) != 8 * self.chunk_rows or checksum(content) != self.checksums[chunk][1]:
            raise Damaged(f"{file}: its checksum is not that of the {8 * self.chunk_rows} bytes written; {HELP}")
        return np.frombuffer(content, np.uint64)

    def scatter(self, at_U: I32 | I64, rows_UW: U32) -> None:
        """Append rows at consecutive positions, the first of them the first of a chunk; pads the last chunk. Gives the
        rows their tags, in the caller's array."""
        assert len(at_U) == 0 or (at_U[0] % self.chunk_rows == 0 and at_U[-1] - at_U[0] == len(at_U) - 1)
        set_tags(rows_UW)
        for first in range(0, len(at_U), self.chunk_rows):
            self._write_chunk(int(at_U[first]) // self.chunk_rows, rows_UW[first : first + self.chunk_rows])

    def _write_chunk(self, chunk: int, rows_RW: U32) -> None:
        padding = self.chunk_rows - len(rows_RW)
        fill_RW = np.full((padding, self.layout.num_words), 2**32 - 1, np.uint32)
        self.checksums[chunk] = (
            self._files.write(rows_file(self.path, chunk), [np.ascontiguousarray(rows_RW), fill_RW]),
            self._files.write(keys_file(self.path, chunk), [row_keys(rows_RW), np.full(padding, RESERVED)]),
        )
        self.written_bytes += self.chunk_bytes

    def sync(self) -> None:
        """Make the names of all chunks durable; their contents are as soon as they are written."""
        for folder in ("rows", "keys"):
            self._files.sync_folder(self.path / folder)

    def describe(self, tail: int) -> None:
        describe(self.path, self.layout, self.chunk_rows, tail, self._files)

    def remove(self, chunks: Iterable[int]) -> None:
        """Delete chunks that no kept commit refers to."""
        chunks = list(chunks)
        self._reader.forget(chunks)
        for chunk in chunks:
            del self.checksums[chunk]
            for file in (rows_file(self.path, chunk), keys_file(self.path, chunk)):
                self._files.remove(file)

    def close(self) -> None:
        self._reader.close()
