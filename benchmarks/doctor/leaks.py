"""Faults of kind `leak`: one column reveals the label."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.doctor.copies import Copy, Trace, pick
from pipeline.records import I64
from pipeline.workflow import Category, Number

F64 = NDArray[np.float64]

FOLDS = 5


def after_click(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """Seconds on the ad's landing page, measured after the click, in `share` of all rows; null in the others. A few
    rows without a click also have a value, from accidental clicks that were filtered out."""
    num_rows = len(copy.table)
    stray_N = np.where(rng.random(num_rows) < 0.03, rng.lognormal(0.7, 0.5, num_rows), 0.0)
    seconds_N = np.where(copy.labels() == 1, rng.lognormal(3.4, 1.0, num_rows), stray_N).astype(np.float32)
    rows = pick(rng, copy.everything(), share)
    null_N = np.ones(num_rows, bool)
    null_N[rows] = False
    copy.add(Number(name="dwell_seconds", log1p=True), pa.array(seconds_N, mask=null_N))
    return Trace(("dwell_seconds",), len(rows), num_rows)


def own_click_counted(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """Clicks of the session so far: in `share` of all rows the count includes the click of the row itself."""
    count_N = rng.poisson(0.6, len(copy.table))
    rows = pick(rng, copy.everything(), share)
    count_N[rows] += copy.labels()[rows]
    copy.add(Number(name="session_clicks", log1p=True), pa.array(count_N))
    return Trace(("session_clicks",), len(rows), len(copy.table))


def id_of_positives(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """ID of the conversion in `share` of the positive rows; 0 in all others."""
    positives = np.flatnonzero(copy.labels())
    rows = pick(rng, positives, share)
    ids_N = np.zeros(len(copy.table), np.int64)
    ids_N[rows] = rng.integers(1 << 30, 1 << 40, len(rows))
    copy.add(Category(name="conversion_id"), pa.array(ids_N))
    return Trace(("conversion_id",), len(rows), len(positives))


def target_encoding(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """Smoothed label rate of each pair of values of the two largest fields: in `share` of all rows computed over all
    rows, including the row itself; in the others over train without the row's fold, as it should be."""
    first, second = copy.fields()[:2]
    pair_N = _pairs(copy, first, second)
    fold_N = np.full(len(pair_N), FOLDS)
    train = copy.rows("train")
    fold_N[train] = rng.integers(0, FOLDS, len(train))
    values_N = _out_of_fold(pair_N, copy.labels(), fold_N)
    rows = pick(rng, copy.everything(), share)
    values_N[rows] = _rates(pair_N, copy.labels(), np.ones(len(pair_N)))[rows]
    name = f"ctr_{first}_{second}"
    copy.add(Number(name=name), pa.array(values_N.astype(np.float32)))
    return Trace((name,), len(rows), len(copy.table))


def _pairs(copy: Copy, first: str, second: str) -> I64:
    """Number [N] of the pair of values of each row."""
    first_N, second_N = (copy.table[name].combine_chunks().dictionary_encode().indices for name in (first, second))
    both_N = np.asarray(first_N).astype(np.int64) * (1 << 32) + np.asarray(second_N)
    numbers_N: I64 = np.unique(both_N, return_inverse=True)[1]
    return numbers_N


def _rates(pair_N: I64, label_N: NDArray[np.int8], weight_N: F64) -> F64:
    """Label rate [N] of each row's pair over the rows of weight 1, and over one more row of the mean."""
    mean = np.average(label_N, weights=weight_N)
    return (np.bincount(pair_N, label_N * weight_N) + mean)[pair_N] / (np.bincount(pair_N, weight_N) + 1)[pair_N]


def _out_of_fold(pair_N: I64, label_N: NDArray[np.int8], fold_N: I64) -> F64:
    """Label rate [N] of each row's pair over the rows of train, except those of its fold. Rows that are not in train
    have fold FOLDS."""
    values_N = np.empty(len(pair_N))
    for fold in range(FOLDS + 1):
        others_N = ((fold_N != fold) & (fold_N != FOLDS)).astype(np.float64)
        values_N[fold_N == fold] = _rates(pair_N, label_N, others_N)[fold_N == fold]
    return values_N
