"""Time order: rows of train that are later than rows of validation or test, and files out of order."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from pipeline.doctor.finding import Finding
from pipeline.doctor.measures import farthest_apart, share_greater
from pipeline.doctor.sample import spaced
from pipeline.doctor.seen import F64, SeenColumn, SeenRows
from pipeline.doctor.times import clocks
from pipeline.files.find import DataFile, natural_order

WRONG_PAIRS = 0.001
"""Minimum fraction of pairs (a row of train, a row of the other split) in the wrong order for a fault. If two periods
merely touch, so that a fraction a of one overlaps a fraction b of the other, it is a * b / 2: far less."""
WRONG_FILES, ORDERED = 0.01, 0.25
"""The same for pairs of rows from two files of train; and the fraction below which the files are assumed to be meant in
order: half of that expected by chance."""
MOST_FILES = 40
DATE = re.compile(r"(?<!\d)((?:19|20)\d\d)([-_]?)(0[1-9]|1[0-2])\2(0[1-9]|[12]\d|3[01])(?!\d)")
"""A date in a file's path: year, month and day, as in dt=2026-01-31."""
APART_ERRORS, APART = 2.5, 0.02
"""Kolmogorov-Smirnov distance between the times of two splits, in standard errors (by chance, one in 130,000 is larger)
and absolute; below either, the rows were split without regard to time."""


def find_time_order(seen: SeenRows) -> list[Finding]:
    """Compare the times of train with those of the other splits, and those of train's files with each other."""
    return [found for column in clocks(seen) for found in (*_of_splits(seen, column), *_of_files(seen, column))]


def _of_splits(seen: SeenRows, column: SeenColumn) -> Iterator[Finding]:
    times_N = column.raw_N
    assert times_N is not None
    known_N = ~np.isnan(times_N)
    train = np.flatnonzero(seen.rows_of("train") & known_N)
    for split in ("validation", "test"):
        rows = np.flatnonzero(seen.rows_of(split) & known_N)
        if not len(train) or not len(rows):
            continue
        wrong = share_greater(times_N[train], times_N[rows])
        if not wrong:
            continue
        errors = math.sqrt(1 / len(train) + 1 / len(rows))
        if farthest_apart(times_N[train], times_N[rows]) < max(APART_ERRORS * errors, APART):
            yield Finding(
                "time_order", "remark", (column.name,),
                f"{column.name}: train and {split} cover the same times, so the rows were split at random. Many "
                "benchmarks do so, but it is easier than production: to judge how well tomorrow is predicted, split "
                "by time",
            )  # fmt: skip
            continue
        first, latest = int(rows[np.argmin(times_N[rows])]), int(train[np.argmax(times_N[train])])
        later = float((times_N[train] > np.median(times_N[rows])).mean())
        said = (
            f"{column.name}: {later:.2%} of train's rows are later than the median row of {split} ({wrong:.2%} of the "
            f"pairs are in the wrong order); {split} begins at {seen.shown(column, int(column.codes_N[first]))}, and "
            f"train has {seen.shown(column, int(column.codes_N[latest]))} ({seen.place(latest)}). "
        )
        if wrong >= WRONG_PAIRS:
            way = "The model learns from the future of the rows that judge it: split the rows by time"
            yield Finding("time_order", "fault", (column.name,), said + way)
        else:
            yield Finding("time_order", "remark", (column.name,), said + "The two periods overlap a little")


def _of_files(seen: SeenRows, column: SeenColumn) -> Iterator[Finding]:
    """Report files of train whose times do not follow the order of their names, though most do or the names are
    dates."""
    files = [number for number, file in enumerate(seen.files) if file.split == "train"]
    files = sorted(files, key=lambda number: natural_order(seen.files[number].path))
    files = spaced(files, MOST_FILES)
    times = [_times(seen, column, number) for number in files]
    dates = [date for number in files for date in DATE.findall(str(seen.files[number].path))[-1:]]
    dated = len(dates) == len(files) and len(set(dates)) > 1
    pairs = [(a, b) for a, b in combinations(range(len(files)), 2) if len(times[a]) and len(times[b])]
    if dated:
        pairs = [(a, b) if dates[a] < dates[b] else (b, a) for a, b in pairs if dates[a] != dates[b]]
    if len(pairs) < 3:
        return
    wrong = {(a, b): share_greater(times[a], times[b]) for a, b in pairs}
    mean = float(np.mean(list(wrong.values())))
    if mean >= WRONG_FILES and (mean < ORDERED or dated):
        a, b = max(wrong, key=lambda pair: wrong[pair])
        meant = "the names of train's files are dates" if dated else "the files of train follow each other in time"
        yield Finding(
            "time_order", "fault", (column.name,),
            f"{column.name}: {meant}, but {mean:.2%} of the pairs of rows of two files are in the wrong order; the "
            f"worst are {_end(seen.files[files[a]].path)} and {_end(seen.files[files[b]].path)} ({wrong[a, b]:.1%} of "
            "pairs). Correct the times, or the files' names",
        )  # fmt: skip


def _times(seen: SeenRows, column: SeenColumn, file: int) -> F64:
    assert column.raw_N is not None
    times_N = column.raw_N[seen.file_N == file]
    return times_N[~np.isnan(times_N)]


def _end(path: DataFile) -> str:
    """Folder and name: files in different folders often have the same name."""
    return "/".join(path.place.split("/")[-2:])
