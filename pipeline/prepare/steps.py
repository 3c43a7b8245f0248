"""The work of a task on one piece: read its parts, write the output's files of each, then its record."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import pyarrow as pa

from pipeline.prepare.formats import Format
from pipeline.prepare.layout import KEPT, WRITE
from pipeline.prepare.parts import Made, Record, Records, limits, part_name, write_splits
from pipeline.prepare.pieces import Piece
from pipeline.prepare.read import SourcePart, parts
from pipeline.prepare.splits import I8, ByTime, Split
from pipeline.prepare.times import micros_of


@dataclass(frozen=True)
class Job:
    """All that a task needs to know."""

    out: Path
    format: Format
    split: Split
    skip_bad: float | None
    """See `may_skip`."""
    stop: Event = field(default_factory=Event, compare=False)
    """Set to have tasks end after the part that they are working on."""

    @property
    def kept(self) -> Path:
        return self.out / KEPT

    @property
    def records(self) -> Records:
        return Records(self.kept / WRITE)

    def of_role(self, role: str) -> list[str]:
        """Names of the columns of this role, in the order of the format."""
        return [field.name for field in self.format.fields if field.role == role]


def do_piece(job: Job, piece: Piece) -> None:
    """Make the parts of the piece that are not done. Other threads may make those of other pieces meanwhile."""
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
            # Its memory is for the next part.
            del part
            if job.stop.is_set():
                return
    except BaseException:
        # Without it tasks that run at the same time might go on for hours, if a source is read as a stream.
        job.stop.set()
        raise


def _write(job: Job, part: SourcePart, split_N: I8) -> Record:
    """Write the output's files of a part; return its record."""
    times = _times(part.table, job.split) if isinstance(job.split, ByTime) else None
    name = part_name(part.file, part.number)
    return Record(
        file=part.file,
        number=part.number,
        lines=part.num_lines,
        skipped=part.num_skipped,
        last=part.last,
        numbers=limits(part.table, job.of_role("number")),
        files=write_splits(job.out, name, part.table, split_N, job.of_role("label"), times),
        end=part.end,
    )


def _times(table: pa.Table, split: ByTime) -> pa.ChunkedArray:
    """Column of a split by time, as it was read; texts that are not in the order of the time they mean as ISO 8601."""
    times = table.column(split.column)
    if split.form in ("", "iso"):
        return times
    moments = micros_of(times, split.form).cast(pa.timestamp("us"))
    return pa.chunked_array([moments.cast(pa.timestamp("s"), safe=False).cast(pa.string())])
