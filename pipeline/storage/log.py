"""The disk tier: an append-only log of rows, stored as a Zarr v3 group that any Zarr reader can open.

The group has the arrays `rows` [tail, W] uint32 and `keys` [tail] uint64, uncompressed, little-endian, in chunks of R
rows with flat file names. A table of several shards is a group of such groups, one per shard. A chunk file contains the
raw rows, so the hot path computes (file, offset) directly. Each file is written once, as a whole, and never modified.
If there are several versions of a row, the last one written is valid. Padding has the reserved key. Chunks that no
commit needs are deleted; a Zarr reader sees padding in their place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from pipeline.kernels.tag import set_tags
from pipeline.records import I32, I64, RESERVED, U32, U64
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.files import Damaged, Files, checksum, refuse_links
from pipeline.storage.layout import RowLayout, row_keys
from pipeline.storage.reader import Reader, WrongTag
from pipeline.storage.shards import ONE_SHARD, Shards, shard_folder

HELP = "the row is not used; `pipeline verify RUN` says what else is wrong, and --repair goes back"


CHUNK_NAME = re.compile(r"c\.[0-9]+(\.0)?")
"""Names of chunk files, of both rows and keys."""


def rows_file(path: Path, chunk: int, num_shards: int = 1) -> Path:
    """Path of the file with the rows of a chunk of the table at `path`."""
    return shard_folder(path, chunk % num_shards, num_shards) / "rows" / f"c.{chunk // num_shards}.0"


def keys_file(path: Path, chunk: int, num_shards: int = 1) -> Path:
    return shard_folder(path, chunk % num_shards, num_shards) / "keys" / f"c.{chunk // num_shards}"


def folders_of(path: Path, shards: Shards) -> list[Path]:
    """Folders of the owned shards of the table at `path`, parents first. The last two folders of each shard contain its
    chunk files."""
    own = [shard_folder(path, shard, shards.num) for shard in shards.owned]
    return list(dict.fromkeys([path, *(folder for shard in own for folder in (shard, shard / "rows", shard / "keys"))]))


@dataclass(frozen=True, slots=True)
class TableFormat:
    """Division of a table into rows, chunks of rows, and shards of chunks."""

    layout: RowLayout
    chunk_rows: int
    shards: Shards = ONE_SHARD


def metadata(table: TableFormat, tails: Sequence[int]) -> dict[str, bytes]:
    """Content of the metadata files for Zarr readers, by path within the table. Shard s has `tails[s]` rows. Covers the
    owned shards; for the owner of shard 0 also the whole table, so that only one process writes its metadata."""
    row, shards = table.layout.describe(), table.shards
    if shards.num == 1:
        return _group({"row": row}, table, tails[0])
    content = _group({"row": row, "num_shards": shards.num}) if 0 in shards.owned else {}
    for shard in shards.owned:
        attributes = {"row": row, "shard": shard, "num_shards": shards.num}
        folder = shard_folder(Path(), shard, shards.num)
        described = _group(attributes, table, tails[shard])
        content |= {str(folder / name): value for name, value in described.items()}
    return content


def _group(attributes: dict[str, Any], table: TableFormat | None = None, tail: int = 0) -> dict[str, bytes]:
    """Metadata of a group and, if `table` is given, of a log's arrays."""
    content: dict[str, zarr.core.buffer.Buffer] = {}
    store = zarr.storage.MemoryStore(content)
    group = zarr.open_group(store, mode="w", zarr_format=3, attributes=attributes)
    if table:
        _add_arrays(group, table.layout.num_words, table.chunk_rows, tail)
    return {name: buffer.to_bytes() for name, buffer in content.items()}


def _add_arrays(group: zarr.Group, words: int, chunk_rows: int, tail: int) -> None:
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


def write_metadata(path: Path, table: TableFormat, tails: Sequence[int], files: Files) -> None:
    """Write the metadata that gives Zarr readers the number of rows of each owned shard: `tails[s]` in shard s."""
    for name, content in metadata(table, tails).items():
        file = path / name
        if not file.exists() or file.read_bytes() != content:
            files.replace(file, [content])


def gather_reference(path: Path, at_U: I64) -> U32:
    """Plain reference of `Log.gather` that uses only Zarr: the rows that any Zarr reader sees after `describe`."""
    return np.asarray(zarr.open_array(path / "rows", mode="r").oindex[at_U], np.uint32)


class Log:
    """The log's chunk files. There is one writer (`write_back`, or a commit after the pipeline is drained) and one
    reader (`prefetch`). A row is read only after its file was written."""

    def __init__(
        self,
        path: Path,
        table: TableFormat,
        speed: DiskSpeed,
        files: Files,
        checksums: dict[int, tuple[str, str]] | None = None,
        direct: bool = False,
    ) -> None:
        """Open the owned shards of the table at `path`, which contain the chunks in `checksums`. Without `checksums`,
        create empty shards. Raises ValueError if one of their folders is a symbolic link."""
        folders = folders_of(path, table.shards)
        refuse_links(folders)
        self._folders = [folder for folder in folders if folder.name in ("rows", "keys")]
        """Folders that contain chunk files."""
        self.path, self.table = path, table
        self.layout, self.chunk_rows, self.shards = table.layout, table.chunk_rows, table.shards
        self.checksums = checksums or {}
        """Checksums of each existing chunk: (file of rows, file of keys)."""
        self.written_bytes = 0
        self._files = files
        self._reader = Reader(self._rows_file, self.layout.num_words, self.chunk_rows, speed, direct)
        if checksums is None:
            for folder in folders:
                files.make_folder(folder)
            self.describe([0] * self.shards.num)

    def _rows_file(self, chunk: int) -> Path:
        return rows_file(self.path, chunk, self.shards.num)

    def _keys_file(self, chunk: int) -> Path:
        return keys_file(self.path, chunk, self.shards.num)

    @property
    def chunk_bytes(self) -> int:
        return self.chunk_rows * (self.layout.num_bytes + 8)

    def gather(self, at_U: I32 | I64, out_UW: U32) -> None:
        """Read the rows at log positions `at_U`.

        Raises OSError, with file and offset, if a row cannot be read, and Damaged, with the row, if its tag is wrong.
        """
        try:
            self._reader.gather(at_U, out_UW)
        except WrongTag as wrong:
            at = wrong.position
            raise Damaged(f"{self.where(at)}: the row of key {self._key(at)} has a wrong tag; {HELP}") from None

    def where(self, at: int) -> str:
        chunk, row = divmod(at, self.chunk_rows)
        return f"{self._rows_file(chunk)}, offset {row * self.layout.num_bytes}"

    def _key(self, at: int) -> str:
        """Key at a position according to the file of keys, if that file is intact."""
        try:
            return f"{self.keys(at // self.chunk_rows)[at % self.chunk_rows]:#018x}"
        except OSError:
            return "unknown (the column of keys is also damaged)"

    def keys(self, chunk: int) -> U64:
        """[R] keys of a chunk, `RESERVED` for padding. Raises Damaged if the file has changed since it was written."""
        file = self._keys_file(chunk)
        content = file.read_bytes()
        if len(content) != 8 * self.chunk_rows or checksum(content) != self.checksums[chunk][1]:
            raise Damaged(f"{file}: its checksum is not that of the {8 * self.chunk_rows} bytes written; {HELP}")
        return np.frombuffer(content, np.uint64)

    def scatter(self, at_U: I32 | I64, rows_UW: U32) -> None:
        """Append rows at positions that `Chunks.add` allocated: chunk by chunk, each from its first row. Pads the last
        chunk. Sets the rows' tags in the caller's array."""
        starts = range(0, len(at_U), self.chunk_rows)
        for at_R in (at_U[first : first + self.chunk_rows] for first in starts):
            assert at_R[0] % self.chunk_rows == 0
            assert at_R[-1] - at_R[0] == len(at_R) - 1
        set_tags(rows_UW)
        for first in starts:
            self._write_chunk(int(at_U[first]) // self.chunk_rows, rows_UW[first : first + self.chunk_rows])

    def _write_chunk(self, chunk: int, rows_RW: U32) -> None:
        padding = self.chunk_rows - len(rows_RW)
        fill_RW = np.full((padding, self.layout.num_words), 2**32 - 1, np.uint32)
        self.checksums[chunk] = (
            self._files.write(self._rows_file(chunk), [np.ascontiguousarray(rows_RW), fill_RW]),
            self._files.write(self._keys_file(chunk), [row_keys(rows_RW), np.full(padding, RESERVED)]),
        )
        self.written_bytes += self.chunk_bytes

    def sync(self) -> None:
        """Make the names of all chunk files durable. Their contents are already durable when written."""
        for folder in self._folders:
            self._files.sync_folder(folder)

    def describe(self, tails: Sequence[int]) -> None:
        write_metadata(self.path, self.table, tails, self._files)

    def remove(self, chunks: Iterable[int]) -> None:
        """Delete the files of chunks that no kept commit refers to."""
        chunks = list(chunks)
        self._reader.forget(chunks)
        for chunk in chunks:
            del self.checksums[chunk]
            for file in (self._rows_file(chunk), self._keys_file(chunk)):
                # A missing file counts as deleted: no kept commit refers to it.
                with suppress(FileNotFoundError):
                    self._files.remove(file)

    def close(self) -> None:
        self._reader.close()
