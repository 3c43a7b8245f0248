"""The work of a task on one piece: read its parts, make the step's result of each, then write its record.

Step `count`, only if there are vocabularies, saves the rows of parts, and the counts of values in those for training;
then step `write`, which makes the output, reads what was saved instead of the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data.files import SPLITS
from pipeline.files.types import is_list
from pipeline.prepare.formats import Format
from pipeline.prepare.layout import COUNT, COUNTS, KEPT, WRITE
from pipeline.prepare.lines import BadLines
from pipeline.prepare.parts import Made, Record, Records, in_row_groups, limits, part_name, write_splits
from pipeline.prepare.pieces import Piece
from pipeline.prepare.read import SourcePart, parts
from pipeline.prepare.saved import in_dictionaries, path_of_rows, save_rows, saved_parts
from pipeline.prepare.splits import I8, TRAIN, ByTime, Split
from pipeline.prepare.times import micros_of
from pipeline.prepare.vocabulary import CACHE_BYTES, Vocabulary, count_part, path_of, path_of_counts
from pipeline.storage.durable import has_checksum
from pipeline.storage.files import Files


@dataclass(frozen=True)
class Job:
    """All that a task needs to know; it may run wherever the same paths lead to the same files."""

    out: Path
    format: Format
    split: Split
    bad: BadLines
    vocabulary: tuple[str, ...] = ()
    """Columns whose values become ids."""
    minimum: int = 1
    minimum_of: tuple[tuple[str, int], ...] = ()
    """Columns with their own minimum."""

    @property
    def kept(self) -> Path:
        return self.out / KEPT

    @property
    def stop(self) -> Path:
        """Path of a file whose existence makes tasks end after the part that they are working on."""
        return self.kept / "stop"

    def records(self, step: str) -> Records:
        return Records(self.kept / step)

    def of_role(self, role: str) -> list[str]:
        """Names of the columns of this role, in the order of the format."""
        return [field.name for field in self.format.fields if field.role == role]


def do_piece(job: Job, step: str, piece: Piece) -> None:
    """Make the parts of the piece that are not done. Several processes may do so at once, even for the same piece."""
    records = job.records(step)
    made = Made(records, piece.file)
    try:
        if job.stop.exists():
            return
        for part in _parts(job, step, piece, made):
            if part.number not in made:
                split_N = job.split.of(part.file, part.number, piece.path, part.table)
                part.table = part.table.select(job.format.schema.names)
                records.write(_record(part, STEPS[step](job, part, split_N)))
            # Its memory is for the next part.
            del part
            if job.stop.exists():
                return
    except BaseException:
        # Without it tasks that run at the same time might go on for hours, if a source is read as a stream.
        with suppress(OSError):
            job.stop.touch()
        raise


def _parts(job: Job, step: str, piece: Piece, made: Made) -> Iterator[SourcePart]:
    if job.vocabulary and step == WRITE:
        return saved_parts(piece, job.kept / COUNTS, job.records(COUNT), made)
    return parts(piece, job.format, job.bad, made)


def _record(part: SourcePart, made: dict[str, Any]) -> Record:
    of_part = {name: getattr(part, name) for name in ("file", "number", "last", "end")}
    return Record(**of_part, lines=part.num_lines, skipped=part.num_skipped, **({"numbers": {}, "unknown": {}} | made))


def _count(job: Job, part: SourcePart, split_N: I8) -> dict[str, Any]:
    folder, name = job.kept / COUNTS, part_name(part.file, part.number)
    part.table = in_dictionaries(part.table, job.vocabulary)
    rows = part.table.select(job.vocabulary).filter(pa.array(split_N == TRAIN))
    kept = count_part(rows, job.vocabulary, folder, name)
    return {"kept": kept, "rows": save_rows(path_of_rows(folder, name), part.table)}


def _write(job: Job, part: SourcePart, split_N: I8) -> dict[str, Any]:
    name = part_name(part.file, part.number)
    numbers = limits(part.table, job.of_role("number"))
    table, unknown = _with_ids(job, part.table)
    files = write_splits(job.out, name, in_row_groups(table, split_N), job.of_role("label"), _times(job, part, split_N))
    return {"numbers": numbers, "files": files, "unknown": unknown}


def _times(job: Job, part: SourcePart, split_N: I8) -> dict[str, pa.ChunkedArray] | None:
    """Column of a split by time, as it was read, for each split; texts that are not in the order of the time they mean
    as ISO 8601."""
    if not isinstance(job.split, ByTime):
        return None
    times = part.table.column(job.split.column)
    if job.split.form not in ("", "iso"):
        moments = micros_of(times, job.split.form)
        times = pa.chunked_array(
            [moments.cast(pa.timestamp("us")).cast(pa.timestamp("s"), safe=False).cast(pa.string())]
        )
    return {split: times.filter(pa.array(split_N == place)) for place, split in enumerate(SPLITS)}


STEPS: dict[str, Callable[[Job, SourcePart, I8], dict[str, Any]]] = {COUNT: _count, WRITE: _write}
"""Work of each step on a part; returns the fields of its record that are not those of the part."""


def _with_ids(job: Job, table: pa.Table) -> tuple[pa.Table, dict[str, int]]:
    """The table with the ids of vocabularies, and the number of ids 0 by column."""
    unknown = {}
    for column in job.vocabulary:
        path = path_of(job.out, column)
        known = _vocabulary(path, column, path.stat().st_mtime_ns, CACHE_BYTES // len(job.vocabulary))
        ids = known.look_up(table.column(column))
        table = table.set_column(table.column_names.index(column), column, ids)
        unknown[column] = pc.sum(pc.equal(ids.flatten() if is_list(ids.type) else ids, 0)).as_py() or 0
    return table, unknown


def check_parts(job: Job, step: str, names: Sequence[str]) -> None:
    """Remove the records of parts whose files, or the record itself, are not as they were written: those parts are made
    again."""
    records = job.records(step)
    for name in names:
        if not _is_done(job, step, name):
            Files().remove(records.path(name))


def _is_done(job: Job, step: str, name: str) -> bool:
    try:
        record = job.records(step).read(name)
    except ValueError:
        return False
    if step == COUNT:
        counts, rows = (path_of(job.kept / COUNTS, name) for path_of in (path_of_counts, path_of_rows))
        # The rows of a part that is written are removed.
        is_written = job.records(WRITE).path(name).exists()
        return has_checksum(counts, record.kept) and (is_written or has_checksum(rows, record.rows))
    return (
        all(file.is_there(job.out) for file in record.files)
        and record.lines - record.skipped == sum(file.rows for file in record.files)
        and record.numbers.keys() <= {*job.of_role("number")}
        and all(file.positives.keys() == {*job.of_role("label")} for file in record.files)
    )


@lru_cache(64)
def _vocabulary(path: Path, column: str, made_at: int, cache_bytes: int) -> Vocabulary:
    """Open a vocabulary once per process; `made_at` distinguishes it from an earlier one at the same path."""
    return Vocabulary(path, column, cache_bytes)
