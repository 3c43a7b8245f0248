"""The process of one training of a study: `python -m pipeline.tune.trial STUDY NAME`. It ends with a verdict. If it is
killed and restarted, the training continues from its last commit, and the verdict is the same."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError, error_text
from pipeline.machine.signals import heed_interrupts
from pipeline.monitor.observer import CommitFacts, Observer
from pipeline.records import StageResult
from pipeline.settings.changes import override
from pipeline.storage.files import Files
from pipeline.tune.records import (
    Order,
    Record,
    Verdict,
    best_so_far,
    judged,
    lines_of,
    losses_in,
    reports_of,
    sign_of,
    validated,
)  # fmt: skip
from pipeline.workflow import Workflow, load

PR_SET_PDEATHSIG = 1


class Pruned(PipelineError):
    """Raised if a training is worse than earlier ones at the same step."""


class Watch(Observer):
    """Reports the losses of the first epoch and all validations, and raises Pruned at one beyond its bound. Bounds are
    fixed before the training starts, so that a kill changes no decision."""

    def __init__(self, order: Order, record: Record, workflow: Workflow) -> None:
        self._order, self._record, self._labels = order, record, workflow.data.labels
        self._losses: list[tuple[int, float, float]] = []
        self._examples = 0

    def on_begin(self, examples: int, history: Any, commit: CommitFacts | None) -> None:
        self._history, self._examples = history, examples
        self._losses = losses_in(self._record.losses, examples)
        # Blocks after the commit are trained again.
        Files().replace(self._record.losses, [lines_of(self._losses)])
        self._judge()

    def on_stage(self, done: StageResult) -> None:
        if (trained := done.trained) is None:
            return
        block = trained.block
        if block.trains and block.epoch == 0:
            self._examples += block.num_examples
            self._losses.append((self._examples, trained.loss * trained.weight, trained.weight))
            Files().append(self._record.losses, lines_of(self._losses[-1:]), durable=False)
            if any(self._examples - block.num_examples < mark <= self._examples for mark in self._order.marks):
                self._judge()
        elif block.split == "validation" and trained.metrics:
            self._judge()

    def on_drained(self) -> None:
        # A commit follows, so these blocks are not trained again.
        Files().append(self._record.losses, b"", durable=True)

    def reports(self) -> dict[int, float]:
        order = self._order
        values = validated(self._history.epochs, order.metric, self._labels)
        return reports_of(self._losses, order.marks, values, order.metric)

    def _judge(self) -> None:
        found = best_so_far(self.reports(), self._order.metric)
        for step, value in found.items():
            bound = self._order.bounds.get(step)
            if bound is not None and sign_of(self._order.metric) * (value - bound) > 0:
                what = f"{self._order.metric} of epoch {step // 4}" if step % 4 == 0 else f"loss at {step}/4 of epoch 1"
                raise Pruned(f"{what} is {abs(value):.5f}; the bound from earlier trials is {abs(bound):.5f}")


def main(argv: Sequence[str] | None = None) -> int:
    """Train according to the order. Exit code 0 with a verdict, even if the training failed; 130 after an interrupt."""
    out, name, parent = (sys.argv[1:] if argv is None else list(argv))[:3]
    die_with(int(parent))
    record = Record(Path(out), name)
    verdict = verdict_of(record.order(), record)
    if verdict is None:
        return 130
    record.write(verdict)
    return 0


def verdict_of(order: Order, record: Record) -> Verdict | None:
    """Train, and return the verdict; None after an interrupt."""
    watch = None
    try:
        workflow = override(load(Path(order.workflow)), order.set).with_settings(order.settings)
        watch = Watch(order, record, workflow)
        from pipeline.api import train

        heed_interrupts()
        train(workflow, order.run_dir, workers=order.workers, dashboard="off", observers=[watch]).close()
        return complete(order, record, workflow)
    except KeyboardInterrupt:
        return None
    except (ValueError, OSError, MemoryError, PipelineError) as error:
        cause: BaseException | None = error
        while cause and not isinstance(cause, Pruned):
            cause = cause.__cause__
        if cause and watch:
            return Verdict(state="pruned", reports=watch.reports(), text=str(cause))
        return Verdict(state="failed", text=error_text(error).splitlines()[0])


def complete(order: Order, record: Record, workflow: Workflow) -> Verdict:
    """Verdict of a completed training, from its result."""
    result = json.loads((Path(order.run_dir) / "result.json").read_bytes())
    values = validated(result["epochs"], order.metric, workflow.data.labels)
    if result["stopped"]:
        return Verdict(state="failed", text=result["stopped"])
    if (found := judged(values, workflow, order.metric)) is None:
        return Verdict(state="failed", text=f"{order.metric} of validation is undefined")
    test = next((epoch for epoch in result["epochs"] if epoch["split"] == "test"), None)
    return Verdict(
        state="complete", value=found[0], epoch=found[1], seconds=result["seconds"], fingerprint=result["fingerprint"],
        reports=reports_of(losses_in(record.losses), order.marks, values, order.metric), test=test,
    )  # fmt: skip


def die_with(parent: int) -> None:
    """Make the system kill this process when the study's process ends, so that no trial outlives its study."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("the study's process has ended")


if __name__ == "__main__":
    sys.exit(main())
