"""What --explain says of dense semantics."""

import pytest
from conftest import make_workflow

from pipeline.preflight.dense_cost import dense_cost
from pipeline.settings.optimizer import Adam, Ftrl, Optimizer, Sgd
from pipeline.training.build import row_layout


def told(tmp_path, rows):
    workflow = make_workflow(tmp_path).model_copy(update={"optimizer": Optimizer(rows=rows)})
    return dense_cost(workflow, row_layout(workflow), 100, 1100)


@pytest.mark.parametrize("rows", [Adam(), Adam(l2=0.1), Sgd(semantics="dense"), Ftrl(semantics="dense", l2=0.1)])
def test_rows_that_do_not_move_have_no_dense_cost(tmp_path, rows):
    assert told(tmp_path, rows) is None


def test_sgd_pays_one_power_for_all_missed_steps(tmp_path):
    assert "however many steps were missed" in told(tmp_path, Sgd(semantics="dense", l2=0.1))


def test_the_missed_steps_of_a_batch_are_reported(tmp_path):
    text = told(tmp_path, Adam(semantics="dense", l2=1e-5))
    assert "1,100 keys, a batch 100 of them: a step catches up at most 1,000 missed ones" in text
    assert "unstable" not in text
    assert "a row needs at most 200" not in text
    assert "lr * l2 / eps is 5,000" in told(tmp_path, Adam(semantics="dense", l2=0.05))
    assert "a row needs at most 200" in told(tmp_path, Adam(semantics="dense"))
