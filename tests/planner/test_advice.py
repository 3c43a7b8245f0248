"""Advice at the end of a run: the setting that would help most, or that none would."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import make_workflow, write_data

from pipeline.device.device import RAM
from pipeline.planner.advice import Advice, Measured, advise
from pipeline.preflight.checked import Checked
from pipeline.preflight.setup import check, divide_caps
from pipeline.workflow import Commit, Storage, Workflow

SMALL = {"device": "128 KiB", "host": "120 KiB"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("advice"), num_train=4000, num_keys=3000)


def checked_of(workflow: Workflow) -> Checked:
    return check(workflow, RAM, lambda line: None)


def advice_for(workflow: Workflow, waits: dict[str, float], **parts: float) -> Advice:
    """Advice after 100 s with these waits."""
    checked = checked_of(workflow)
    setup = divide_caps(checked, RAM, lambda line: None)
    try:
        return advise(checked, RAM, Measured(100.0, waits, parts, setup))
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


def test_no_more_is_promised_than_training_waited(root: Path) -> None:
    """Reads that were hidden behind training save nothing."""
    workflow = make_workflow(root, storage=SMALL, batch_size=64, epochs=2)
    few = advice_for(workflow, {"train": 90.0, "disk": 10.0}, disk=200.0)
    assert 1.05 <= few.gain <= 100 / 90 + 1e-9


@pytest.mark.parametrize("waits", [{"train": 98.0, "disk": 2.0}, {"train": 40.0, "read": 60.0}, {}])
def test_without_a_wait_for_the_disk_or_commits_nothing_is_advised(root: Path, waits: dict[str, float]) -> None:
    advice = advice_for(make_workflow(root, storage=SMALL), waits)
    assert advice == Advice(
        "training hardly waited for rows or commits; `pipeline run --explain` predicts what more memory brings"
    )


def test_a_table_that_lies_in_memory_gets_no_advice_to_enlarge_it(root: Path) -> None:
    workflow = make_workflow(root, batch_size=64, epochs=2)
    advice = advice_for(workflow, {"train": 40.0, "disk": 60.0}, disk=60.0)
    assert advice.setting is None


def test_chosen_caps_are_enlarged_through_their_budget(root: Path) -> None:
    workflow = make_workflow(root, batch_size=64, epochs=2)
    workflow = workflow.model_copy(update={"storage": Storage(memory=2 << 30, host=1 << 20)})
    advice = advice_for(workflow, {"train": 40.0, "disk": 60.0}, disk=60.0)
    assert advice.setting is None, "all rows fit already"


def test_frequent_commits_are_advised_against(root: Path) -> None:
    workflow = make_workflow(root).model_copy(update={"commit": Commit(every_blocks=5)})
    advice = advice_for(workflow, {"train": 50.0, "commit": 50.0})
    assert advice.setting == "commit.every_blocks=10"
    assert advice.gain == pytest.approx(100 / 75)
