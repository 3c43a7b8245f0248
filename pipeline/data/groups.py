"""Row groups: size prediction from metadata, and reading, one at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.data.decode import dictionary_keys
from pipeline.data.files import InputColumn, SchemaCheck, plain
from pipeline.data.identity import FileIdentity, file_difference, look_at, stamp_of
from pipeline.errors import FileChanged
from pipeline.files.find import DataFile
from pipeline.files.flat import FlatFile, open_file
from pipeline.files.stores import Stamp
from pipeline.files.types import has_no_values, is_list, kind_of
from pipeline.messages.uris import is_remote
from pipeline.records import U64

MAX_OPEN = 16
"""Maximum number of files kept open (with their parsed metadata)."""
WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 8, "FIXED_LEN_BYTE_ARRAY": 44}


@dataclass(frozen=True, slots=True)
class RowGroup:
    file: DataFile
    index: int
    num_rows: int
    num_list_values: int
    """Number of values in all list columns of the row group. An upper bound: a null or empty list counts as one."""
    read_bytes: int
    """Predicted memory in bytes while the row group is read and kept: its arrays, and one column chunk as stored in the
    file; all of its column chunks if the file is in a store, since these are fetched together."""

    def __str__(self) -> str:
        return f"{self.file}: row group {self.index}"

    def with_empty(self, num_columns: int) -> RowGroup:
        """The row group with `num_columns` more list columns, all null."""
        values = self.num_list_values + num_columns * self.num_rows
        return replace(self, num_list_values=values) if num_columns else self


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of one column of a row group, from row `begin`."""

    begin: int
    array: pa.Array
    dictionary: U64 | None
    """Keys of the array's dictionary; None if it has no dictionary."""


def list_groups(path: DataFile, check: SchemaCheck, name: str) -> tuple[FileIdentity, list[RowGroup], frozenset[str]]:
    """Check the file's columns, and return its identity (under `name`), its row groups, and the names of the columns
    without values. The file is closed again."""
    with open_file(path) as file:
        schema, metadata = file.schema_arrow, file.metadata
        check.check(path, schema, alone=False)
        identity = look_at(path, name, file, check.trained, check.targets)
        types = {c.name: schema.field(c.name).type for c in check.columns if c.name in schema.names}
        # A column that is both a category and the metrics group is read once.
        read = [schema.field(name) for name in file.inputs(types) if name in schema.names]
        kept = {c.name: c.max_length for c in check.columns if c.sequence}
        places = [(f.type, place, kept.get(f.name)) for f in read if (place := file.leaf(f.name)) is not None]
        empty = {c.name for c in check.columns if c.name not in types or has_no_values(types[c.name])}
        num_made = sum(file.leaf(name) is None for name in {c.name for c in check.columns})
        groups = [_describe(path, metadata, g, places, num_made) for g in range(metadata.num_row_groups)]
        return identity, groups, frozenset(empty)


def _describe(
    path: DataFile, metadata: pq.FileMetaData, group: int, places: list[tuple[pa.DataType, int, int | None]],
    num_made: int,
) -> RowGroup:  # fmt: skip
    """Row group of a file. `places`: type and column chunk of each column and, for a sequence, the number of values
    kept per list. `num_made`: number of columns without a column chunk."""
    row_group = metadata.row_group(group)
    in_lists, kept, in_file = 0, 0, [0]
    for kind, place, most in places:
        chunk = row_group.column(place)
        kept += chunk.num_values * WIDTHS.get(chunk.physical_type, 8) + row_group.num_rows // 8
        if chunk.physical_type == "BYTE_ARRAY":
            # The strings, and at most the same number of bytes for the keys of a dictionary.
            kept += 2 * chunk.total_uncompressed_size
        if is_list(kind):
            in_lists += min(chunk.num_values, row_group.num_rows * (most or chunk.num_values))
            kept += 4 * row_group.num_rows
        in_file.append(chunk.total_compressed_size + chunk.total_uncompressed_size)
        kept += chunk.total_compressed_size if is_remote(path.place) else 0
    kept += 8 * row_group.num_rows * num_made
    return RowGroup(path, group, row_group.num_rows, in_lists, kept + max(in_file))


class GroupReader:
    """Reader of row groups that keeps the last row group and a few open files. It compares a file's identity whenever
    it opens the file, and the file's stamp before each row group, or after it for an object in a store."""

    def __init__(self, check: SchemaCheck, identities: Mapping[DataFile, FileIdentity]) -> None:
        """`identities`: identity of each file, with the types of all used columns."""
        self._columns = list({column.name: column for column in check.columns}.values())
        self._check, self._identities = check, identities
        self._files: OrderedDict[DataFile, tuple[FlatFile, Stamp]] = OrderedDict()
        self._group: RowGroup | None = None
        """The row group that is kept in memory."""
        self._chunks: dict[str, list[Chunk]] = {}

    def read(self, group: RowGroup) -> dict[str, list[Chunk]]:
        """Chunks of each column of the row group. Raises ValueError, with file and row group, if the file is damaged,
        and FileChanged if it has changed."""
        if group != self._group:
            # Free the old row group before reading the new one: the read cap counts only one.
            self._group, self._chunks = None, {}
            try:
                self._chunks = self._read(group)
            except FileChanged as changed:
                changed.spans = [span for span, _ in self._identities[group.file].spans or ()]
                raise
            self._group = group
        return self._chunks

    def close(self) -> None:
        for file, _ in self._files.values():
            file.close()
        self._files.clear()
        self._group, self._chunks = None, {}

    def _read(self, group: RowGroup) -> dict[str, list[Chunk]]:
        file = self._open(group.file)
        try:
            table = file.read_row_group(group.index, columns=[c.name for c in self._columns], use_threads=False)
        finally:
            # If an object is replaced while its row group is fetched, the pieces are of both versions.
            if file.stored and (now := stamp_of(group.file)) != (was := file.stored.stamp):
                raise FileChanged(
                    f"{group.file} was changed during the run: its ETag was {was.version}, is {now.version}; restore "
                    "the original file"
                )
        kinds = self._check.kinds
        return {
            c.name: chunks_of(plain(table.column(c.name), c, kinds.get(c.name), str(group)), c) for c in self._columns
        }

    def _open(self, path: DataFile) -> FlatFile:
        """Raises FileChanged if the file has changed since the run began."""
        in_store = self._files[path][0].stored if path in self._files else None
        stamp = in_store.stamp if in_store else stamp_of(path)
        if path in self._files and self._files[path][1] != stamp:
            self._files.pop(path)[0].close()
        if path not in self._files:
            if len(self._files) >= MAX_OPEN:
                self._files.popitem(last=False)[1][0].close()
            with open_file(path) as file:
                was = self._identities[path]
                found = look_at(path, was.path, file, self._check.trained, self._check.targets)
                if said := file_difference(was, found, was.types, found.types):
                    raise FileChanged(f"{path} was changed during the run: {said}; restore the original file")
                texts = self._texts_with_dictionary(file)
            self._files[path] = open_file(path, stored=file.stored, read_dictionary=texts), stamp
        self._files.move_to_end(path)
        return self._files[path][0]

    def _texts_with_dictionary(self, file: FlatFile) -> list[str]:
        # If the file has a dictionary, only its strings are hashed. If not, having Arrow build one would cost more than
        # hashing every string.
        if file.metadata.num_row_groups == 0:
            return []
        kinds, used, schema = self._check.kinds, [c.name for c in self._columns], file.schema_arrow
        others = [name for name in file.inputs(used) if name not in used and name in schema.names]
        made_of = [name for name in others if kind_of(schema.field(name).type) == "text"]
        texts = [name for name in used if kinds.get(name, "").endswith("text")] + made_of
        places = [place for name in texts if (place := file.leaf(name)) is not None]
        chunks = [file.metadata.row_group(0).column(place) for place in places]
        return [c.path_in_schema for c in chunks if c.has_dictionary_page and c.physical_type == "BYTE_ARRAY"]


def chunks_of(column: pa.ChunkedArray, spec: InputColumn) -> list[Chunk]:
    """The chunks of a column, in order; computes the keys of each dictionary once."""
    begins = accumulate((len(array) for array in column.chunks), initial=0)
    return [
        Chunk(begin, array, dictionary_keys(array, spec)) for begin, array in zip(begins, column.chunks, strict=False)
    ]
