"""Every model trains through three tiers to the bits of the plain trainer."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import make_workflow
from support.depth import some
from support.oracle.reference import Reference
from support.runs.harness import THREE_TIERS, run
from test_models import SMALL, labels_of

from pipeline.models import LR, SharedBottom
from pipeline.serving.dense_files import exported, onnx_bytes, quiet
from pipeline.serving.onnx_model import OnnxDense
from pipeline.training.build import build_model, row_layout
from pipeline.workflow import Category


@pytest.mark.parametrize("name", some(SMALL, "DCNv2_stacked", "DeepFM", "FCN", "LR", "AITM"))
def test_tiers_never_change_what_a_model_learns(name, small_workflow):
    kind, args, _ = SMALL[name]
    workflow = small_workflow(kind=kind, args=args, epochs=1, labels=labels_of(name))
    result = run(workflow, **THREE_TIERS)
    assert result["tiers"]["disk"]["rows_in"] > 0
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()


@pytest.mark.parametrize("name", some(SMALL, "PLE"))
def test_onnx_gives_the_logits_of_torch(name, tmp_path):
    """Of another number of examples than the exporter traced."""
    pytest.importorskip("onnxruntime")
    kind, args, _ = SMALL[name]
    workflow = make_workflow(tmp_path, kind=kind, args=args, labels=labels_of(name))
    model = build_model(workflow).eval()
    with quiet():
        content = onnx_bytes(exported(SimpleNamespace(workflow=workflow, layout=row_layout(workflow)), model))
    fields, first_order = len(workflow.data.categories), getattr(kind, "first_order", False)
    shapes = (7, len(workflow.data.numbers)), (7, fields, 3), (7, fields if first_order else 0)
    given = [np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in shapes]
    with torch.inference_mode():
        expected = model(*map(torch.from_numpy, given)).numpy()
    assert OnnxDense(content, 1)(*given) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_rows_without_embeddings_train(small_workflow):
    workflow = small_workflow(kind=LR, args={}, embedding_dim=0)
    results = [run(workflow, **sizes) for sizes in (THREE_TIERS, {})]
    expected = Reference(workflow).train()
    assert {result["fingerprint"] for result in results} == {expected.fingerprint()}
    assert any(row["w"].any() for row in expected.rows.values())


@pytest.mark.parametrize(
    "changes",
    some([{"batch_norm": True}, {"dropout": 0.4}, {"activation": "gelu", "init": "xavier"}], {"batch_norm": True}),
)
def test_an_option_of_the_deep_part_trains_alike_in_any_schedule(changes, small_workflow):
    args = {"hidden": (8, 8), **changes}
    workflow = small_workflow(args=args, epochs=1)
    expected = Reference(workflow).train().fingerprint()
    for schedule in ({"block_batches": 1, "look_ahead": 1}, {"block_batches": 16}):
        assert run(small_workflow(args=args, epochs=1, **schedule), **THREE_TIERS)["fingerprint"] == expected
    assert expected != run(small_workflow(args={"hidden": (8, 8)}, epochs=1))["fingerprint"]


class OwnOutputs(SharedBottom):
    """A model of one's own with an output for each label, and no loss."""

    def forward(self, numbers, embeddings, first_order):
        return super().forward(numbers, embeddings, first_order) + 0


@pytest.mark.parametrize("kind", some([SharedBottom, OwnOutputs], OwnOutputs))
def test_several_labels_are_learned_without_a_loss_of_ones_own(kind, small_workflow, tmp_path):
    """Each label depends on its own category."""
    rng = np.random.default_rng(3)
    table = {name: rng.integers(0, 12, 2400) for name in ("item", "user")}
    table |= {
        f"{name}_label": (rng.random(2400) < 0.1 + 0.8 * (keys % 2)).astype(np.int8) for name, keys in table.items()
    }
    labels = ("item_label", "user_label")
    for name, rows in (("train", slice(0, 2000)), ("test", slice(2000, None))):
        pq.write_table(
            pa.table({column: values[rows] for column, values in table.items()}), tmp_path / f"{name}.parquet"
        )
    categories = (Category(name="item"), Category(name="user"))
    args = {"hidden": (8,), "tower": (4,)}
    workflow = small_workflow(kind=kind, args=args, labels=labels, categories=categories, batch_size=50)
    workflow = workflow.with_settings({"data.root": tmp_path, "data.validation": (), "data.numbers": ()})
    result = run(workflow)
    assert min(result["epochs"][-1][f"auc_{label}"] for label in labels) > 0.7
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()
