"""What a task does with one piece: read its parts, and of each make what a step makes, then a record.

`count`, where vocabularies are asked for, saves how often values occur in the training rows; `write` makes the output.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from pipeline.prepare.formats import Format
from pipeline.prepare.lines import BadLines
from pipeline.prepare.parts import Made, Record, Records, encoded, limits, part_name, write_splits
from pipeline.prepare.pieces import Piece
from pipeline.prepare.read import Part, parts
from pipeline.prepare.splits import I8, TRAIN, Split
from pipeline.prepare.uniques import save_part
from pipeline.prepare.vocabulary import CACHE_BYTES, Vocabulary, count_part, path_of

KEPT = ".prepare"
"""The folder in the output that says what is done; but for the command it goes when all is."""


@dataclass(frozen=True)
class Job:
    """All that a task has to know; it may run anywhere where the same paths lead to the same files."""

    out: Path
    format: Format
    split: Split
    bad: BadLines
    vocabulary: tuple[str, ...] = ()
    """Columns whose values become ids."""
    minimum: int = 1

    @property
    def kept(self) -> Path:
        return self.out / KEPT

    @property
    def stop(self) -> Path:
        """A file that has tasks end after the part that they are at."""
        return self.kept / "stop"

    def records(self, step: str) -> Records:
        return Records(self.kept / step)

    def of_role(self, role: str) -> list[str]:
        return sorted(field.name for field in self.format.fields if field.role == role)


def do_piece(job: Job, step: str, piece: Piece) -> None:
    """Make what is not made yet of the piece. Any number of processes may do so, also the same piece at once."""
    records = job.records(step)
    made = Made(records, piece.file)
    try:
        if job.stop.exists():
            return
        for part in parts(piece, job.format, job.bad, made):
            if part.number not in made:
                split_N = job.split.of(part.file, part.number, piece.path, part.table)
                records.write(STEPS[step](job, part, split_N))
            if job.stop.exists():
                return
    except BaseException:
        # What runs beside it would go on for hours, where a source is read from its begin.
        with suppress(OSError):
            job.stop.touch()
        raise


def _count(job: Job, part: Part, split_N: I8) -> Record:
    rows = part.table.filter(pa.array(split_N == TRAIN))
    count_part(rows, job.vocabulary, job.kept / "counts", part_name(part.file, part.number))
    return Record(part.file, part.number, part.num_lines, part.num_skipped, part.last, {}, (), part.past)


def _write(job: Job, part: Part, split_N: I8) -> Record:
    name = part_name(part.file, part.number)
    numbers = limits(part.table, job.of_role("number"))
    table = encoded(_with_ids(job, part.table))
    save_part(job.kept / "uniques", name, table, job.of_role("category"))
    files = write_splits(job.out, name, table, split_N, job.of_role("label"))
    return Record(part.file, part.number, part.num_lines, part.num_skipped, part.last, numbers, files, part.past)


STEPS: dict[str, Callable[[Job, Part, I8], Record]] = {"count": _count, "write": _write}


def _with_ids(job: Job, table: pa.Table) -> pa.Table:
    for column in job.vocabulary:
        path = path_of(job.out, column)
        known = _vocabulary(path, column, path.stat().st_mtime_ns, CACHE_BYTES // len(job.vocabulary))
        table = table.set_column(table.column_names.index(column), column, known.look_up(table.column(column)))
    return table


@lru_cache(64)
def _vocabulary(path: Path, column: str, made_at: int, cache_bytes: int) -> Vocabulary:
    """Opened once in a process; `made_at` tells it from another that was there before."""
    return Vocabulary(path, column, cache_bytes)
