"""Plain torch, which `benchmarks.accuracy` compares runs with, trains on the same examples from the same weights."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from support.oracle.reference import Reference

from benchmarks.accuracy.plain_torch import PlainTorch
from benchmarks.large_batch.data import Planted, ensure
from benchmarks.once import Quiet, once, read, train
from pipeline.models import DNN, LR, DeepFM
from pipeline.settings.optimizer import Adam, CowClip, DenseAdam, Optimizer
from pipeline.workflow import Category, Data, Model, Schedule, Storage, Workflow

PLANTED = Planted(3000, 1000, (3, 4, 5))
"""So few keys that every batch holds all of them: then rows that are absent cannot make a difference."""


@pytest.fixture
def make_workflow(tmp_path):
    ensure(PLANTED, tmp_path / "data")

    def make(kind=DeepFM, rows=None, dim=4, **others):
        return Workflow(
            name="plain",
            data=Data(
                root=tmp_path / "data", train=("train/*.parquet",), labels=("label",),
                categories=tuple(Category(name=f"c{f}") for f in range(3)), shuffle_window=1 << 10,
            ),
            model=Model(kind=kind, embedding_dim=dim, args={} if kind is LR else {"hidden": (8,)}),
            optimizer=Optimizer(rows=rows or Adam(eps_place="torch"), dense=DenseAdam(), **others),
            storage=Storage(device="1 MiB", host="1 MiB", disk="64 MiB", read="16 MiB", map="1 MiB", chunk_rows=1024),
            schedule=Schedule(batch_size=200, epochs=2, block_batches=1, threads=1),
            seed=7,
        )  # fmt: skip

    return make


@pytest.mark.prove
@pytest.mark.parametrize(("kind", "dim"), [(DeepFM, 4), (DNN, 5), (LR, 0)])
def test_each_step_has_the_loss_of_the_pipeline(make_workflow, tmp_path, kind, dim):
    progress = Quiet()
    train(make_workflow(kind, dim=dim), tmp_path / "run", progress, serial=True)
    losses = PlainTorch(make_workflow(kind, dim=dim)).losses(25)
    assert len(progress.losses) == 30
    np.testing.assert_allclose(losses, progress.losses[:25], atol=2e-6)
    assert losses[-1] < losses[0]
    assert not (tmp_path / "run").exists()


def test_examples_come_in_the_order_of_the_plain_trainer(make_workflow):
    workflow = make_workflow()
    path = workflow.data.root / "train" / "part-0.parquet"
    pq.write_table(pq.read_table(path), path, row_group_size=700)
    plain = PlainTorch(workflow)
    labels_N, sizes = plain._splits["train"].labels_N, plain._splits["train"].group_sizes
    for epoch in range(2):
        expected = [example["label"] for example in Reference(workflow).examples("train", epoch)]
        assert labels_N[torch.from_numpy(plain._order(sizes, epoch))].tolist() == expected


def test_l2_moves_absent_rows_and_all_gradients_are_clipped(make_workflow):
    plain = PlainTorch(make_workflow(rows=Adam(l2=100.0, eps_place="torch"), max_grad_norm=0.01))
    before = plain.model.embedding.weight.detach().clone()
    plain.step(torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1))
    # By Adam's first step each row moves by about the learning rate, against its sign: its gradient is nothing but L2.
    moved = plain.model.embedding.weight.detach() - before
    assert torch.equal(moved[1:].sign(), -before[1:].sign())
    grads = [parameter.grad for parameter in plain.model.parameters() if parameter.grad is not None]
    assert torch.linalg.vector_norm(torch.stack([g.norm() for g in grads])).item() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("rows", [Adam(), Adam(eps_place="torch", clip=CowClip())])
def test_settings_without_a_plain_form_are_refused(make_workflow, rows):
    with pytest.raises(ValueError, match="plain torch supports only Adam"):
        PlainTorch(make_workflow(rows=rows))


def test_a_part_is_run_until_it_succeeds_and_never_again(tmp_path):
    def fail():
        raise RuntimeError("again")

    path = tmp_path / "part.json"
    with pytest.raises(RuntimeError):
        once(path, fail)
    assert read(path) is None
    once(path, lambda: {"auc": float("nan")})
    once(path, fail)
    assert read(path) == {"auc": None}
    assert list(tmp_path.iterdir()) == [path]
