"""Studies of a tiny workflow, with trainings that are either computed as a function of their order or run in the test's
process."""

from __future__ import annotations

import math
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from pipeline.tune.main import main
from pipeline.tune.records import Order, Record, Verdict, best_so_far
from pipeline.tune.trial import verdict_of
from pipeline.tune.tuning import Processes

TEST = {"epoch": 2, "split": "test", "auc": 0.7, "ne": 1.0, "calibration": 1.0, "examples": 40}


class Ended:
    """A process that has ended."""

    returncode = 0

    def poll(self) -> int:
        return 0


def run_here(patch: pytest.MonkeyPatch) -> None:
    """Make trainings run in this process, one after another."""

    def verdict(order: Order, record: Record) -> Verdict | None:
        # The output of a separate process would go to a file.
        with redirect_stdout(StringIO()):
            return verdict_of(order, record)

    start_with(patch, verdict)


def make_up(patch: pytest.MonkeyPatch) -> None:
    """Make trainings take no time: their reports are a function of their settings, and their bounds prune them."""
    start_with(patch, lambda order, record: made_up(order))


def start_with(patch: pytest.MonkeyPatch, verdict: Any) -> None:
    def start(processes: Processes, record: Record) -> Ended:
        found = verdict(record.order(), record)
        assert found
        record.write(found)
        return Ended()

    patch.setattr(Processes, "start", start)
    patch.setattr("pipeline.tune.tuning.POLL_SECONDS", 0.0)


def made_up(order: Order) -> Verdict:
    rate, dim = math.log10(order.settings["optimizer.rows.lr"]), order.settings["model.embedding_dim"]
    if rate > -1.7:
        return Verdict(state="failed", text="the loss is not finite")
    good = 0.5 + 0.02 * (rate + 2.7) ** 2 + 0.01 / dim + 0.003 * (order.settings.get("seed", 0) * dim % 3)
    reports = {1: 0.7 + 0.01 * dim, 2: good + 0.1, 3: good + 0.05, 4: good + 0.02, 8: good, 12: good + 0.01}
    for step, value in best_so_far(reports, order.metric).items():
        if value > order.bounds.get(step, math.inf):
            return Verdict(state="pruned", reports={s: v for s, v in reports.items() if s <= step}, text=f"step {step}")
    test = None if "data.test" in order.settings else TEST | {"logloss": good}
    return Verdict(state="complete", value=good, epoch=2, reports=reports, fingerprint=f"{good}", test=test)


def trials_of(out: Path) -> list[Any]:
    """All data of a study's trials except times."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    storage = JournalStorage(JournalFileBackend(str(out / "journal.jsonl")))
    attrs = ("text", "epoch", "fingerprint")
    return [
        (t.number, t.state.name, t.params, t.values, t.intermediate_values, [t.user_attrs.get(name) for name in attrs])
        for t in optuna.load_study(study_name=None, storage=storage).get_trials()
    ]


def tune(workflow: Path, out: Path, *options: object, code: int = 0) -> None:
    assert main([str(workflow), "--out", str(out), *map(str, options)]) == code
