"""History of a run so far: kept by the driver, stored in every commit, and the larger part of `result.json`."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pipeline.metrics.totals import DiskTotals, TierTotals
from pipeline.monitor.timeline import StageTimes
from pipeline.records import BlockResult, StageResult
from pipeline.spans.passes import SPAN


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
            span = {"span": self.spans[block.span], "trained": self.trained} if block.split == SPAN else {}
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
    last: Mapping[str, Any] = next((e for e in reversed(epochs) if e.get("split") != "train"), {})
    return {name: last.get(name) for name in ("auc", "logloss", "gauc", "split")}


def json_value(value: Any) -> Any:
    """Value that JSON can represent: non-finite numbers become null."""
    if isinstance(value, dict):
        return {key: json_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [json_value(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
