"""Advice at the end of a run: the setting that would help most, or that none would."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import make_workflow, write_data
from made_up import MACHINE, WORK

from pipeline.device.device import RAM
from pipeline.planner.advice import Advice, Measured, advise
from pipeline.planner.basis import Basis
from pipeline.planner.hits import forecast
from pipeline.planner.timing import Cost
from pipeline.planner.work import Work
from pipeline.preflight.checked import Checked
from pipeline.preflight.setup import check, divide_caps
from pipeline.workflow import Commit, Storage, Workflow

SMALL = {"device": "128 KiB", "host": "120 KiB"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_data(tmp_path_factory.mktemp("advice"), num_train=4000, num_keys=3000)
    for path in root.glob("train-*.parquet"):
        pq.write_table(pq.read_table(path), path)
    return root


LONG = replace(WORK, train_batch=Cost(1e6, 1e6))
"""Training takes so long that moves are nothing beside it."""


def checked_of(workflow: Workflow) -> Checked:
    return check(workflow, RAM, lambda line: None)


def advice_for(
    workflow: Workflow, waits: dict[str, float], work: Work | None = LONG, rows_left: int = 1, **parts: float
) -> Advice:
    """Advice after 100 s with these waits. `work`: None if nothing can be predicted."""
    checked = checked_of(workflow)
    setup = divide_caps(checked, RAM, lambda line: None)
    try:
        basis = Basis(setup, MACHINE, work, forecast(setup, 5.0), dense_bytes=3000) if work else None
        return advise(checked, RAM, Measured(100.0, waits, parts, rows_left), basis)
    finally:
        checked.source.close()


def test_a_run_that_waits_for_the_disk_is_told_what_more_memory_saves(root: Path) -> None:
    workflow = make_workflow(root, storage=SMALL, batch_size=64, epochs=2)
    advice = advice_for(workflow, {"train": 40.0, "disk": 60.0}, disk=60.0)
    assert advice.setting is not None
    name, _, size = advice.setting.partition("=")
    assert (name, size) == ("storage.device", "512 KiB")
    assert 1.05 < advice.gain <= 2.5, "at most all of the wait is saved"
    assert advice.text == f"storage.device 512 KiB instead of 128 KiB: predicted {advice.gain:.2f} x"


def test_of_waits_for_the_disk_no_more_is_promised_than_training_waited(root: Path) -> None:
    """Reads that were hidden behind training save nothing."""
    workflow = make_workflow(root, storage=SMALL, batch_size=64, epochs=2)
    few = advice_for(workflow, {"train": 90.0, "disk": 10.0}, disk=200.0)
    assert 1.05 <= few.gain <= 100 / 90 + 0.005


def test_moves_that_take_time_from_training_are_saved_though_nothing_waits_for_them(root: Path) -> None:
    workflow = make_workflow(root, storage=SMALL, batch_size=64, epochs=2)
    short = replace(WORK, train_batch=Cost(1e-3, 1e-3))
    advice = advice_for(workflow, {"train": 100.0}, short)
    assert advice.setting == "storage.device=512 KiB"
    assert advice.gain > 1.2


def test_where_moves_take_next_to_nothing_more_memory_would_not_help(root: Path) -> None:
    workflow = make_workflow(root, storage=SMALL, batch_size=64, epochs=2)
    assert advice_for(workflow, {"train": 40.0, "read": 60.0}) == Advice("more memory would not help")


def test_where_no_row_left_the_device_more_memory_would_not_help(root: Path) -> None:
    advice = advice_for(make_workflow(root, storage=SMALL), {"train": 40.0, "disk": 60.0}, None, rows_left=0)
    assert advice == Advice("more memory would not help")


def test_where_nothing_can_be_predicted_nothing_is_claimed(root: Path) -> None:
    """Such as for several workers, or where the first batches cannot be tried."""
    advice = advice_for(make_workflow(root, storage=SMALL), {"train": 40.0, "disk": 60.0}, None)
    assert advice == Advice("`pipeline run --explain` predicts what more memory brings")


@pytest.mark.parametrize("storage", [None, {"memory": 2 << 30, "host": 1 << 20}], ids=["given", "chosen"])
def test_a_table_that_lies_in_memory_gets_no_advice_to_enlarge_it(root: Path, storage: dict[str, int] | None) -> None:
    workflow = make_workflow(root, batch_size=64, epochs=2)
    if storage:
        workflow = workflow.model_copy(update={"storage": Storage(**storage)})
    advice = advice_for(workflow, {"train": 40.0, "disk": 60.0}, disk=60.0)
    assert advice.setting is None


def test_frequent_commits_are_advised_against(root: Path) -> None:
    workflow = make_workflow(root).model_copy(update={"commit": Commit(every_blocks=5)})
    advice = advice_for(workflow, {"train": 50.0, "commit": 50.0}, None)
    assert advice.setting == "commit.every_blocks=10"
    assert advice.gain == pytest.approx(100 / 75)
