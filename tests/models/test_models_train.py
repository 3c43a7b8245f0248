"""Every model trains through three tiers to the bits of the plain trainer."""

import pytest
from depth import some
from harness import run
from reference import Reference
from test_models import SMALL

from pipeline.models import LR

THREE_TIERS = {"device_rows": 130, "host_rows": 24, "chunk_rows": 4}


@pytest.mark.parametrize("name", some(SMALL, "DCNv2_stacked", "DeepFM", "LR"))
def test_tiers_never_change_what_a_model_learns(name, small_workflow):
    kind, args, _ = SMALL[name]
    workflow = small_workflow(kind=kind, args=args, epochs=1)
    result = run(workflow, **THREE_TIERS)
    assert result["tiers"]["disk"]["rows_in"] > 0
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()


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
def test_an_option_of_the_deep_part_is_used_alike_under_any_schedule(changes, small_workflow):
    args = {"hidden": (8, 8), **changes}
    workflow = small_workflow(args=args, epochs=1)
    expected = Reference(workflow).train().fingerprint()
    for schedule in ({"block_batches": 1, "look_ahead": 1}, {"block_batches": 16}):
        assert run(small_workflow(args=args, epochs=1, **schedule), **THREE_TIERS)["fingerprint"] == expected
    assert expected != run(small_workflow(args={"hidden": (8, 8)}, epochs=1))["fingerprint"]
