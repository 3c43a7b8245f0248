"""Realistic columns of times, and train files of one day each.

No data set of this benchmark has times. The days start with the first day of Avazu's logs. Each day has its share of
the rows, fewer at night, and within a file the rows are in the order of their times.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from benchmarks.doctor.copies import Copy
from pipeline.records import I64
from pipeline.workflow import Category

START = int(datetime(2014, 10, 21, tzinfo=UTC).timestamp())
HOUR, DAY = 3600, 86400
TRAIN_DAYS = 7
"""Number of files into which a single train file is split. If there are several files, each is a day."""
RHYTHM = 1 + 0.7 * np.sin((np.arange(24) - 9) * 2 * np.pi / 24)
"""Traffic of each hour, as a multiple of the mean: least at 3, most at 15."""


def add_times(copy: Copy, form: str, rng: np.random.Generator) -> None:
    """Add a column named `form`, and make a file of each day.

    hour: integers YYMMDDHH, a category of the workflow. timestamp: seconds since 1970 in UTC, which the workflow does
    not name. event_time: an Arrow timestamp in microseconds, not named either, in Hive's folders.
    """
    days = [rows for split in ("train", "validation", "test") for rows in _days(copy, split, rng)]
    num_train = len(days) - len(copy.splits["validation"]) - len(copy.splits["test"])
    seconds_N = np.empty(len(copy.table), np.int64)
    for day, rows in enumerate(days):
        seconds_N[rows] = START + day * DAY + seconds_of_day(rng, len(rows))
    names = [_name(form, day) for day in range(len(days))]
    copy.files = dict(zip(names, days, strict=True))
    copy.splits = {"train": tuple(names[:num_train]), "validation": (names[num_train],), "test": (names[-1],)}
    copy.add(Category(name=form) if form == "hour" else form, column_of(form, seconds_N))
    copy.change(**copy.splits)


def _days(copy: Copy, split: str, rng: np.random.Generator) -> list[I64]:
    """Rows of each day of a split. The order of a single train file is not an order of days."""
    files = [copy.files[name] for name in copy.splits[split]]
    if split != "train" or len(files) > 1:
        return files
    return np.array_split(rng.permutation(files[0]), TRAIN_DAYS)


def _name(form: str, day: int) -> str:
    date = datetime.fromtimestamp(START, UTC) + timedelta(days=day)
    return {
        "hour": f"day_{date:%y%m%d}.parquet",
        "timestamp": f"part-{day:04d}.parquet",
        "event_time": f"dt={date:%Y-%m-%d}/part-0.parquet",
    }[form]


def seconds_of_day(rng: np.random.Generator, num_rows: int) -> I64:
    """Draw times of a day in seconds [num_rows], in order."""
    hours = rng.choice(24, num_rows, p=RHYTHM / RHYTHM.sum())
    return np.sort(hours * HOUR + rng.integers(0, HOUR, num_rows))


def column_of(form: str, seconds: I64) -> pa.Array:
    """Times since 1970 in the form given by its name."""
    if form == "timestamp":
        return pa.array(seconds)
    if form == "event_time":
        return pa.array(seconds * 1_000_000).cast(pa.timestamp("us"))
    hours, at = np.unique(seconds // HOUR, return_inverse=True)
    written = [int(f"{datetime.fromtimestamp(hour * HOUR, UTC):%y%m%d%H}") for hour in hours.tolist()]
    return pa.array(np.array(written, np.int64)[at])
