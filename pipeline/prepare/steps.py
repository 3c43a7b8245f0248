"""The work of a preparation, piece by piece: a task reads the parts of a piece and, for each, writes the output files,
then the record. Parts of an unfinished output that are still valid stay; the others are made again.

A part is made again if its files or its record are not as written. A corrected command also remakes a part if its
source has changed, or if it skipped more lines than are now allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Event

import numpy as np
import pyarrow as pa

from pipeline.prepare.formats import Format
from pipeline.prepare.layout import KEPT, PART, WRITE, named
from pipeline.prepare.lines import may_skip
from pipeline.prepare.parts import Made, Record, Records, limits, part_name, write_splits
from pipeline.prepare.read import SourcePart, parts
from pipeline.prepare.schema import micros_of
from pipeline.prepare.splits import I8, OUTSIDE, TRAIN, ByTime, Split
from pipeline.prepare.stretches import Piece
from pipeline.settings import SPLITS
from pipeline.storage.files import Files


@dataclass(frozen=True)
class Job:
    """Inputs common to all tasks."""

    out: Path
    format: Format
    split: Split
    skip_bad: float | None
    """See `may_skip`."""
    stop: Event = field(default_factory=Event, compare=False)
    """Set to make tasks stop after the current part."""

    @property
    def kept(self) -> Path:
        return self.out / KEPT

    @property
    def records(self) -> Records:
        return Records(self.kept / WRITE)

    def of_role(self, role: str) -> list[str]:
        """Names of the columns with this role, in the order of the format."""
        return [field.name for field in self.format.fields if field.role == role]


def do_piece(job: Job, piece: Piece) -> None:
    """Make the unfinished parts of the piece. Other threads may process other pieces concurrently."""
    records = job.records
    made = Made(records, piece.file)
    try:
        if job.stop.is_set():
            return
        for part in parts(piece, job.format, job.skip_bad, made):
            if part.number not in made:
                split_N = job.split.of(part.file, part.number, piece.path, part.table)
                part.table = part.table.select(job.format.schema.names)
                records.write(_write(job, part, split_N))
            # Free its memory for the next part.
            del part
            if job.stop.is_set():
                return
    except BaseException:
        # Otherwise, concurrent tasks might continue for hours if a source is read as a stream.
        job.stop.set()
        raise


def _write(job: Job, part: SourcePart, split_N: I8) -> Record:
    """Write the output files of a part; return its record."""
    times = _times(part.table, job.split) if isinstance(job.split, ByTime) else None
    name, outside_N = part_name(part.file, part.number), split_N == OUTSIDE
    split_N = np.where(outside_N, np.int8(TRAIN), split_N)
    return Record(
        file=part.file,
        number=part.number,
        lines=part.num_lines,
        skipped=part.num_skipped,
        last=part.last,
        numbers=limits(part.table, job.of_role("number")),
        files=write_splits(job.out, name, part.table, split_N, job.of_role("label"), times),
        end=part.end,
        outside=int(outside_N.sum()),
    )


def _times(table: pa.Table, split: ByTime) -> pa.ChunkedArray:
    """Column of a split by time, as read; texts in a form other than ISO 8601 are converted to it, so that their order
    is that of time."""
    times = table.column(split.column)
    if split.form in ("", "iso"):
        return times
    moments = micros_of(times, split.form).cast(pa.timestamp("us"))
    return pa.chunked_array([moments.cast(pa.timestamp("s"), safe=False).cast(pa.string())])


def unfinished(pieces: Sequence[Piece], records: Records) -> list[Piece]:
    """Pieces with at least one part without a record."""
    ends = {first: second.number for first, second in pairwise(pieces) if first.file == second.file}
    return [piece for piece in pieces if not _is_finished(piece, ends.get(piece), records)]


def _is_finished(piece: Piece, end: int | None, records: Records) -> bool:
    """True if all parts of a piece have records. `end`: number after its last part; None for a file's last piece, which
    ends with the part marked as last in its record."""
    number, made = piece.number, Made(records, piece.file)
    while number in made:
        if end is None and records.read(part_name(piece.file, number)).last:
            return True
        number += 1
        if number == end:
            return True
    return False


def check_parts_are_those(job: Job, pieces: Sequence[Piece]) -> None:
    """Raises ValueError if a record does not belong to a part of the sources."""
    file, number, last = 0, 0, False
    for record in job.records:
        if last:
            file, number = file + 1, 0
        path = job.records.path(record.name)
        if (record.file, record.number) != (file, number) or file > pieces[-1].file:
            raise ValueError(f"{path} is the record of a part that the sources do not have; remove it")
        number, last = number + 1, record.last


def remove_damaged_parts(job: Job, names: Iterable[str]) -> None:
    """Remove the records of parts that are not as written."""
    _remove_records(job, partial(_is_as_written, job), names)


def remove_other_parts(job: Job, changed: Set[int]) -> int:
    """Remove the parts of `changed` sources, and the parts of other sources with more bad lines than may now be
    skipped. Return the number of removed parts."""

    def holds(record: Record) -> bool:
        return record.file not in changed and record.skipped <= may_skip(job.skip_bad, record.lines)

    count = _remove_records(job, holds)
    _remove_files(job)
    return count


def _remove_records(job: Job, holds: Callable[[Record], bool], names: Iterable[str] | None = None) -> int:
    """Remove the records, of these parts or of all, for which `holds` is False or that cannot be read. Return their
    number."""
    records, removed = job.records, 0
    for name in sorted(records.names() if names is None else names):
        try:
            is_good = holds(records.read(name))
        except ValueError:
            is_good = False
        if not is_good:
            Files().remove(records.path(name))
            removed += 1
    return removed


def _is_as_written(job: Job, record: Record) -> bool:
    return (
        all(file.is_there(job.out) for file in record.files)
        and record.lines - record.skipped == sum(file.rows for file in record.files)
        and record.numbers.keys() <= {*job.of_role("number")}
        and all(file.positives.keys() == {*job.of_role("label")} for file in record.files)
    )


def _remove_files(job: Job) -> None:
    """Remove the files of parts without a record. A corrected source may have fewer parts, or parts without rows of
    some split, so these files might never be overwritten."""
    names = job.records.names()
    for split in SPLITS:
        for path in list(named(job.out / split, rf"{PART}\.parquet")):
            if path.stem not in names:
                Files().remove(path)
