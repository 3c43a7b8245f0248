"""Faults of kind `label_rate`: the share of positives jumps from file to file, or from hour to hour."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from benchmarks.doctor.copies import Copy, Trace, pick
from benchmarks.doctor.times import HOUR
from pipeline.records import I64


def _clear(copy: Copy, rows: I64) -> None:
    copy.put(copy.label, pa.array(np.zeros(len(rows), np.int8)), rows)


def zero_file(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """The label is 0 in `share` of the rows of one train file: its clicks were lost."""
    train = copy.splits["train"]
    own = copy.files[train[len(train) // 2]]
    rows = pick(rng, own, share)
    _clear(copy, rows)
    return Trace((copy.label,), len(rows), len(own))


def lost_hours(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """The label is 0 in `share` of the hours of train, in which no clicks were counted."""
    train = copy.rows("train")
    hour_N = copy.table["timestamp"].to_numpy() // HOUR
    hours = np.unique(hour_N[train])
    lost = pick(rng, hours, share)
    _clear(copy, train[np.isin(hour_N[train], lost)])
    return Trace((copy.label,), len(lost), len(hours))


def negatives_dropped(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """`share` of the negatives of every second train file are gone: these files were made for another model."""
    thinned = copy.splits["train"][1::2] or copy.splits["train"]
    negatives = np.concatenate([copy.files[name][copy.labels()[copy.files[name]] == 0] for name in thinned])
    gone = pick(rng, negatives, share)
    for name in thinned:
        copy.files[name] = copy.files[name][~np.isin(copy.files[name], gone)]
    return Trace((copy.label,), len(gone), len(negatives))


def delayed_clicks(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """The label is 0 in the last `share` of the rows of the last file: their conversions have not come in yet."""
    last = copy.files[copy.splits["test"][-1]]
    rows = last[len(last) - len(pick(rng, last, share)) :]
    _clear(copy, rows)
    return Trace((copy.label,), len(rows), len(last))
