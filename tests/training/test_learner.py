"""Models of the user's own: any loss, any labels, any module, and always the same bits."""

import math
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import make_table, make_workflow
from sklearn.metrics import log_loss, roc_auc_score
from support.depth import some
from support.oracle.reference import Reference
from support.runs.harness import THREE_TIERS, make_driver, run
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from pipeline.errors import PipelineError
from pipeline.models import DeepFM
from pipeline.models.losses import binary_cross_entropy
from pipeline.worker import stage_runner

SCHEDULES = [{"block_batches": 1, "look_ahead": 1}, {"block_batches": 3}, {"block_batches": 16, "look_ahead": 4}]


class TwoTasks(nn.Module):
    """One output a label, and its own loss that gives the second label less weight."""

    def __init__(self, num_fields, num_numbers, embedding_dim):
        super().__init__()
        self.linear = nn.Linear(num_fields * embedding_dim + num_numbers, 2)

    def forward(self, numbers, embeddings, first_order):
        assert first_order.shape == (len(numbers), 0), "no first-order weights were asked for"
        return self.linear(torch.cat([embeddings.flatten(1), numbers], 1))

    def loss(self, output, labels, weights):
        losses = binary_cross_entropy_with_logits(output, labels, reduction="none") @ torch.tensor([1.0, 0.25])
        return losses.mean() if weights is None else (losses * weights).sum() / weights.sum()


class Deep(nn.Module):
    """Layers of the user's choice between embeddings and one logit."""

    def __init__(self, num_fields, num_numbers, embedding_dim, kind):
        super().__init__()
        width = num_fields * embedding_dim + num_numbers
        middle = {"linear": nn.Identity, "dropout": nn.Dropout, "batch_norm": lambda: nn.BatchNorm1d(4)}[kind]()
        self.layers = nn.Sequential(nn.Linear(width, 4), middle, nn.ReLU(), nn.Linear(4, 1))

    def forward(self, numbers, embeddings, first_order):
        return self.layers(torch.cat([embeddings.flatten(1), numbers], 1)).squeeze(1)


class Masks(nn.Module):
    """Keeps what dropout drew for each step."""

    drawn: ClassVar[list] = []

    def __init__(self, num_fields, num_numbers, embedding_dim):
        super().__init__()
        self.dropout = nn.Dropout()
        self.linear = nn.Linear(num_fields * embedding_dim, 1)

    def forward(self, numbers, embeddings, first_order):
        mask = self.dropout(torch.ones(64))
        if self.training:
            self.drawn.append(mask.tolist())
        return self.linear(embeddings.flatten(1)).squeeze(1)


class NotANumber(nn.Module):
    """Breaks down at the fifth step."""

    def __init__(self, num_fields, num_numbers, embedding_dim):
        super().__init__()
        self.linear = nn.Linear(num_fields * embedding_dim, 1)
        self.steps = 0

    def forward(self, numbers, embeddings, first_order):
        self.steps += 1
        return self.linear(embeddings.flatten(1)).squeeze(1) * (math.nan if self.steps == 5 else 1.0)


class OnlyNumbers(nn.Module):
    """Makes no use of what it is given for the categories."""

    def __init__(self, num_fields, num_numbers, embedding_dim):
        super().__init__()
        self.linear = nn.Linear(num_numbers, 1)

    def forward(self, numbers, embeddings, first_order):
        return self.linear(numbers).squeeze(1)


class OnlyRows(nn.Module):
    """A logistic regression: nothing to learn but the rows."""

    first_order = True

    def __init__(self, num_fields, num_numbers, embedding_dim):
        super().__init__()

    def forward(self, numbers, embeddings, first_order):
        return first_order.sum(1)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """`make_table` with a second label, "buy"."""
    root = tmp_path_factory.mktemp("learner")
    rng = np.random.default_rng(3)
    for name, count in (("train-0", 60), ("train-1", 32), ("validation", 14), ("test", 9)):
        table = make_table(rng, count, 30).append_column("buy", pa.array(rng.integers(0, 2, count), pa.int8()))
        pq.write_table(table, root / f"{name}.parquet", row_group_size=8)
    return root


def deep(root, kind, **changes):
    return make_workflow(root, kind=Deep, args={"kind": kind}, epochs=changes.pop("epochs", 1), **changes)


@pytest.mark.parametrize("weight", [None, "importance"])
def test_a_second_label_is_trained_on_and_evaluated(root, weight):
    workflow = make_workflow(root, kind=TwoTasks, args={}, weight=weight, labels=("click", "buy"))
    result = run(workflow, **THREE_TIERS)
    reference = Reference(workflow).train()
    assert result["fingerprint"] == reference.fingerprint()
    splits = [(e["split"], e["epoch"]) for e in result["epochs"]]
    assert splits == [("validation", 1), ("validation", 2), ("test", 2)]
    for metrics, (split, scores, _) in zip(result["epochs"], reference.scores, strict=True):
        examples = reference.examples(split, 0)
        weights = [example[weight] for example in examples] if weight else None
        for t, label in enumerate(("click", "buy")):
            labels = [example[label] for example in examples]
            own = np.array(scores)[:, t]
            assert metrics[f"auc_{label}"] == pytest.approx(roc_auc_score(labels, own, sample_weight=weights))
            expected = log_loss(labels, 1 / (1 + np.exp(-own.astype(np.float64))), sample_weight=weights)
            assert metrics[f"logloss_{label}"] == pytest.approx(expected)
        assert metrics["auc"] == metrics["auc_click"]


@pytest.mark.parametrize("schedule", some(SCHEDULES, SCHEDULES[2]), ids=str)
@pytest.mark.parametrize("kind", ["linear", "dropout", "batch_norm"])
def test_the_schedule_never_changes_what_a_custom_model_learns(root, client, kind, schedule):
    expected = Reference(deep(root, kind)).train().fingerprint()
    workflow = deep(root, kind, **schedule)
    assert run(workflow, **THREE_TIERS)["fingerprint"] == expected
    assert run(workflow, client, **THREE_TIERS)["fingerprint"] == expected


def test_other_use_of_torch_random_numbers_never_changes_dropout(root, monkeypatch):
    expected = run(deep(root, "dropout"), **THREE_TIERS)
    train = stage_runner.train

    def train_after_drawing(*args):
        torch.manual_seed(99)
        torch.rand(7)
        return train(*args)

    monkeypatch.setattr(stage_runner, "train", train_after_drawing)
    torch.rand(5)
    assert run(deep(root, "dropout"), **THREE_TIERS)["fingerprint"] == expected["fingerprint"]


@pytest.mark.prove
def test_dropout_is_a_function_of_step_and_seed(root):
    """Each batch's mask is another one, and the next run's with this seed are these again."""
    masks = []
    for seed in (1, 1, 2):
        Masks.drawn = []
        run(make_workflow(root, kind=Masks, args={}, epochs=1).model_copy(update={"seed": seed}))
        masks.append(Masks.drawn)
    assert len({tuple(mask) for mask in masks[0]}) == len(masks[0]) == 16
    assert masks[0] == masks[1]
    assert not {tuple(mask) for mask in masks[0]} & {tuple(mask) for mask in masks[2]}


@pytest.mark.parametrize("seed", some([2**31, 2**32, 2**63 - 1], 2**63 - 1))
def test_a_large_seed_can_train(root, seed):
    workflow = deep(root, "dropout").model_copy(update={"seed": seed})
    assert math.isfinite(run(workflow)["logloss"])


@pytest.mark.parametrize("kind", [OnlyNumbers, OnlyRows])
def test_a_model_trains_what_it_uses_and_leaves_the_rest_as_drawn(root, kind):
    workflow = make_workflow(root, kind=kind, args={})
    assert run(workflow, **THREE_TIERS)["fingerprint"] == Reference(workflow).train().fingerprint()


@pytest.mark.parametrize("kind", some(["linear", "batch_norm"], "batch_norm"))
def test_two_threads_give_the_same_bits_for_any_blocks(root, client, kind):
    expected = Reference(deep(root, kind, threads=2)).train().fingerprint()
    for schedule in SCHEDULES:
        assert run(deep(root, kind, threads=2, **schedule), client, **THREE_TIERS)["fingerprint"] == expected


@pytest.mark.parametrize("field", ["dense", "rows"])
def test_a_loss_that_is_not_finite_is_explained(root, tmp_path, field):
    workflow = make_workflow(root, block_batches=4).with_settings({f"optimizer.{field}.lr": 1e30})
    driver = make_driver(workflow, tmp_path)
    with pytest.raises(PipelineError) as caught:
        driver.run()
    said = str(caught.value)
    assert said.startswith("train of block 0 failed: FloatingPointError: the loss of batch ")
    assert "optimizer.dense.lr" in said
    assert "optimizer.rows.lr" in said
    assert not (tmp_path / "result.json").exists()


def test_the_batch_of_a_bad_loss_does_not_depend_on_blocks(root, tmp_path):
    """A user looks for the examples of that batch: its number is that of the epoch."""
    said = set()
    for block_batches in (1, 3):
        run_dir = tmp_path / str(block_batches)
        run_dir.mkdir()
        with pytest.raises(PipelineError) as caught:
            make_driver(make_workflow(root, kind=NotANumber, args={}, block_batches=block_batches), run_dir).run()
        said.add(str(caught.value).split("FloatingPointError: ")[1])
    assert len(said) == 1


class OfProbabilities(DeepFM):
    def loss(self, output, labels, weights):
        return -torch.log(output - 100.0).mean()


class Broken(DeepFM):
    def forward(self, numbers, embeddings, first):
        return super().forward(numbers, embeddings, first) / 0.0


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (OfProbabilities, r"the loss of OfProbabilities \(.*test_learner\.py, line \d+\) is nan for the first batch"),
        (Broken, r"forward of Broken \(.*test_learner\.py, line \d+\) gives outputs from -inf to inf"),
    ],
)
def test_a_first_loss_that_is_not_finite_names_the_line(root, tmp_path, kind, said):
    with pytest.raises(PipelineError, match=said) as caught:
        make_driver(make_workflow(root, kind=kind), tmp_path).run()
    assert "optimizer" not in str(caught.value).split("\n")[0]


@pytest.mark.parametrize("weights", [None, [0.5, 2.0, 0.0, 1.25]])
def test_the_default_loss_is_the_weighted_mean(weights):
    logits, labels = np.array([0.3, -2.0, 5.0, 40.0]), np.array([1.0, 0.0, 1.0, 0.0])
    losses = [math.log1p(math.exp(-x if y else x)) for x, y in zip(logits, labels, strict=True)]
    w = weights or [1.0] * 4
    expected = sum(a * b for a, b in zip(w, losses, strict=True)) / sum(w)
    tensors = [torch.tensor(logits, dtype=torch.float32), torch.tensor(labels, dtype=torch.float32)[:, None]]
    got = binary_cross_entropy(*tensors, None if weights is None else torch.tensor(weights))
    assert float(got) == pytest.approx(expected, rel=1e-6)


def test_the_displayed_loss_is_the_weighted_mean(root, tmp_path):
    """Of all examples of a block, whatever its batches weigh."""
    workflow = make_workflow(root, kind=Deep, args={"kind": "linear"}, weight="importance", epochs=1, block_batches=16)
    driver = make_driver(workflow, tmp_path)
    shown = []
    driver.progress.update = lambda done, loss: shown.append(loss)
    driver.run()
    reference = Reference(workflow).train()
    split, scores, labels = reference.scores[0]
    weights = [example["importance"] for example in reference.examples(split, 0)]
    expected = log_loss(labels, 1 / (1 + np.exp(-np.array(scores, np.float64))), sample_weight=weights)
    assert shown[1] == pytest.approx(expected, rel=1e-5)


@pytest.mark.prove
def test_bfloat16_trains_repeatably_to_a_similar_loss(small_workflow):
    """Products of the dense model alone: what comes of them is near, and repeats."""
    results = {}
    for precision in ("float32", "bfloat16"):
        workflow = small_workflow(args={"hidden": (32, 32)}, batch_size=16)
        workflow = workflow.with_settings({"model.precision": precision})
        results[precision] = [run(workflow, **THREE_TIERS) for _ in range(2)]
    for first, second in results.values():
        assert first["fingerprint"] == second["fingerprint"]
    exact, rounded = (runs[0] for runs in results.values())
    assert exact["fingerprint"] != rounded["fingerprint"]
    assert exact["logloss"] == pytest.approx(rounded["logloss"], abs=0.02)
