"""Decision which parts of an unfinished output are still valid, and which are made again; each part has a record.

A part is made again if its files, or the record itself, are not as they were written; and by a corrected command if its
source has changed, if rows are divided in another way, if more of its lines were left out than may be now, or if ids
come from other counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from itertools import pairwise

from pipeline.data.files import SPLITS
from pipeline.prepare.layout import COUNT, COUNTS, PART, WRITE, named, remove
from pipeline.prepare.parts import Made, Record, Records, part_name
from pipeline.prepare.pieces import Piece
from pipeline.prepare.steps import Job
from pipeline.prepare.vocabulary import path_of_counts
from pipeline.storage.durable import has_checksum
from pipeline.storage.files import Files


def unfinished(pieces: Sequence[Piece], records: Records) -> list[Piece]:
    """Pieces with at least one part that has no record."""
    ends = {first: second.number for first, second in pairwise(pieces) if first.file == second.file}
    return [piece for piece in pieces if not _is_finished(piece, ends.get(piece), records)]


def _is_finished(piece: Piece, end: int | None, records: Records) -> bool:
    """True if all parts of a piece have records. `end`: number after its last part; None for a file's last piece, which
    has the parts up to the one whose record says that it is the last."""
    number, made = piece.number, Made(records, piece.file)
    while number in made:
        if end is None and records.read(part_name(piece.file, number)).last:
            return True
        number += 1
        if number == end:
            return True
    return False


def check_parts_are_those(job: Job, step: str, pieces: Sequence[Piece]) -> None:
    """Raises ValueError if a record does not belong to a part of the sources."""
    file, number, last = 0, 0, False
    for record in job.records(step):
        if last:
            file, number = file + 1, 0
        path = job.records(step).path(record.name)
        if (record.file, record.number) != (file, number) or file > pieces[-1].file:
            raise ValueError(f"{path} is the record of a part that the sources do not have; remove it")
        number, last = number + 1, record.last


def remove_damaged_parts(job: Job, step: str, names: Iterable[str]) -> None:
    """Remove the records of those parts that are not as they were written."""
    _remove_records(job, step, partial(_is_as_written, job, step), names)


def remove_other_parts(job: Job, changed: Set[int], new_split: bool, new_counts: bool) -> int:
    """Remove the parts of `changed` sources, and of the others those that do not hold by a corrected command; return
    the number of written and counted parts that are removed. `new_counts`: True if ids of vocabularies may differ."""

    def holds(record: Record) -> bool:
        may_be = record.file not in changed and record.skipped <= job.bad.allowed(record.lines)
        return may_be and not new_split

    count = sum(_remove_records(job, step, holds) for step in (COUNT, WRITE))
    if job.vocabulary and (new_counts or count):
        count += _remove_records(job, WRITE, lambda record: False)
        remove(job.kept / COUNTS, r".+\.merged")
    _remove_files(job)
    return count


def _remove_records(
    job: Job, step: str, holds: Callable[[Record], bool], names: Iterable[str] | None = None
) -> int:  # fmt: skip
    """Remove the records, of these parts or of all, that do not hold or cannot be read; return their number."""
    records, removed = job.records(step), 0
    for name in sorted(records.names() if names is None else names):
        try:
            is_good = holds(records.read(name))
        except ValueError:
            is_good = False
        if not is_good:
            Files().remove(records.path(name))
            removed += 1
    return removed


def _is_as_written(job: Job, step: str, record: Record) -> bool:
    if step == COUNT:
        # The rows of a part that is written are removed.
        is_written = job.records(WRITE).path(record.name).exists()
        counts = path_of_counts(job.kept / COUNTS, record.name)
        return has_checksum(counts, record.kept) and (is_written or has_checksum(job.rows_of(record.name), record.rows))
    return (
        all(file.is_there(job.out) for file in record.files)
        and record.lines - record.skipped == sum(file.rows for file in record.files)
        and record.numbers.keys() <= {*job.of_role("number")}
        and all(file.positives.keys() == {*job.of_role("label")} for file in record.files)
    )


def _remove_files(job: Job) -> None:
    """Remove what was saved for parts without a record: a corrected source may have fewer parts, and another split
    may leave a part without rows of some split, so that such a file would never be written again."""
    counted, written = (job.records(step).names() for step in (COUNT, WRITE))
    folders = {job.kept / COUNTS: counted, **{job.out / split: written for split in SPLITS}}
    for folder, names in folders.items():
        for path in list(named(folder, rf"{PART}\.(counts|rows|parquet)")):
            if path.stem not in names:
                Files().remove(path)
