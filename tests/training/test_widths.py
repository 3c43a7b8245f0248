"""Fields that use fewer weights than a row has: a projection makes up for the others, which stay zero in the table."""

import numpy as np
import pytest
import torch
from conftest import NARROW, WIDTHS, make_workflow
from support.depth import some
from support.oracle.optimizers import EXACT
from support.oracle.reference import Reference
from support.runs.evaluated_runs import train_and_evaluate
from support.runs.harness import THREE_TIERS, run
from torch import nn

import pipeline
from pipeline.models import AITM, DNN
from pipeline.training.build import Projected, build_model, own_model


@pytest.mark.parametrize(
    "name",
    some(EXACT, "lazy, clipped norm", "dense adam with L2", "CowClip in float16, v whole", "row-wise"),
)
def test_tiers_change_no_bit_of_narrow_fields(small_workflow, name):
    workflow = small_workflow(categories=NARROW, block_batches=3).model_copy(update={"optimizer": EXACT[name]})
    result = run(workflow, **THREE_TIERS)
    assert result["tiers"]["disk"]["rows_in"] > 100
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()


@pytest.mark.parametrize("name", some(EXACT, "dense adam with L2", "lazy adam in bfloat16"))
def test_unused_weights_and_their_state_are_zero(small_workflow, tmp_path, name):
    workflow = small_workflow(categories=NARROW).model_copy(update={"optimizer": EXACT[name]})
    trained = train_and_evaluate(workflow, tmp_path / "run")
    with pipeline.open_run(trained.run_dir, "last") as opened:
        for column, width in {"item": 2, "country": 1, "tags": 2, "user": 3}.items():
            values = [f"c{n}" for n in range(60)] if column == "country" else list(range(60))
            rows = opened.rows(column, values).to_pydict()
            known = [n for n, is_known in enumerate(rows["known"]) if is_known]
            assert known
            for part in {"weights", "adam_m", "adam_v", "adagrad_sum"} & rows.keys():
                kept = np.array([rows[part][n] for n in known])
                assert not kept[:, width:3].any(), (column, part)
                assert kept[:, :width].any(), (column, part)


def test_narrow_fields_resume_from_a_commit(small_workflow, tmp_path):
    workflow = small_workflow(categories=NARROW)
    for epochs in (1, 2):
        settings = {"schedule.epochs": epochs}
        with pipeline.train(workflow, tmp_path / "run", settings=settings, serial=True) as opened:
            fingerprint = opened.result["fingerprint"]
    assert fingerprint == Reference(workflow).train().fingerprint()


def test_an_embedding_is_its_used_weights_times_the_projection(small_workflow):
    """Fields of one table share the projection; a field of full width has none."""
    workflow = small_workflow(categories=NARROW)
    model, plain = build_model(workflow), build_model(small_workflow())
    assert [tuple(p.shape) for p in model.projections] == [(2, 3), (1, 3), (2, 3)]
    item, country, tags = (p.detach().numpy() for p in model.projections)
    given = torch.randn(4, 7), torch.randn(4, 5, 3), torch.randn(4, 5)
    projected = given[1].numpy().copy()
    for field, (width, projection) in enumerate([(2, item), (2, item), (1, country), (2, tags)]):
        projected[:, field] = projected[:, field, :width] @ projection
    expected = plain(given[0], torch.from_numpy(projected), given[2])
    assert torch.allclose(model(*given), expected, atol=1e-6), "the model's own initial weights are others"


def test_the_width_of_a_row_is_no_narrow_field(small_workflow):
    full = tuple(category.model_copy(update={"width": 3}) for category in NARROW)
    assert run(small_workflow(categories=full))["fingerprint"] == run(small_workflow())["fingerprint"]


def test_a_loss_of_the_model_is_that_of_the_projected_one(small_workflow):
    labels = {"kind": AITM, "args": {"hidden": (5,), "tower": (3,)}, "labels": ("click", "bought")}
    model = build_model(small_workflow(categories=NARROW, **labels))
    assert model.loss == own_model(model).loss
    assert own_model(own_model(model)) is own_model(model)
    assert not hasattr(Projected(DNN(1, 0, 3), ["a"], [2], 3), "loss")


def test_projected_weights_begin_with_the_spread_of_the_rows():
    torch.manual_seed(0)
    model = Projected(nn.Identity(), ["a"], [8], 400)
    embeddings = torch.randn(500, 1, 400)
    (projected,) = (embeddings[:, 0, :8] @ p for p in model.projections)
    assert float(projected.detach().std()) == pytest.approx(1, abs=0.05)


def test_widths_that_cannot_be_are_refused(tmp_path):
    wrong = tuple(category.model_copy(update={"width": WIDTHS["item"] + 1}) for category in NARROW[1:2])
    said = r"'history' has width 2 and 'item' width 3, and both use the rows of table 'item'; set one width"
    with pytest.raises(ValueError, match=said):
        make_workflow(tmp_path, categories=NARROW[:1] + wrong)
    with pytest.raises(ValueError, match=r"'item' has width 3, but a row has 2 embedding weights; lower it, or raise"):
        make_workflow(tmp_path, categories=wrong, embedding_dim=2)


def test_a_workflow_without_widths_is_written_as_before(tmp_path):
    assert '"width"' not in make_workflow(tmp_path).model_dump_json()
    workflow = make_workflow(tmp_path, categories=NARROW)
    assert type(workflow).model_validate_json(workflow.model_dump_json()).data == workflow.data
