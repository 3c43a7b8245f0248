"""Tiers and overlap are invisible: every run has the fingerprint of a plain trainer with one dictionary of rows."""

import itertools
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import CATEGORIES, make_table, make_workflow, write_data
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score
from support.data.parquet_files import with_columns
from support.depth import examples, some
from support.oracle.optimizers import EXACT
from support.oracle.reference import Reference
from support.runs.any_run import SCHEDULES, check_equal_to_plain_trainer, sizes_for
from support.runs.harness import THREE_TIERS, make_driver, printed, run

from pipeline.storage.policies import POLICIES
from pipeline.storage.shards import Shards
from pipeline.workflow import Category

NO_TIERS = {}


@pytest.mark.parametrize("device", some(POLICIES, "lru", "foresight"))
@pytest.mark.parametrize("host", some(POLICIES, "lfu", "foresight"))
def test_no_policy_changes_the_result(small_workflow, device, host):
    workflow = small_workflow(storage={"device_policy": device, "host_policy": host})
    result = run(workflow, **THREE_TIERS)
    assert result["tiers"]["disk"]["rows_in"] > 100
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()


FORESIGHT = {"device_policy": "foresight", "host_policy": "foresight"}


@pytest.mark.parametrize("known_examples", some([0, 6, 30, 1 << 20], 30))
@pytest.mark.parametrize(("look_ahead", "block_batches"), some([(1, 1), (2, 3), (4, 16)], (2, 3), several=True))
def test_no_number_of_known_examples_changes_the_result(
    small_workflow, client, look_ahead, block_batches, known_examples
):
    storage = FORESIGHT | {"known_examples": known_examples}
    workflow = small_workflow(block_batches=block_batches, look_ahead=look_ahead, storage=storage)
    fingerprint = Reference(workflow).train().fingerprint()
    results = [run(workflow, with_dask, **THREE_TIERS) for with_dask in (None, client)]
    assert [result["fingerprint"] for result in results] == [fingerprint] * 2
    assert results[0]["tiers"] == results[1]["tiers"], "what is known depends on the order of tasks"


def test_known_keys_without_room_are_reported_once(small_workflow, tmp_path):
    workflow = small_workflow(storage=FORESIGHT | {"known": "18 KiB"})
    driver, said = make_driver(workflow, tmp_path, **THREE_TIERS), []
    driver.runner.say = said.append
    assert driver.run()["fingerprint"] == Reference(workflow).train().fingerprint()
    (told,) = [line for line in said if "storage.known is" in line]
    assert "the keys of 8,388,608 coming examples take more: at times those of " in told
    known = int(told.split("at times those of ")[1].split()[0])
    assert 0 < known < 100


@pytest.mark.parametrize("with_dask", [False, True])
@pytest.mark.parametrize("num_shards", some([2, 4, 16], 4))
def test_the_number_of_shards_never_changes_the_result(small_workflow, client, num_shards, with_dask):
    workflow = small_workflow()
    result = run(workflow, client if with_dask else None, shards=Shards.all(num_shards), **THREE_TIERS)
    assert result["tiers"]["disk"]["rows_in"] > 100
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()


def test_rows_and_metrics_are_those_of_the_plain_trainer(small_workflow):
    workflow = small_workflow()
    result, plain = run(workflow, **THREE_TIERS), Reference(workflow).train()
    assert result["fingerprint"] == plain.fingerprint()
    assert result["tiers"]["disk"]["rows_in"] > 100
    assert result["tiers"]["host"]["hits"] > 10
    expected = plain.scores
    assert (
        [e["split"] for e in result["epochs"]] == [split for split, _, _ in expected] == ["validation"] * 2 + ["test"]
    )
    for epoch, (_, scores, labels) in zip(result["epochs"], expected, strict=True):
        assert epoch["auc"] == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
        probabilities = [1 / (1 + 2.718281828459045**-s) for s in scores]
        assert epoch["logloss"] == pytest.approx(log_loss(labels, probabilities), abs=1e-9)


@pytest.mark.parametrize(
    ("look_ahead", "block_batches"),
    some(itertools.product([1, 2, 4], [1, 3, 16]), (1, 1), (4, 16), several=True),
)
def test_dask_with_any_block_size_equals_the_plain_trainer(small_workflow, client, block_batches, look_ahead):
    workflow = small_workflow(block_batches=block_batches, look_ahead=look_ahead)
    result = run(workflow, client, **THREE_TIERS)
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()


@pytest.mark.prove
def test_a_second_run_on_one_scheduler_gets_its_own_results(small_workflow, client):
    one, other = small_workflow(), small_workflow(epochs=1)
    results = [run(workflow, client, **THREE_TIERS)["fingerprint"] for workflow in (one, other, one)]
    assert results[0] == results[2] == Reference(one).train().fingerprint()
    assert results[1] == Reference(other).train().fingerprint()


def test_sample_weights_reach_the_loss(small_workflow):
    workflow = small_workflow(weight="importance")
    result = run(workflow, **THREE_TIERS)
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()
    assert result["fingerprint"] != run(small_workflow())["fingerprint"]


def test_evaluation_never_changes_what_is_learned(data_root):
    with_evaluation = make_workflow(data_root)
    without = with_evaluation.with_settings({"data.validation": (), "data.test": ()})
    assert run(with_evaluation, **THREE_TIERS)["fingerprint"] == run(without, **THREE_TIERS)["fingerprint"]


def test_a_window_that_grows_too_large_is_made_smaller(small_workflow):
    workflow = small_workflow(block_batches=8, look_ahead=4)
    expected = Reference(workflow).train().fingerprint()
    with tempfile.TemporaryDirectory() as run_dir:
        driver = make_driver(workflow, Path(run_dir), device_rows=60, host_rows=10, ring_rows=120)
        assert driver.run()["fingerprint"] == expected
    assert driver.runner.pace.block_batches < 8
    lines = [line for line in printed(driver).splitlines() if line.startswith("look-ahead ")]
    assert lines[0].startswith("look-ahead 3, blocks of 8 batches from here: block 0 (8 batches, ")
    assert all("; raise storage." in line for line in lines)


@pytest.mark.parametrize("block_batches", some([1, 3, 16], 3))
def test_the_place_of_a_batch_in_its_block_changes_no_result(tmp_path, block_batches):
    """33 examples of seven numbers: batches that begin at bytes which are no multiple of anything."""
    root = write_data(tmp_path, num_train=200, num_keys=60)
    workflow = make_workflow(root, batch_size=33, block_batches=block_batches)
    assert run(workflow)["fingerprint"] == Reference(workflow).train().fingerprint()


@pytest.mark.parametrize("with_dask", [False, True])
def test_blocks_that_outgrow_the_read_ring_lose_no_batch(tmp_path, client, with_dask):
    """Lists that become long: a later block of the window is refused by `read`, not by `plan`."""
    rng = np.random.default_rng(0)
    lists = [rng.integers(0, 50, 0 if n < 60 else 30).tolist() for n in range(120)]
    table = make_table(rng, 120, 50).set_column(0, "click", pa.array(rng.integers(0, 2, 120), pa.int8()))
    pq.write_table(with_columns(table, history=pa.array(lists, pa.list_(pa.int64()))), tmp_path / "train-0.parquet")
    categories = (Category(name="history", table="item"), Category(name="item"))
    workflow = make_workflow(
        tmp_path, categories=categories, shuffle_window=0, batch_size=5, block_batches=4, storage={"read": "14 KiB"}
    )
    workflow = workflow.with_settings({"data.validation": (), "data.test": ()})
    with tempfile.TemporaryDirectory() as run_dir:
        driver = make_driver(workflow, Path(run_dir), client if with_dask else None)
        result = driver.run()
    assert driver.runner.pace.look_ahead < workflow.schedule.look_ahead
    assert result["examples"] == 240
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()


def test_batches_of_zero_weights_train_as_in_the_plain_trainer(tmp_path):
    rng = np.random.default_rng(0)
    table = make_table(rng, 24, 50)
    weights = pa.array([1.0] * 12 + [0.0] * 12, pa.float32())
    pq.write_table(with_columns(table, importance=weights), tmp_path / "train-0.parquet")
    workflow = make_workflow(tmp_path, weight="importance", shuffle_window=0).with_settings(
        {"data.validation": (), "data.test": ()}
    )
    assert run(workflow)["fingerprint"] == Reference(workflow).train().fingerprint()


@st.composite
def runs(draw):
    """Data, workflow and sizes."""
    num_keys = draw(st.sampled_from([1, 3, 15, 40]))
    fields = draw(st.lists(st.sampled_from(CATEGORIES), min_size=1, max_size=5, unique_by=lambda c: c.name))
    table = draw(st.sampled_from([None, "shared"]))
    widths = [draw(st.sampled_from([None, 1, 2]))] * 5 if table else draw(st.permutations([None, None, 1, 2, 3]))
    data = {
        "seed": draw(st.integers(0, 9)),
        "num_train": draw(st.integers(2, 45)),
        "num_keys": num_keys,
        "with_nulls": draw(st.booleans()),
    }
    workflow = {
        "categories": tuple(
            Category(name=c.name, table=table, pooling=c.pooling, width=width)
            for c, width in zip(fields, widths, strict=False)
        ),
        **draw(SCHEDULES),
    }
    largest = 9 * 4 * len(fields) + 2
    return data, workflow, draw(sizes_for(largest))


@given(runs(), st.sampled_from(list(EXACT.values())), st.booleans())
@examples(5, 60)
def test_any_run_equals_the_plain_trainer(client, case, optimizer, with_dask):
    data, changes, sizes = case
    with tempfile.TemporaryDirectory() as root:
        workflow = make_workflow(write_data(Path(root), **data), **changes)
        check_equal_to_plain_trainer(workflow, optimizer, client if with_dask else None, sizes)
