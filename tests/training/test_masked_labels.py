"""Labels that not every example has: they count neither in the loss nor in the metrics, whatever the tiers and
workers."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from conftest import make_workflow
from support.data.parquet_files import rewritten, with_columns
from support.depth import some
from support.oracle.reference import Reference
from support.runs.harness import THREE_TIERS, run

from pipeline.api import train
from pipeline.errors import PipelineError
from pipeline.metrics.evaluation import Evaluation
from pipeline.models import AITM, ESMM, MMoE
from pipeline.models.losses import binary_cross_entropy
from pipeline.workflow import Category, Task

LABELS = ("click", "bought")
BOUGHT = {
    "clicks": Task(label="bought", where="click", weight=0.3),
    "nulls": Task(label="bought", nulls=True),
    "both": Task(label="bought", where="click", nulls=True),
}


def other_bought(bought_of):
    """A change of a table: to the values of `bought` that `bought_of` returns of each row's number, click and
    bought."""

    def change(table):
        rows = zip(*(table[name].to_pylist() for name in LABELS), strict=True)
        bought = [bought_of(n, *row) for n, row in enumerate(rows)]
        return with_columns(table, bought=pa.array(bought, pa.int8()))

    return change


WITH_NULLS = other_bought(lambda n, click, bought: None if n % 5 == 3 else bought)


def make(root, *tasks, **changes):
    settings = {"kind": MMoE, "args": {"hidden": (6,), "tower": (4,), "experts": 2}, "labels": LABELS, "epochs": 1}
    return make_workflow(root, **settings | changes).with_settings({"data.tasks": tasks})


@pytest.mark.parametrize("name", some(BOUGHT, "clicks", "both"))
@pytest.mark.parametrize("weight", some([None, "importance"], None))
def test_tiers_change_no_bit_of_masked_labels(name, weight, data_root, tmp_path):
    root = rewritten(data_root, tmp_path, WITH_NULLS) if BOUGHT[name].nulls else data_root
    workflow = make(root, BOUGHT[name], weight=weight)
    expected = Reference(workflow).train().fingerprint()
    assert run(workflow, **THREE_TIERS)["fingerprint"] == expected
    other = workflow.with_settings({"schedule.block_batches": 5, "schedule.look_ahead": 1})
    assert run(other)["fingerprint"] == expected
    assert BOUGHT[name].nulls or run(make(root, weight=weight))["fingerprint"] != expected


@pytest.mark.parametrize("kind", [ESMM, AITM])
def test_losses_of_several_labels_take_masks(kind, data_root):
    args = {"hidden": (6,)} | ({"tower": (4,)} if kind is AITM else {})
    workflow = make(data_root, BOUGHT["clicks"], kind=kind, args=args)
    assert run(workflow, **THREE_TIERS)["fingerprint"] == Reference(workflow).train().fingerprint()


def test_a_label_is_never_read_of_examples_without_it(data_root, tmp_path):
    """Nor is a null there an error."""
    workflow = make(data_root, BOUGHT["clicks"])
    rewritten(data_root, tmp_path, other_bought(lambda n, click, bought: bought if click else None))
    other = workflow.with_settings({"data.root": tmp_path})
    assert run(other)["fingerprint"] == run(workflow)["fingerprint"]


def test_a_null_of_an_example_that_has_the_label_is_an_error(data_root, tmp_path):
    workflow = make(rewritten(data_root, tmp_path, WITH_NULLS), BOUGHT["clicks"])
    with pytest.raises(PipelineError, match=r"\d+ nulls where 'click' is 1, the first at row \d+"):
        run(workflow)


def test_a_batch_without_any_example_of_a_label_has_loss_0():
    logits, labels = torch.randn(3, 2, requires_grad=True), torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    weights = torch.tensor([[1.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
    loss = binary_cross_entropy(logits, labels, weights)
    loss.sum().backward()
    assert loss[1] == 0
    assert not logits.grad[:, 1].any()
    alone = binary_cross_entropy(logits[:, 0], labels[:, :1], weights[:, 0])
    assert float(loss[0].detach()) == pytest.approx(float(alone.detach()))


def test_metrics_of_a_label_are_over_the_examples_that_have_it():
    rng = np.random.default_rng(5)
    scores, weights = rng.standard_normal((40, 2)).astype(np.float32), rng.random(40).astype(np.float32)
    labels = rng.integers(0, 2, (40, 2)).astype(np.float32)
    has = rng.random(40) < 0.4
    labels[~has, 1] = np.nan
    groups = rng.integers(0, 4, 40).astype(np.uint64)
    both, alone = Evaluation(LABELS, grouped=True), Evaluation(("bought",), grouped=True)
    for part in (slice(0, 17), slice(17, 40)):
        both.add(scores[part], labels[part], weights[part], groups[part])
    alone.add(scores[has, 1:], labels[has, 1:], weights[has], groups[has])
    found, expected = both.result(), alone.result()
    assert found["examples_bought"] == expected["examples"] == has.sum() < found["examples"] == 40
    assert all(found[f"{name}_bought"] == pytest.approx(value, rel=1e-12) for name, value in expected.items())


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (
            Task(label="bougth"),
            r"data.tasks\[0\].label is 'bougth', which is not in data.labels; did you mean 'bought'",
        ),
        (Task(label="click", where="bought"), r"where is 'bought'; expected a label that comes before 'click'"),
        (
            Task(label="bought", where="bought"),
            r"expected a label that comes before 'bought'.*: click",
        ),
    ],
)
def test_a_task_that_fits_no_labels_is_refused(task, said, data_root):
    with pytest.raises(ValueError, match=said):
        make(data_root, task)


def test_conversions_are_calibrated_only_if_masked(tmp_path):
    """Users buy in 30 % of their clicks, and click in 20 % of the examples. A model that is trained on all examples
    predicts the share of all of them for the clicked ones."""
    rng = np.random.default_rng(2)
    for name, size in (("train", 6000), ("test", 3000)):
        user, item = rng.integers(0, 20, (2, size))
        click = rng.random(size) < 0.1 + 0.2 * (item % 2)
        bought = click & (rng.random(size) < 0.1 + 0.4 * (user % 2))
        pq.write_table(
            pa.table({"user": user, "item": item, "click": click, "bought": bought}), tmp_path / f"{name}.parquet"
        )
    clicked = pq.read_table(tmp_path / "test.parquet").filter(pc.field("click"))
    categories = (Category(name="user"), Category(name="item"))
    found = {}
    for name, tasks in (("masked", (BOUGHT["clicks"],)), ("all", ())):
        workflow = make(tmp_path, *tasks, categories=categories, batch_size=200, epochs=3)
        workflow = workflow.with_settings({"data.numbers": (), "data.validation": ()})
        with train(workflow, tmp_path / name, serial=True, verbose=False) as run:
            predicted = run.predict(clicked)["bought.probability"].to_numpy()
            found[name] = float(predicted.mean()) / float(clicked["bought"].to_numpy().mean())
    assert found["masked"] == pytest.approx(1, abs=0.15)
    assert found["all"] < 0.5
