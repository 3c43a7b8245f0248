"""Any number of examples trains and is scored: no batch outgrows its memory, also if a last one is merged with it."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from conftest import make_table, make_workflow, write_data
from sklearn.metrics import log_loss
from support.depth import some
from support.oracle.reference import Reference
from support.runs.crew_threads import crew_driver, make_crew_driver
from support.runs.evaluated_runs import bits_of, train_and_evaluate
from support.runs.harness import THREE_TIERS, make_driver, run

from pipeline.driver.loop import DueCommit
from pipeline.serving.score import main as score

BATCH = 4
RESTS = (0, 1, 2, BATCH - 1)
"""Numbers of examples that are left for a last batch."""
SHAPES = [(whole, rest) for whole in (0, 1, 3) for rest in RESTS if whole or rest]
"""Whole batches, and the rest: fewer examples than a batch has, about as many, and more."""
LAST_ONE = (1, 1), (3, 1)


def workflow_of(root, whole, rest, **changes):
    write_data(root, num_train=whole * BATCH + rest)
    settings = {"batch_size": BATCH, "block_batches": 1, "epochs": 1, "args": {"hidden": (3,)}}
    return make_workflow(root, **(settings | changes))


def normed(root, whole, rest, **changes):
    return workflow_of(root, whole, rest, args={"hidden": (3,), "batch_norm": True}, **changes)


def with_model(workflow, **changes):
    return workflow.model_copy(update={"model": workflow.model.model_copy(update=changes)})


@pytest.fixture
def uncompiled(monkeypatch):
    """Replace torch's compiler by one that leaves a function as it is."""
    monkeypatch.setattr(torch, "compile", lambda run, **options: run)


# Batch norm cannot train on one example.
PLAIN_AND_NORMED = [(make, *shape) for make in (workflow_of, normed) for shape in SHAPES[make is normed :]]


@pytest.mark.parametrize(("make", "whole", "rest"), some(PLAIN_AND_NORMED, (normed, 1, 1), several=True))
def test_any_number_of_examples_equals_the_plain_trainer(tmp_path, make, whole, rest):
    workflow = make(tmp_path, whole, rest)
    expected = Reference(workflow).train()
    result = run(workflow, **THREE_TIERS)
    assert result["fingerprint"] == expected.fingerprint()
    for epoch, (_, scores, labels) in zip(result["epochs"], expected.scores, strict=True):
        probabilities = [1 / (1 + 2.718281828459045**-score) for score in scores]
        assert epoch["logloss"] == pytest.approx(log_loss(labels, probabilities, labels=[0, 1]), abs=1e-9)


@pytest.mark.prove
@pytest.mark.parametrize(("whole", "rest"), LAST_ONE)
def test_a_compiled_model_takes_a_last_batch_of_any_size(tmp_path, uncompiled, whole, rest):
    workflow = normed(tmp_path / "data", whole, rest)
    compiled = with_model(workflow, compile=True, compile_cache=tmp_path / "cache")
    assert run(compiled)["fingerprint"] == Reference(workflow).train().fingerprint()


@pytest.mark.prove
@pytest.mark.parametrize(("whole", "rest"), LAST_ONE)
def test_bfloat16_takes_a_last_batch_of_any_size(tmp_path, whole, rest):
    workflow = with_model(normed(tmp_path, whole, rest), precision="bfloat16")
    assert run(workflow)["fingerprint"] == run(workflow, **THREE_TIERS)["fingerprint"]


@pytest.mark.parametrize("rest", some(RESTS, 1))
def test_a_run_resumed_in_its_last_batch_equals_the_plain_one(tmp_path, rest):
    workflow = normed(tmp_path / "data", 2, rest)
    driver = make_driver(workflow, tmp_path / "run", **THREE_TIERS)
    blocks = [block for block in driver.agenda.blocks(1) if block.trains]
    driver.crew.run(blocks[:-1], 2, driver.history.add)
    driver.commit(DueCommit(blocks[-1]))
    driver.crew.close()
    result = make_driver(workflow, tmp_path / "run", **THREE_TIERS).run()
    assert result
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()


@pytest.mark.prove
@pytest.mark.parametrize(("whole", "rest"), [*LAST_ONE, (3, BATCH - 1)])
def test_two_workers_share_a_last_batch_of_any_size(tmp_path, whole, rest):
    """A last batch of fewer than four examples joins the one before: at most seven, of which a worker has four."""
    workflow = normed(tmp_path / "data", whole, rest)
    with crew_driver(workflow, tmp_path / "looked at", 2) as driver:
        sizes = [block.num_examples for block in driver.agenda.blocks(1) if block.trains]
    assert sum(sizes) == whole * BATCH + rest
    assert min(sizes) >= BATCH
    results = [
        make_crew_driver(workflow, tmp_path / name, 2, **sizes).run()
        for name, sizes in (("plain", {}), ("tiers", THREE_TIERS))
    ]
    assert results[0]
    assert results[1]
    assert results[0]["fingerprint"] == results[1]["fingerprint"]


@pytest.mark.parametrize("num_rows", some([1, BATCH, BATCH + 1, 2 * BATCH - 1], BATCH + 1))
def test_files_of_any_length_are_scored_as_evaluated(tmp_path, num_rows):
    workflow = normed(tmp_path / "data", 2, 1)
    test = tmp_path / "data/test.parquet"
    pq.write_table(make_table(np.random.default_rng(5), num_rows, 20), test)
    trained = train_and_evaluate(workflow, tmp_path / "run")
    assert score([str(tmp_path / "run"), str(test), "--out", str(tmp_path / "out")]) == 0
    found = pq.read_table(tmp_path / "out/test.parquet")
    assert np.array_equal(bits_of(found), trained.logits_NT.view(np.uint32))
