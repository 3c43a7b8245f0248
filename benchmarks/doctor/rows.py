"""Faults of the kinds `shared_rows` and `time_order`: rows that are in the wrong file, or have the wrong time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from benchmarks.doctor.copies import Copy, Trace, pick
from benchmarks.doctor.times import DAY, START, column_of
from pipeline.records import I64


def sampled_from_all(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """`share` of the rows of test are also in train, each at its original place: test was drawn from all rows, and
    train is all rows."""
    rows = rng.permutation(pick(rng, copy.rows("test"), share))
    train = copy.splits["train"]
    for name, part in zip(train, np.array_split(rows, len(train)), strict=True):
        own = copy.files[name]
        copy.files[name] = np.insert(own, rng.integers(0, len(own) + 1, len(part)), part)
    return Trace((), len(rows), len(copy.rows("test")))


def validation_in_train(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """`share` of the rows of validation are at the end of the last train file, which was made from one file too
    many."""
    rows, last = pick(rng, copy.rows("validation"), share), copy.splits["train"][-1]
    copy.files[last] = np.concatenate([copy.files[last], rows])
    return Trace((), len(rows), len(copy.rows("validation")))


def logged_twice(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """`share` of the rows of test equal rows of train except for their time: the events were sent again."""
    rows = pick(rng, copy.rows("test"), share)
    copy.repeat(rows, rng.choice(copy.rows("train"), len(rows), replace=False), but=("timestamp",))
    return Trace((), len(rows), len(copy.rows("test")))


def random_split(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """`share` of the rows of test have changed places with rows of train: they were drawn from all days."""
    rows = pick(rng, copy.rows("test"), share)
    others = rng.permutation(pick(rng, copy.rows("train"), len(rows) / len(copy.rows("train"))))
    _move(copy, np.concatenate([rows, others]), np.concatenate([others, rows]))
    return Trace(("hour",), len(rows), len(copy.rows("test")))


def shuffled_days(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """`share` of the rows of train are in the folder of any day: they were shuffled before they were written."""
    rows = pick(rng, copy.rows("train"), share)
    _move(copy, rows, rng.permutation(rows))
    return Trace(("event_time",), len(rows), len(copy.rows("train")))


def before_train(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """`share` of the rows of test are from the day before train begins: the log was sorted newest first."""
    rows = pick(rng, copy.rows("test"), share)
    copy.put("timestamp", column_of("timestamp", START - rng.integers(1, DAY, len(rows))), rows)
    return Trace(("timestamp",), len(rows), len(copy.rows("test")))


def mixed_units(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """`share` of the rows of train have their time in milliseconds, from a second logger; all others in seconds."""
    rows = pick(rng, copy.rows("train"), share)
    copy.put("timestamp", pa.array(copy.table["timestamp"].to_numpy()[rows] * 1000), rows)
    return Trace(("timestamp",), len(rows), len(copy.rows("train")))


def _move(copy: Copy, rows: I64, others: I64) -> None:
    """Replace rows by other rows. Each row is in exactly one place."""
    instead_N = copy.everything()
    instead_N[rows] = others
    copy.files = {name: instead_N[own] for name, own in copy.files.items()}
