"""The rehearsal: every cost of a workflow's own work is measured with its real model and data, and nothing is left."""

from dataclasses import replace

import pytest
from support.data.round_costs import MACHINE
from support.depth import some

from pipeline.device.device import RAM
from pipeline.planner.work import measure_work
from pipeline.preflight.setup import set_up


def measured(workflow, folder, world=1, **sizes):
    """What is measured of a workflow in a folder, with these sizes in place of those that fit."""
    setup, source = set_up(workflow, RAM, print, world)
    fit = replace(setup.fit, sizes=replace(setup.fit.sizes, **sizes))
    try:
        return measure_work(replace(setup, fit=fit), source, RAM, folder, MACHINE)
    finally:
        source.close()


CHANGES = [{}, {"look_ahead": 1, "block_batches": 1}, {"batch_size": 1000}, {"batch_size": 1}]


@pytest.mark.parametrize("changes", some(CHANGES, CHANGES[0]))
def test_every_cost_is_measured_and_nothing_is_left(small_workflow, tmp_path, changes):
    work = measured(small_workflow(**changes), tmp_path)
    for cost in (work.read_example, work.dedup_value, work.first_row, work.train_batch, work.score_batch):
        assert cost.seconds > 0
    assert 0 <= work.slowdown <= 1
    assert 3 <= work.values_of_example <= 9, "three single values and two short lists"
    assert work.keys_of_batch > 0
    assert work.example_bytes > 8 * work.values_of_example
    assert 50 << 20 < work.process_bytes < 8 << 30
    assert list(tmp_path.iterdir()) == []


def test_a_worker_is_measured_with_its_part_of_a_batch(small_workflow, tmp_path):
    workflow = small_workflow(batch_size=40)
    alone, of_four = measured(workflow, tmp_path), measured(workflow, tmp_path, world=4)
    assert of_four.keys_of_batch < alone.keys_of_batch


def test_a_first_batch_that_is_refused_cannot_be_measured(small_workflow, tmp_path):
    with pytest.raises(ValueError, match=r"the key map would need .* and has 1 B"):
        measured(small_workflow(), tmp_path, map_bytes=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("policy", ["clock", "foresight"])
def test_a_refused_later_batch_leaves_the_costs_of_the_first(small_workflow, tmp_path, policy):
    workflow = small_workflow(storage={"device_policy": policy})
    work = measured(workflow, tmp_path, device_rows=150, host_rows=20, disk_chunks=10)
    assert work.train_batch.seconds > 0


@pytest.mark.prove
def test_a_compiled_model_is_waited_for(small_workflow, tmp_path):
    workflow = small_workflow()
    eager = measured(workflow, tmp_path)
    compiled = workflow.with_settings({"model.compile": True, "model.compile_cache": tmp_path / "cache"})
    compiled = measured(compiled, tmp_path)
    assert eager.compile_seconds == 0 < compiled.compile_seconds
