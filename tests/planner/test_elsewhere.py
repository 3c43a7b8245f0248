"""Costs on a machine that is not here: the operations of the model, counted, and its rates."""

from dataclasses import replace

import pytest
from made_machines import LAPTOP

from pipeline.device.device import RAM
from pipeline.models import DNN
from pipeline.planner.elsewhere import count_operations, work_elsewhere
from pipeline.preflight.setup import set_up


@pytest.fixture
def opened(small_workflow):
    workflow = small_workflow(kind=DNN, args={"hidden": (32, 16)})
    setup, source = set_up(workflow, RAM, print)
    yield setup, source
    source.close()


def test_products_of_an_mlp_are_counted_forward_and_backward(opened):
    setup, _ = opened
    fields, numbers = len(setup.workflow.data.categories), len(setup.workflow.data.numbers)
    inputs = fields * setup.workflow.model.embedding_dim + numbers
    products = inputs * 32 + 32 * 16 + 16
    counted = count_operations(setup, 1000)
    assert counted.flops == pytest.approx(1000 * 2 * 3 * products, rel=0.05)
    assert counted.calls > 6
    assert count_operations(setup, 2000).flops == 2 * counted.flops


def test_a_step_takes_the_longer_of_products_and_bytes_and_every_operation_its_time(opened):
    setup, source = opened
    counted = count_operations(setup, setup.workflow.schedule.batch_size)

    def step(**rates):
        machine = LAPTOP.model_copy(update={"rates": LAPTOP.rates.model_copy(update=rates)})
        return work_elsewhere(setup, source, machine).train_batch.seconds

    fast = {"flops_per_second": 1e30, "memory_bytes_per_second": 1e30, "operation_seconds": 0.0}
    assert step(**fast) == pytest.approx(0, abs=1e-12)
    assert step(**fast | {"flops_per_second": 10.0}) == pytest.approx(counted.flops / 10)
    assert step(**fast | {"operation_seconds": 0.5}) == pytest.approx(counted.calls * 0.5)
    assert step(**fast | {"memory_bytes_per_second": 10.0}) > counted.num_bytes / 10


def test_bfloat16_has_a_rate_of_its_own(opened):
    setup, source = opened
    model = setup.workflow.model.model_copy(update={"precision": "bfloat16"})
    narrow = replace(setup, workflow=setup.workflow.model_copy(update={"model": model}))
    rates = LAPTOP.rates.model_copy(update={"bfloat16_flops_per_second": 1.0})
    work = work_elsewhere(narrow, source, LAPTOP.model_copy(update={"rates": rates}))
    assert work.train_batch.seconds > 1e3 * work_elsewhere(setup, source, LAPTOP).train_batch.seconds
