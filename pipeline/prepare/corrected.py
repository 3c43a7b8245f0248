"""Parts of an unfinished output that a corrected command makes otherwise: they are removed, the others stay.

A part is made otherwise if its source has changed, if rows are divided in another way, if more of its lines were left
out than may be now, or if ids come from other counts.
"""

from __future__ import annotations

from collections.abc import Set

from pipeline.data.files import SPLITS
from pipeline.prepare.layout import COUNT, COUNTS, PART, WRITE, named, remove
from pipeline.prepare.steps import Job
from pipeline.storage.files import Files


def remove_other_parts(job: Job, changed: Set[int], new_split: bool, new_counts: bool) -> int:
    """Remove the parts of `changed` sources, and of the others those that do not hold; return the number of written and
    counted parts that are removed. `new_counts`: True if ids of vocabularies may differ."""
    count = sum(_remove_records(job, step, changed, new_split) for step in (COUNT, WRITE))
    if job.vocabulary and (new_counts or count):
        count += _remove_records(job, WRITE, changed, True)
        remove(job.kept / COUNTS, r".+\.merged")
    _remove_files(job)
    return count


def _remove_records(job: Job, step: str, changed: Set[int], all_of_them: bool) -> int:
    records, removed = job.records(step), 0
    for name in sorted(records.names()):
        try:
            record = records.read(name)
            holds = record.file not in changed and record.skipped <= job.bad.allowed(record.lines)
        except ValueError:
            holds = False
        if all_of_them or not holds:
            Files().remove(records.path(name))
            removed += 1
    return removed


def _remove_files(job: Job) -> None:
    """Remove what was saved for parts without a record: a corrected source may have fewer parts, and another split
    may leave a part without rows of some split, so that such a file would never be written again."""
    counted, written = (job.records(step).names() for step in (COUNT, WRITE))
    folders = {job.kept / COUNTS: counted, **{job.out / split: written for split in SPLITS}}
    for folder, names in folders.items():
        for path in list(named(folder, rf"{PART}\.(counts|rows|parquet)")):
            if path.stem not in names:
                Files().remove(path)
