"""A task's work on one piece: read its parts and, for each, write the output files, then the record."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import numpy as np
import pyarrow as pa

from pipeline.prepare.formats import Format
from pipeline.prepare.layout import KEPT, WRITE
from pipeline.prepare.parts import Made, Record, Records, limits, part_name, write_splits
from pipeline.prepare.pieces import Piece
from pipeline.prepare.read import SourcePart, parts
from pipeline.prepare.splits import I8, OUTSIDE, TRAIN, ByTime, Split
from pipeline.prepare.times import micros_of


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
