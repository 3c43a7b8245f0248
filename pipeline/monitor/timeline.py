"""Analysis of a run's spans: time per stage, and the share of it hidden behind training.

I intervals of one stage    J disjoint intervals
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.records import Span

F64 = NDArray[np.float64]


def stage_seconds(spans: Iterable[Span]) -> dict[str, float]:
    """Wall seconds of each stage, summed over its calls; stages in order of first appearance."""
    seconds: dict[str, float] = {}
    for span in spans:
        seconds[span.stage] = seconds.get(span.stage, 0.0) + span.stop - span.start
    return seconds


def cpu_seconds(spans: Iterable[Span]) -> dict[str, float]:
    """CPU seconds of each stage, summed over its calls (of one thread or the process, see `Span.cpu_seconds`)."""
    seconds: dict[str, float] = {}
    for span in spans:
        seconds[span.stage] = seconds.get(span.stage, 0.0) + span.cpu_seconds
    return seconds


def hidden_share(spans: Sequence[Span]) -> dict[str, float]:
    """Share (0 to 1) of each stage's wall seconds during which some `train` ran, for every stage but `train`. On a GPU
    the spans of its training, named "gpu train", are the ones that count.

    nan for a stage that took no time at all. Spans may come in any order and overlap.
    """
    stages = dict.fromkeys(span.stage for span in spans)
    train = "gpu train" if "gpu train" in stages else "train"
    busy = _union(_intervals(spans, train))
    return {stage: _share(_intervals(spans, stage), busy) for stage in stages if stage != train}


def mean_ready(spans: Iterable[Span]) -> float:
    """Mean number of blocks that were staged and waiting when a `train` began; nan without a `train`."""
    ready = [span.ready for span in spans if span.stage == "train"]
    return float(np.mean(ready)) if ready else float("nan")


def _intervals(spans: Iterable[Span], stage: str) -> F64:
    """[I, 2] start and stop of a stage's spans, in seconds."""
    pairs = [(span.start, span.stop) for span in spans if span.stage == stage]
    return np.array(pairs, np.float64).reshape(-1, 2)


def _union(intervals_I: F64) -> F64:
    """[J, 2] disjoint ascending intervals that cover the same time."""
    start, stop = intervals_I[np.argsort(intervals_I[:, 0], kind="stable")].T
    reached = np.maximum.accumulate(stop)
    begins = start > np.concatenate(([-np.inf], reached))[:-1]
    ends = np.concatenate((begins, [True]))[1:]
    return np.stack((start[begins], reached[ends]), axis=1)


def _share(intervals_I: F64, busy_J: F64) -> float:
    """Share of the intervals' total length that lies in the disjoint, ascending `busy_J`."""
    total = float((intervals_I[:, 1] - intervals_I[:, 0]).sum())
    if total <= 0:
        return float("nan")
    inside = _busy_before(intervals_I[:, 1], busy_J) - _busy_before(intervals_I[:, 0], busy_J)
    return float(np.clip(inside.sum() / total, 0.0, 1.0))


def _busy_before(at_I: F64, busy_J: F64) -> F64:
    """[I] seconds of `busy_J` before each moment."""
    begun_I = np.searchsorted(busy_J[:, 0], at_I, side="right")
    length_J = busy_J[:, 1] - busy_J[:, 0]
    # A sentinel in front, of length 0, stands for "no busy interval has begun yet".
    until = np.concatenate(([0.0], np.cumsum(length_J)))
    stop = np.concatenate(([-np.inf], busy_J[:, 1]))
    return until[begun_I] - np.maximum(stop[begun_I] - at_I, 0.0)
