"""Faults of kind `unscaled_number`: a new column of numbers that the workflow uses without scaling."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.doctor.copies import Copy, Trace, pick
from benchmarks.doctor.times import DAY, START
from pipeline.records import I64
from pipeline.workflow import Number


def _add(copy: Copy, name: str, values_N: NDArray[np.generic], rows: I64, of: int) -> Trace:
    copy.add(Number(name=name), pa.array(values_N))
    return Trace((name,), len(rows), of)


def raw_counts(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """Views so far: `share` of all rows are of popular items, with 1e3 to 1e9 views; the others have some ten."""
    views_N = rng.geometric(0.1, len(copy.table)) - 1
    rows = pick(rng, copy.everything(), share)
    views_N[rows] = (10 ** rng.uniform(3, 9, len(rows))).astype(np.int64)
    return _add(copy, "item_views", views_N, rows, len(copy.table))


def nanoseconds(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """Time of the user's previous visit, within 30 days, in ns since 1970, in `share` of all rows; 0 for new users."""
    seen_N = np.zeros(len(copy.table), np.int64)
    rows = pick(rng, copy.everything(), share)
    seen_N[rows] = (START - rng.integers(0, 30 * DAY, len(rows))) * 1_000_000_000 + rng.integers(0, 10**9, len(rows))
    return _add(copy, "last_seen", seen_N, rows, len(copy.table))


def overflow(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """A normal score that is 1e30 in `share` of all rows, where a division went wrong."""
    score_N = rng.standard_normal(len(copy.table)).astype(np.float32)
    rows = pick(rng, copy.everything(), share)
    score_N[rows] = 1e30
    return _add(copy, "relevance", score_N, rows, len(copy.table))


def minus_999(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """A ratio from 0 to 1, or -999 where it is unknown: in `share` of the rows of one half of the users."""
    ratio_N = rng.beta(2, 3, len(copy.table))
    half = np.sort(rng.permutation(len(copy.table))[: len(copy.table) // 2])
    rows = pick(rng, half, share)
    ratio_N[rows] = -999.0
    return _add(copy, "scroll_depth", ratio_N, rows, len(half))
