"""Columns that the folders of a path name: `day=2026-11-24/site=3/part-0.parquet` has the columns day and site, like
others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.files.find import DataFile

TEXT = pa.dictionary(pa.int32(), pa.string())


def column_of(file: DataFile, name: str, num_rows: int) -> pa.Array:
    """[num_rows] values of a column that the file's path names."""
    value = dict(file.partitions)[name]
    found = pa.int64() if name in file.whole else TEXT
    if value is None:
        return pa.nulls(num_rows, found)
    if name in file.whole:
        return pa.repeat(pa.scalar(int(value), found), num_rows)
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), num_rows), pa.array([value]))


def check_equal(file: DataFile, name: str, values: pa.ChunkedArray | pa.Array) -> None:
    """Raises ValueError if a column that the file has too holds another value than its path names."""
    value, known = dict(file.partitions)[name], values.drop_null()
    same = value is None and not len(known)
    with suppress(pa.ArrowException):
        if value is not None and len(known) == len(values):
            plain = known.cast(known.type.value_type) if pa.types.is_dictionary(known.type) else known
            same = bool(pc.all(pc.equal(plain, pa.scalar(value).cast(plain.type)), min_count=0).as_py())
    if not same:
        other = next((one for one in values.unique().to_pylist() if str(one) != value), None)
        raise ValueError(
            f"{file}: column {name!r} has {other!r}, and the path says {value!r}; leave the column out of the file, or "
            "move the file to the folder of its values"
        )


def with_columns(table: pa.Table, files: Sequence[DataFile], file_of: Any) -> pa.Table:
    """Add the columns of the paths to rows of several files. `file_of`: [N] number of the file of each row."""
    for name in dict.fromkeys(name for file in files for name, _ in file.partitions):
        if name not in table.schema.names and all(name in dict(file.partitions) for file in files):
            values = pa.chunked_array([column_of(file, name, 1) for file in files]).unify_dictionaries()
            table = table.append_column(name, values.combine_chunks().take(pa.array(file_of)))
    return table


class PartitionedFile:
    """A Parquet file that also has the columns of its path, with the methods of `pyarrow.parquet.ParquetFile`."""

    def __init__(self, file: DataFile, opened: pq.ParquetFile) -> None:
        self._file, self._opened = file, opened
        stored = opened.schema_arrow
        fields = (pa.field(name, column_of(file, name, 0).type) for name, _ in file.partitions)
        self._added = [field for field in fields if field.name not in stored.names]
        self.schema_arrow: pa.Schema = pa.schema([*stored, *self._added], stored.metadata)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def __enter__(self) -> PartitionedFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()

    def read_row_group(self, number: int, columns: Sequence[str], **options: Any) -> pa.Table:
        return self.read_row_groups([number], columns, **options)

    def read_row_groups(self, numbers: Sequence[int], columns: Sequence[str], **options: Any) -> pa.Table:
        return self._whole(self._opened.read_row_groups(numbers, columns=self._stored(columns), **options), columns)

    def iter_batches(self, batch_size: int, columns: Sequence[str], **options: Any) -> Iterator[pa.RecordBatch]:
        for batch in self._opened.iter_batches(batch_size, columns=self._stored(columns), **options):
            yield self._whole(batch, columns)

    def _stored(self, columns: Sequence[str]) -> list[str]:
        added = {field.name for field in self._added}
        return [name for name in columns if name not in added]

    def _whole(self, rows: Any, columns: Sequence[str]) -> Any:
        for name, _ in self._file.partitions:
            if name in rows.schema.names:
                check_equal(self._file, name, rows.column(name))
        for field in self._added:
            if field.name in columns:
                rows = rows.append_column(field, column_of(self._file, field.name, rows.num_rows))
        return rows
