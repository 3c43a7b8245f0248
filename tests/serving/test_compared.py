"""An ONNX file that does not answer as torch does is not served."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.data.histories import workflow_with_histories
from support.depth import some
from torch.nn.functional import scaled_dot_product_attention

from pipeline.serving import dense_files
from pipeline.serving.dense_files import differences, exported, gaps, made_rows, onnx_bytes, quiet
from pipeline.serving.onnx_model import inputs_of_sequence
from pipeline.storage.files import Files
from pipeline.training.build import row_layout


def attention(numbers, embeddings, values):
    """Attention over no field where the first number is not positive, else over all."""
    fields, num_fields = embeddings[:, None], embeddings.shape[1]
    mask = (numbers[:, :1, None, None] > 0).expand(-1, 1, num_fields, num_fields)
    return scaled_dot_product_attention(fields, fields, fields, attn_mask=mask).sum((1, 2, 3))


def scattered_mean(numbers, embeddings, values):
    pairs = torch.tensor([0, 0, 1, 1, 2, 2, 2]).expand(numbers.shape[0], -1)
    return torch.zeros_like(numbers).scatter_reduce(1, pairs, numbers, "mean").sum(1)


CONSTRUCTS = {
    "good": (lambda numbers, embeddings, values: (numbers.tanh() / 3).sum(1) + embeddings.sum((1, 2)), None),
    "floor division": (lambda numbers, embeddings, values: (numbers // 0.1).sum(1), "multiples of 0.1"),
    "topk of ties": (lambda numbers, embeddings, values: numbers.topk(3).indices[:, 0].float(), "ties"),
    "amax with NaN": (lambda numbers, embeddings, values: (numbers[:, :2] / numbers[:, :2]).amax(1), "whole numbers"),
    "mean over nothing": (
        lambda numbers, embeddings, values: numbers.sum(1) + values["clicks"].items["clicked"].mean(),
        "any values without histories",
    ),
    "scattered mean": (scattered_mean, "any values"),
    "attention": (attention, "negative values"),
}
"""Outputs of models, each with the made-up rows on which ONNX Runtime differs, if any."""


class Own(torch.nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.compute = compute

    def forward(self, numbers, embeddings, first_order, sequences):
        return self.compute(numbers, embeddings, sequences)


@pytest.fixture
def opened(tmp_path):
    workflow = workflow_with_histories(tmp_path)
    return SimpleNamespace(workflow=workflow, layout=row_layout(workflow))


@pytest.mark.parametrize("name", some(CONSTRUCTS, "good", "floor division"))
def test_an_onnx_file_is_compared_with_torch(name, opened):
    pytest.importorskip("onnxruntime")
    compute, where = CONSTRUCTS[name]
    model, names = Own(compute).eval(), [n for one in opened.workflow.data.sequences for n in inputs_of_sequence(one)]
    with quiet():
        said = differences(opened, model, onnx_bytes(exported(opened, model), names))
    assert (f"({where})" in said) if where else not said


def test_a_file_that_answers_otherwise_is_left_out(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(dense_files, "model_of", lambda workflow, saved: Own(CONSTRUCTS["good"][0]))
    monkeypatch.setattr(dense_files, "exported", lambda opened, model: None)
    monkeypatch.setattr(dense_files, "onnx_bytes", lambda program, names: b"")
    monkeypatch.setattr(dense_files, "differences", lambda *given: "up to 4.1 in 44% of the logits (ties)")
    sums, left_out = dense_files.dense_files(opened, {}, tmp_path, Files(), None)
    assert [*sums] == ["model.safetensors"]
    assert left_out["model.onnx"].endswith("logits differ by up to 4.1 in 44% of the logits (ties)")
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize(
    ("expected", "found", "gap"),
    [
        ([1.0, 100.0], [1.001, 100.0], [1e-5, 0]),
        ([0.0, 0.1], [0.0, 0.2], [0, 0.1]),
        ([np.nan, np.inf, -np.inf], [np.nan, np.inf, np.inf], [0, 0, np.inf]),
        ([np.nan, 1.0], [0.0, np.nan], [np.inf, np.inf]),
    ],
)
def test_gaps_are_relative_and_nan_equals_nan(expected, found, gap):
    assert gaps(np.float32(expected), np.float32(found)) == pytest.approx(gap, rel=1e-2)


def test_made_rows_have_empty_and_long_histories(opened):
    lengths = {n for _, given in made_rows(opened.workflow.data, opened.layout) for n in np.diff(given[3].starts_LB[0])}
    longest = opened.workflow.data.sequences[0].max_length
    assert {0, 1, longest} <= lengths
