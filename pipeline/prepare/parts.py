"""A part of the output: one Parquet file per split with rows of the part, then a record that marks the part as done.

A part with a record is never made again; files of a part without a record are ignored. Each file is complete and
durable before it gets its final name, so remaking a part after a crash yields the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.prepare.layout import PART, named
from pipeline.prepare.values import value_type
from pipeline.settings import SPLITS, Strict
from pipeline.storage.durable import has_checksum, read_sealed, replacing, size_of, write_sealed
from pipeline.storage.files import checksum, checksum_of

ROW_GROUP = 1 << 16
"""Rows per row group. `Source`, with shuffling, reads 2.0 M rows of Criteo's layout per second and core, and 2.3 M with
groups of 128 K rows. But then the default shuffle window would hold a single group, and neighbours in the log would
remain neighbours."""
OPTIONS: dict[str, Any] = {
    # lz4 reads as fast as uncompressed data at 0.7 of the size (90 bytes per row); snappy and zstd read at 0.83 and
    # 0.87 of its speed.
    "compression": "lz4",
    "write_statistics": False,
    # Beyond this limit Parquet abandons a dictionary midway, and readers must hash every string.
    "dictionary_pagesize_limit": 1 << 30,
    # Writing a whole row group at once takes 4 % less time than the default batches of 1,024 values.
    "write_batch_size": ROW_GROUP,
}

ValueSpan = tuple[int | float | str, int | float | str]


def part_name(file: int, number: int) -> str:
    return f"part-{file:04}-{number:05}"


class OutputFile(Strict):
    """A Parquet file of the output."""

    split: str
    name: str
    rows: int
    positives: dict[str, int]
    """Number of positive rows, by label."""
    bytes: int
    checksum: str
    span: ValueSpan | None = None
    """Least and greatest value of the column of a split by time."""

    def is_there(self, out: Path) -> bool:
        """True if the file exists with its size and checksum."""
        return self.has_size(out) and has_checksum(out / self.name, self.checksum)

    def has_size(self, out: Path) -> bool:
        return size_of(out / self.name) == self.bytes


class Record(Strict, allow_inf_nan=True):
    """Record that part `number` of source `file` is done, with its counts and files."""

    file: int
    number: int
    lines: int
    skipped: int
    last: bool
    """True if the source has no later part."""
    numbers: dict[str, tuple[int | float, int | float]]
    """Minimum and maximum of each column of numbers that has values; infinite if all of them are NaN."""
    files: tuple[OutputFile, ...] = ()
    end: int = 0
    """Bytes of the source read up to this part's end, if it is read as a stream."""
    outside: int = 0
    """Number of rows that a split by time marks as OUTSIDE."""

    @property
    def name(self) -> str:
        return part_name(self.file, self.number)


class Records:
    """Folder of the parts' records."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def write(self, record: Record) -> None:
        write_sealed(self.path(record.name), record)

    def names(self) -> set[str]:
        """Names of the finished parts."""
        return {path.stem for path in named(self._folder, rf"{PART}\.json")}

    def read(self, name: str) -> Record:
        """Read the record of a part. Raises ValueError if it is damaged or belongs to another part."""
        record = read_sealed(self.path(name), Record)
        places = [(file.split, file.name) for file in record.files]
        ours = [(split, f"{split}/{name}.parquet") for split in SPLITS]
        if record.name != name or places != [place for place in ours if place in places]:
            raise ValueError(
                f"{self.path(name)} is the record of another part; remove it, and the same command makes it again"
            )
        return record

    def __iter__(self) -> Iterator[Record]:
        """Iterate over the records, ordered by source and part, with one in memory at any time."""
        return map(self.read, sorted(self.names(), key=lambda name: [int(part) for part in name.split("-")[1:]]))


class Made:
    """Container of the numbers of a source's finished parts. Records are looked up on demand."""

    def __init__(self, records: Records, file: int) -> None:
        self._records, self._file = records, file

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self._records.path(part_name(self._file, number)).exists()


class Done(Strict):
    """Record that files that do not belong to a single part were made."""

    of: str
    """Sources that they were made of."""
    files: dict[str, str]
    """Checksum of each file, by its name."""

    @classmethod
    def write(cls, path: Path, of: str, *files: Path) -> None:
        write_sealed(path, cls(of=of, files={file.name: checksum_of(file) for file in files}))

    @classmethod
    def is_true(cls, path: Path, of: str, *files: Path) -> bool:
        """True if a record says that these files were made from `of`, and they are unchanged since."""
        try:
            done = read_sealed(path, cls)
        except (ValueError, OSError):
            return False
        return done.of == of and all(has_checksum(file, done.files.get(file.name, "")) for file in files)


def in_row_groups(rows: pa.Table) -> list[pa.Table]:
    """Rows in groups of `ROW_GROUP`. Strings are dictionary-encoded per group: Parquet would write, and readers would
    hash, unused dictionary values as well."""
    return [_encoded(rows.slice(at, ROW_GROUP)) for at in range(0, rows.num_rows, ROW_GROUP)]


def _encoded(rows: pa.Table) -> pa.Table:
    columns = (c.dictionary_encode() if c.type in (pa.string(), pa.binary()) else c for c in rows.columns)
    return pa.table([column.combine_chunks() for column in columns], rows.column_names)


def write_splits(
    out: Path, name: str, table: pa.Table, split_N: NDArray[np.int8], labels: Sequence[str],
    times: pa.ChunkedArray | None = None,
) -> tuple[OutputFile, ...]:  # fmt: skip
    """Write the part's Parquet files durably, one per split with rows of the part. `times`: column of a split by time,
    as read."""
    written = []
    for place, split in enumerate(SPLITS):
        of_split = pa.array(split_N == place)
        rows = table.filter(of_split)
        if not rows.num_rows:
            continue
        content = parquet_bytes(in_row_groups(rows))
        path = Path(split) / f"{name}.parquet"
        with replacing(out / path) as file:
            file.write(content)
        written.append(
            OutputFile(
                split=split,
                name=str(path),
                rows=rows.num_rows,
                positives={label: pc.sum(rows.column(label)).as_py() for label in labels},
                bytes=content.size,
                checksum=checksum(content),
                span=None if times is None else span_of(times.filter(of_split)),
            )
        )
    return tuple(written)


def parquet_bytes(groups: Sequence[pa.Table]) -> pa.Buffer:
    """Parquet file of these row groups. Its bytes depend only on the groups' values."""
    sink, schema = pa.BufferOutputStream(), groups[0].schema
    dictionaries = [field.name for field in schema if pa.types.is_dictionary(field.type)]
    with pq.ParquetWriter(sink, schema, use_dictionary=dictionaries, **OPTIONS) as writer:
        for group in groups:
            writer.write_table(group, row_group_size=len(group))
    return sink.getvalue()


def limits(table: pa.Table, names: Sequence[str]) -> dict[str, tuple[int | float, int | float]]:
    """Minimum and maximum of each column that has values."""
    found = {name: pc.min_max(table.column(name)).as_py() for name in names}
    # Unary plus converts a boolean to 0 or 1.
    return {name: (+both["min"], +both["max"]) for name, both in found.items() if both["min"] is not None}


def span_of(column: pa.ChunkedArray) -> ValueSpan | None:
    """Minimum and maximum of a column as JSON values; None if it has no values, or they are infinite."""
    values = column.cast(value_type(column.type))
    if pa.types.is_timestamp(values.type) and values.type.tz:
        values = values.cast(pa.timestamp(values.type.unit, "UTC"))
    ends = pc.min_max(values)
    both = {
        name: end.cast(pa.string()).as_py() if pa.types.is_temporal(end.type) else end.as_py()
        for name, end in ends.items()
    }
    least, greatest = (
        value.decode(errors="backslashreplace") if isinstance(value, bytes) else value for value in both.values()
    )
    if least is None or any(isinstance(value, float) and not math.isfinite(value) for value in (least, greatest)):
        return None
    return least, greatest


def joined_span(spans: Iterable[ValueSpan | None]) -> ValueSpan | None:
    """Smallest range that covers these ranges; None if there are none."""
    found: list[Any] = [span for span in spans if span is not None]
    return (min(least for least, _ in found), max(greatest for _, greatest in found)) if found else None
