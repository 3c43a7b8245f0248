"""Records of a study's trainings: the order passed to a process, and the verdict that the process writes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pipeline.optim.plateau import LESS_IS_BETTER, judge
from pipeline.settings import Strict, read_json
from pipeline.storage.files import Files, refuse_links
from pipeline.workflow import Workflow

QUARTERS = 4
"""Steps per epoch: steps 1, 2 and 3 are for the first epoch's loss, and step 4 n is the validation of epoch n."""


class Order(Strict):
    """A training of a study."""

    workflow: str
    """File of the workflow, possibly FILE.py:NAME."""
    set: tuple[str, ...]
    """Arguments of --set."""
    settings: dict[str, Any]
    run_dir: str
    workers: int | None
    metric: str
    marks: tuple[int, ...]
    """Numbers of examples in the first epoch after which its loss is judged."""
    bounds: dict[int, float]
    """Worst value at each step for which the training is not pruned."""


class Verdict(Strict):
    """Outcome of a training."""

    state: Literal["complete", "pruned", "failed"]
    value: float | None = None
    epoch: int | None = None
    """Epoch, counted from 1, whose validation gave `value`."""
    reports: dict[int, float] | None = None
    """Values by step. Those within the first epoch are the mean loss so far, negated if more of the metric is
    better."""
    test: dict[str, Any] | None = None
    """Metrics of the test split, if it was scored."""
    fingerprint: str = ""
    seconds: float = 0.0
    text: str = ""
    """Reason why the training was pruned or failed."""


class Record:
    """Files of a training in the folder of a study."""

    def __init__(self, out: Path, name: str) -> None:
        self.name, self.folder = name, out / "records" / name
        self.losses, self.output = self.folder / "losses.jsonl", self.folder / "output.txt"

    def write(self, what: Order | Verdict) -> None:
        files, name = Files(), "order.json" if isinstance(what, Order) else "verdict.json"
        refuse_links([self.folder.parent, self.folder, self.output])
        files.make_folder(self.folder)
        files.replace(self.folder / name, [what.model_dump_json(indent=1).encode()])

    def order(self) -> Order:
        return read_json(Order, (self.folder / "order.json").read_bytes())

    def verdict(self) -> Verdict | None:
        """None while the training runs. Raises ValueError if the file is damaged."""
        path = self.folder / "verdict.json"
        return read_json(Verdict, path.read_bytes()) if path.is_file() else None


def metric_of(workflow: Workflow) -> str:
    """Metric by which trials are judged: the metric that chooses a run's best epoch, if the workflow names one; else
    logloss, or MSE for a label that is any number."""
    if workflow.schedule.plateau:
        return workflow.schedule.plateau.metric
    return "logloss" if workflow.data.all_tasks[0].is_binary else "mse"


def sign_of(metric: str) -> int:
    """1 if less of the metric is better, else -1."""
    return 1 if metric.partition(":")[0] in LESS_IS_BETTER else -1


def validated(epochs: Sequence[Mapping[str, Any]], metric: str, labels: Sequence[str]) -> list[float]:
    """Values of a metric by epoch; nan where it is undefined."""
    name, _, label = metric.partition(":")
    key = f"{name}_{label}" if label and len(labels) > 1 else name
    values = [epoch.get(key) for epoch in epochs if epoch["split"] == "validation"]
    return [math.nan if value is None else float(value) for value in values]


def judged(values: Sequence[float], workflow: Workflow, metric: str) -> tuple[float, int] | None:
    """Value of a training and its epoch, counted from 1: the best epoch if the workflow stops or tests by it, else the
    last. None if it is undefined."""
    plateau = workflow.schedule.plateau
    best = judge(metric.partition(":")[0], values, plateau.min_gain).best if plateau else len(values) - 1
    if best is None or best < 0 or not math.isfinite(values[best]):
        return None
    return values[best], best + 1


def losses_in(path: Path, before: float = math.inf) -> list[tuple[int, float, float]]:
    """Read the blocks of the first epoch up to `before` examples: number of examples up to the block's end, sum of its
    losses, and its weight. Skips an unfinished last line left by a kill."""
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    blocks = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return [(end, loss, weight) for end, loss, weight in blocks if end <= before]


def lines_of(losses: Sequence[tuple[int, float, float]]) -> bytes:
    """Lines in the format that `losses_in` reads."""
    return "".join(f"{json.dumps(block)}\n" for block in losses).encode()


def reports_of(
    losses: Sequence[tuple[int, float, float]], marks: Sequence[int], values: Sequence[float], metric: str
) -> dict[int, float]:
    """Values by step: the mean loss up to the first block that reaches each mark, then the validations."""
    reports, sign = {}, sign_of(metric)
    total = weights = 0.0
    for end, loss, weight in losses:
        total, weights = total + loss, weights + weight
        for step, mark in enumerate(marks, start=1):
            if end >= mark and step not in reports and weights:
                reports[step] = sign * total / weights
    reports |= {QUARTERS * n: value for n, value in enumerate(values, start=1)}
    return {step: value for step, value in reports.items() if math.isfinite(value)}


def best_so_far(reports: Mapping[int, float], metric: str) -> dict[int, float]:
    """Reports in which each validation is replaced by the best so far."""
    best, found = None, {}
    for step in sorted(reports):
        value = reports[step]
        if step % QUARTERS == 0:
            value = best = value if best is None else min(best, value, key=lambda one: sign_of(metric) * one)
        found[step] = value
    return found
