"""History of a run so far: kept by the driver, stored in every commit, and the larger part of `result.json`."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.metrics.totals import DiskTotals, TierTotals
from pipeline.records import BlockResult, StageCall, StageResult
from pipeline.spans.passes import ARRIVAL, SPAN, UNJUDGED

F64 = NDArray[np.float64]
Interval = tuple[str, float, float]
"""Stage, start and stop of one call."""
AGAIN = "scored_again"
"""Key of an entry of `History.epochs` if the same span was scored again later."""
CALLS_KEPT = 2048
"""Number of recent calls that are kept: more than the blocks in flight can have."""


class History:
    """Counts over all sessions of a run; stage times and steps cover this session only."""

    def __init__(self, data: Mapping[str, str] | None = None) -> None:
        """`data`: checksum of each split's data, stored with the split's metrics."""
        self._data = data or {}
        self.times = StageTimes()
        self.tiers = TierTotals()
        self.disk = DiskTotals()
        self.epochs: list[dict[str, Any]] = []
        self.trained = 0
        """Number of training examples."""
        self.spans: Mapping[int | None, str] = {}
        """Name of each span of the training data, by number."""
        self.steps = 0
        """Number of steps in this session."""
        self._counted_from = 0
        """Number of examples of the epoch that earlier sessions trained on; its metrics do not count them."""
        self._seconds_before = 0.0
        self._begun = time.perf_counter()

    def begin(self) -> None:
        """Start the clock of this session."""
        self._begun = time.perf_counter()

    @property
    def ran(self) -> bool:
        """True if a stage ran in this session."""
        return bool(self.times.seconds)

    @property
    def seconds(self) -> float:
        """Seconds of this session and all earlier ones."""
        # If the clock was set back, the session counts as 0: a commit with a negative time would be rejected.
        return self._seconds_before + max(0.0, time.perf_counter() - self._begun)

    def add(self, done: StageResult) -> None:
        if done.call:
            self.times.add(done.call)
        if done.moves:
            self.tiers.add(done.moves)
        if done.trained:
            self._add_trained(done.trained)

    def _add_trained(self, trained: BlockResult) -> None:
        block = trained.block
        if block.trains:
            if not self.steps or block.first_batch == 0:
                self._counted_from = block.first_example
            self.trained += block.num_examples
            self.steps += block.num_batches
        if trained.metrics:
            data = {"data": self._data[block.split]} if block.split in self._data else {}
            span = {"span": self.spans[block.span], "trained": self.trained} if block.split in (SPAN, ARRIVAL) else {}
            for entry in self.epochs if span else ():
                # Its files have changed, or it was scored at its arrival, by an earlier version.
                same = (entry["split"], entry.get("span")) == (block.split, span["span"])
                entry |= {AGAIN: True} if same else {}
            rest = {"from_example": self._counted_from + 1} if block.trains and self._counted_from else {}
            self.epochs.append({"epoch": block.round, "split": block.split, **trained.metrics, **rest, **data, **span})

    def validated(self, metric: str) -> list[float]:
        """Values of a metric on the validation split, by epoch."""
        return [epoch[metric] for epoch in self.epochs if epoch["split"] == "validation"]

    def state(self) -> dict[str, Any]:
        """State for a commit; `load` restores it."""
        return json_value({
            "epochs": self.epochs, "trained": self.trained, "seconds": self.seconds, "tiers": self.tiers.counts(),
            "disk": asdict(self.disk),
        })  # fmt: skip

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        # `json_value` turned every nan into null.
        self.epochs = [{k: math.nan if v is None else v for k, v in epoch.items()} for epoch in state["epochs"]]
        self.trained = state["trained"]
        self._seconds_before = state["seconds"]
        self.tiers.load(state["tiers"])
        self.disk = DiskTotals(**state["disk"])

    def report(self) -> dict[str, Any]:
        """The part of `result.json` that depends only on the history. Its metrics are those of the last evaluation,
        never of the training split, which is measured while the model still changes."""
        seconds = self.seconds
        return {
            **last_evaluation(self.epochs),
            "examples": self.trained,
            "seconds": seconds,
            "examples_per_second": self.trained / seconds if seconds else math.nan,
            "stages": dict(self.times.seconds),
            "cpu_seconds": dict(self.times.cpu_seconds),
            "hidden": self.times.hidden(),
            "ready": self.times.ready(),
            "epochs": self.epochs,
        }


def last_evaluation(epochs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Main metrics of a run: those of its last evaluation, with the name of the split."""
    last = last_judged(epochs)
    return {name: last.get(name) for name in ("auc", "logloss", "gauc", "split")}


def last_judged(epochs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Entry of the last evaluation; empty if there is none."""
    return next((entry for entry in reversed(epochs) if entry.get("split") not in UNJUDGED), {})


def json_value(value: Any) -> Any:
    """Value that JSON can represent: non-finite numbers become null."""
    if isinstance(value, dict):
        return {key: json_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [json_value(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class StageTimes:
    """Sums over the calls of a session, which may overlap and arrive in any order. Memory does not grow with the number
    of calls, except on a GPU: its calls arrive when the pipeline drains, so all calls since the last drain are kept."""

    def __init__(self, calls: Iterable[StageCall] = ()) -> None:
        self.seconds: dict[str, float] = {}
        """Wall seconds of each stage, summed over its calls; stages in order of first appearance."""
        self.cpu_seconds: dict[str, float] = {}
        """CPU seconds of each stage (of a thread or the process, see `StageCall.cpu_seconds`)."""
        self._hidden: dict[str, float] = {}
        self._ready = self._trains = 0
        self._kept: list[Interval] = []
        """Calls, or tails of calls, whose hidden part is not known yet."""
        for call in calls:
            self.add(call)

    def add(self, call: StageCall) -> None:
        self.seconds[call.stage] = self.seconds.get(call.stage, 0.0) + call.stop - call.start
        self.cpu_seconds[call.stage] = self.cpu_seconds.get(call.stage, 0.0) + call.cpu_seconds
        if call.stage == "train":
            self._ready, self._trains = self._ready + call.ready, self._trains + 1
        self._kept.append((call.stage, call.start, call.stop))
        if len(self._kept) >= 2 * CALLS_KEPT and not self._on_gpu:
            # A task in flight may have started before tasks that have already ended.
            self._sum_until(min(start for _, start, _ in self._kept[-CALLS_KEPT:]))

    def drained(self) -> None:
        """Sum up all calls. No task may be in flight."""
        self._sum_until(np.inf)

    def hidden(self) -> dict[str, float]:
        """Share (0 to 1) of the wall seconds of each stage other than `train` during which a `train` ran. On a GPU, the
        calls named "gpu train" count instead.

        nan for a stage that took no time. Calls `drained`.
        """
        self.drained()
        return {
            stage: min(1.0, self._hidden.get(stage, 0.0) / seconds) if seconds > 0 else float("nan")
            for stage, seconds in self.seconds.items()
            if stage != self._training
        }

    def ready(self) -> float:
        """Mean number of blocks that were staged and waiting when a `train` started; nan without a `train`."""
        return self._ready / self._trains if self._trains else float("nan")

    @property
    def _on_gpu(self) -> bool:
        # Rows are uploaded only to a GPU.
        return "upload" in self.seconds or "gpu train" in self.seconds

    @property
    def _training(self) -> str:
        return "gpu train" if self._on_gpu else "train"

    def _sum_until(self, moment: float) -> None:
        """Add up the hidden time before a moment, and keep the calls after it."""
        past = [(stage, start, min(stop, moment)) for stage, start, stop in self._kept if start < moment]
        self._kept = [(stage, max(start, moment), stop) for stage, start, stop in self._kept if stop > moment]
        busy = _union(_intervals(past, self._training))
        for stage in {stage for stage, *_ in past}:
            self._hidden[stage] = self._hidden.get(stage, 0.0) + _inside(_intervals(past, stage), busy)


def _intervals(calls: Iterable[Interval], stage: str) -> F64:
    """[I, 2] start and stop of a stage's calls, in seconds."""
    pairs = [(start, stop) for of, start, stop in calls if of == stage]
    return np.array(pairs, np.float64).reshape(-1, 2)


def _union(intervals_I: F64) -> F64:
    """[J, 2] disjoint ascending intervals that cover the same time."""
    start, stop = intervals_I[np.argsort(intervals_I[:, 0], kind="stable")].T
    reached = np.maximum.accumulate(stop)
    begins = start > np.concatenate(([-np.inf], reached))[:-1]
    ends = np.concatenate((begins, [True]))[1:]
    return np.stack((start[begins], reached[ends]), axis=1)


def _inside(intervals_I: F64, busy_J: F64) -> float:
    """Seconds of the intervals that overlap `busy_J`, which is disjoint and ascending."""
    inside_I = _busy_before(intervals_I[:, 1], busy_J) - _busy_before(intervals_I[:, 0], busy_J)
    return max(0.0, float(inside_I.sum()))


def _busy_before(at_I: F64, busy_J: F64) -> F64:
    """[I] seconds of `busy_J` before each time."""
    begun_I = np.searchsorted(busy_J[:, 0], at_I, side="right")
    length_J = busy_J[:, 1] - busy_J[:, 0]
    # A leading sentinel of length 0 means "no busy interval has started yet".
    until = np.concatenate(([0.0], np.cumsum(length_J)))
    stop = np.concatenate(([-np.inf], busy_J[:, 1]))
    return until[begun_I] - np.maximum(stop[begun_I] - at_I, 0.0)
