"""What a run leaves, and what it leaves when it has to stop early."""

import dataclasses
import gc
import json
import os
import threading
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from conftest import make_table, make_workflow, write_data
from safetensors.torch import load_file
from support.oracle.reference import Reference
from support.runs.harness import THREE_TIERS, make_driver, setup_of
from test_stop import write_workflow

from pipeline.commits.manifest import Commits
from pipeline.commits.run_state import newest_state
from pipeline.data import source as source_module
from pipeline.data.source import Source
from pipeline.driver.open import open_local
from pipeline.errors import PipelineError
from pipeline.records import Block, Refusal
from pipeline.run import main
from pipeline.stages import STAGES
from pipeline.storage import key_map
from pipeline.storage.files import Damaged, Files
from pipeline.storage.layout import row_keys
from pipeline.storage.tier import Slab
from pipeline.training.build import build_model
from pipeline.worker.placement import OnHost
from pipeline.workflow import Category, Workflow

RESERVED = 2**64 - 1


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """A run through three tiers with its directory, its plain reference, and its result as it was returned."""
    workflow = make_workflow(write_data(tmp_path_factory.mktemp("driver"), num_train=90, num_keys=60))
    run_dir = tmp_path_factory.mktemp("run")
    source = Source(workflow.data, workflow.seed)
    setup = setup_of(workflow, source, **THREE_TIERS)
    with open_local(setup, source, run_dir, serial=True) as driver:
        result = driver.run()
    return SimpleNamespace(
        workflow=workflow, run_dir=run_dir, result=result, reference=Reference(workflow).train(), fit=setup.fit
    )


def read_table(run_dir):
    """Keys and rows of table.zarr, the last version of each key, and all of its key column."""
    group = zarr.open_group(run_dir / "table.zarr", mode="r")
    keys_N, rows_NW = group["keys"][:], group["rows"][:]
    assert (keys_N == row_keys(rows_NW)).all(), "the key column is not that of the rows"
    # In position order the last one wins.
    last = {int(key): at for at, key in enumerate(keys_N) if key != RESERVED}
    return {key: rows_NW[at] for key, at in last.items()}, keys_N, dict(group.attrs)


def same_rows(table, reference):
    assert table.keys() == reference.rows.keys()
    tag_at = reference.row.tag_at
    return all(row[:tag_at].tolist() == reference.words(key) for key, row in table.items())


def trained_on(workflow, num_batches):
    """The plain trainer after so many batches of the first epoch."""
    reference = Reference(workflow)
    for batch in reference.batches("train", 0)[:num_batches]:
        reference.train_batch(batch)
    return reference


def test_the_table_holds_the_last_version_of_every_row(left):
    table, keys_N, attributes = read_table(left.run_dir)
    assert same_rows(table, left.reference)
    assert (keys_N != RESERVED).sum() > len(table), "no row was ever written twice: this shows too little"
    assert left.result["rows"] == len(table)
    begin, end = attributes["row"]["embedding"]
    key = next(iter(table))
    weights = table[key].view(np.float32)[begin:end]
    assert weights.tolist() == left.reference.rows[key]["w"][: end - begin].tolist()


def test_the_result_has_the_entropy_of_the_base_rate(left):
    labels = np.asarray(pq.read_table(left.workflow.data.root / "test.parquet")["click"], np.float64)
    rate = labels.mean()
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
    assert left.result["baselines"] == {"click": {"split": "test", "base_rate": pytest.approx(entropy)}}


def test_the_saved_model_is_the_trained_one(left):
    model = build_model(left.workflow)
    state = load_file(left.run_dir / "model.safetensors")
    model.load_state_dict(state)
    trained = left.reference.model.state_dict()
    assert state.keys() == trained.keys()
    assert all(state[name].equal(trained[name]) for name in trained)


def test_the_saved_workflow_is_the_one_that_ran(left):
    saved = Workflow.model_validate_json((left.run_dir / "workflow.json").read_text())
    # JSON has no tuples, so those among a model's own arguments come back as lists.
    args = {name: tuple(value) for name, value in saved.model.args.items()}
    assert saved.model_copy(update={"model": saved.model.model_copy(update={"args": args})}) == left.workflow


def test_metrics_have_one_line_for_each_evaluation(left):
    lines = [json.loads(line) for line in (left.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [(line["epoch"], line["split"]) for line in lines] == [(1, "validation"), (2, "validation"), (2, "test")]
    assert [line["examples"] for line in lines] == [13, 13, 9]
    assert lines == left.result["epochs"]


def test_the_result_has_what_two_runs_are_compared_by(left):
    result = json.loads((left.run_dir / "result.json").read_text())
    assert result == left.result
    assert {"auc", "logloss", "examples", "seconds", "examples_per_second", "stages", "tiers", "fingerprint"} <= set(
        result
    )
    last = result["epochs"][-1]
    assert (result["split"], result["auc"], result["logloss"]) == ("test", last["auc"], last["logloss"])
    assert result["examples"] == 180
    assert result["examples_per_second"] == pytest.approx(180 / result["seconds"])
    assert set(result["stages"]) == set(STAGES) - {"upload", "unite", "scan"}
    assert 0 < sum(result["stages"].values()) <= result["seconds"]
    assert result["fingerprint"] == left.reference.fingerprint()


def test_the_tiers_of_the_result_add_up(left):
    tiers, row_bytes = left.result["tiers"], left.fit.sizes.row_bytes
    assert set(tiers) == {"device", "host", "disk"}
    for tier in tiers.values():
        assert {"hits", "rows_in", "rows_out", "bytes"} <= set(tier)
        assert tier["bytes"] == (tier["rows_in"] + tier["rows_out"]) * row_bytes
    assert (tiers["device"]["capacity_rows"], tiers["host"]["capacity_rows"]) == (130, 24)
    assert tiers["disk"]["capacity_bytes"] == (1 << 20) * 4 * (row_bytes + 8)
    # A row that is nowhere before is somewhere afterwards, and in one place.
    assert sum(tier["rows_in"] - tier["rows_out"] for tier in tiers.values()) == len(left.reference.rows)
    files = [f for part in ("rows", "keys") for f in (left.run_dir / "table.zarr" / part).glob("c.*")]
    assert tiers["disk"]["used_bytes"] == sum(f.stat().st_size for f in files)


@pytest.mark.parametrize(("has", "split"), [(("validation",), "validation"), ((), None)], ids=["no_test", "none"])
def test_without_test_data_metrics_are_of_validation_or_none(left, tmp_path, has, split):
    without = {f"data.{name}": () for name in ("validation", "test") if name not in has}
    result = make_driver(left.workflow.with_settings(without), tmp_path, **THREE_TIERS).run()
    written = json.loads((tmp_path / "result.json").read_text())
    assert written["split"] == split
    last = result["epochs"][-1] if has else {"auc": None, "logloss": None}
    assert (written["auc"], written["logloss"]) == (last["auc"], last["logloss"])
    assert len(written["epochs"]) == 2 * len(has)


def test_a_full_disk_keeps_every_trained_row(left, tmp_path):
    with pytest.raises(PipelineError, match=r"; raise storage\.disk from 1 GiB to at least 1\.\d GiB") as caught:
        make_driver(left.workflow, tmp_path, **THREE_TIERS, disk_chunks=80).run()
    batch = json.loads((tmp_path / "result.json").read_text())["examples"] // left.workflow.schedule.batch_size
    kept = str(caught.value).splitlines()[-1]
    assert kept.startswith("commit ")
    assert f" is kept, up to epoch 1, train, batch {batch}: the same command with a larger storage.disk " in kept
    assert kept.endswith("resumes from there")
    assert_holds_all_before_the_stop(left.workflow, tmp_path)


def test_a_full_key_map_keeps_every_trained_row(left, tmp_path, monkeypatch):
    # So the first keys already need more than the least map.
    monkeypatch.setattr(key_map, "MAX_LOAD", 0.01)
    with pytest.raises(PipelineError, match=r"the key map would need \d+ KiB and has 736 KiB; raise storage.map "):
        make_driver(left.workflow, tmp_path, **THREE_TIERS, map_bytes=736 << 10).run()
    assert_holds_all_before_the_stop(left.workflow, tmp_path)


def assert_holds_all_before_the_stop(workflow, run_dir):
    """Stopped within the first epoch: what lies there is what the plain trainer has after so many batches."""
    result = json.loads((run_dir / "result.json").read_text())
    assert 0 < result["examples"] < 90
    reference = trained_on(workflow, result["examples"] // workflow.schedule.batch_size)
    assert same_rows(read_table(run_dir)[0], reference)
    assert result["fingerprint"] == reference.fingerprint()
    assert result["auc"] is None


@pytest.mark.parametrize(
    ("sizes", "setting"),
    [({"device_rows": 20}, "storage.device"), ({"ring_rows": 20}, "storage.host")],
    ids=["device", "staging"],
)
def test_a_batch_that_cannot_fit_is_explained_and_loses_nothing(tmp_path, monkeypatch, sizes, setting):
    """Four batches of few keys, then batches of many."""
    monkeypatch.setattr(source_module, "FILE_ORDER_WINDOW", 6)
    rng = np.random.default_rng(0)
    for number, num_keys in enumerate((1, 500)):
        pq.write_table(make_table(rng, 24, num_keys), tmp_path / f"train-{number}.parquet", row_group_size=6)
    workflow = make_workflow(tmp_path, shuffle_window=0, epochs=1).with_settings(
        {"data.validation": (), "data.test": ()}
    )
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with pytest.raises(PipelineError) as caught:
        make_driver(workflow, run_dir, **sizes).run()
    said = str(caught.value)
    assert said.startswith("stopped before block ")
    assert "(epoch 1, batch 4)" in said
    assert "(1 batches, " in said
    assert f" rows and has 20; raise {setting} from 16 MiB to at least " in said
    assert f"the same command with a larger {setting} resumes" in said
    assert json.loads((run_dir / "result.json").read_text())["examples"] == 24
    assert same_rows(read_table(run_dir)[0], trained_on(workflow, 4))


def test_rings_fit_later_blocks_after_a_first_window_of_few_keys(tmp_path, monkeypatch):
    """Sorted data: 60 examples of one key, then new keys in every example."""
    keys = [0] * 60 + list(range(1, 241))
    labels = pa.array([n % 2 for n in range(300)], pa.int8())
    pq.write_table(pa.table({"click": labels, "item": pa.array(keys)}), tmp_path / "train-0.parquet")
    workflow = make_workflow(
        tmp_path, categories=(Category(name="item"),), shuffle_window=0, epochs=1, batch_size=10, block_batches=2
    )
    monkeypatch.chdir(tmp_path)
    workflow = workflow.with_settings({"data.validation": (), "data.test": (), "data.numbers": ()})
    path = write_workflow(workflow, tmp_path)
    assert main([path, "--serial", "--set", "storage.device=64 KiB", "--set", "storage.host=256 KiB"]) == 0
    assert json.loads((tmp_path / "runs" / "small" / "result.json").read_text())["rows"] == 241


def test_the_look_ahead_becomes_smaller_before_blocks_do(left, tmp_path):
    driver = make_driver(left.workflow, tmp_path)
    last_of_a_split = Block(9, "train", 0, 14, 1, 84, 6, 6, 14, True)
    refusal = Refusal(last_of_a_split, "window", "too small")
    taken = []
    with driver.progress:
        while driver.runner.make_room(refusal):
            taken.append((driver.runner.pace.look_ahead, driver.runner.pace.block_batches))
    driver.crew.worker.tiers.close()
    assert taken == [(1, 2), (0, 2)], "a block of one batch cannot be cut further"


def test_a_failing_stage_prints_no_traceback_under_dask(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("pipeline.worker.stage_runner.train", lambda *args: 1 / 0)
    monkeypatch.chdir(tmp_path)
    workflow = make_workflow(write_data(tmp_path / "data"))
    path = write_workflow(workflow, tmp_path)
    assert main([path]) == 1
    err = capfd.readouterr().err
    assert "error: train of block 0 failed: ZeroDivisionError" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("commits", [0, 2])
def test_a_failed_commit_leaves_the_last_one_to_go_on_from(left, tmp_path, monkeypatch, commits):
    write_dense, num = Commits.write_dense, iter(range(100))

    def failing(self, *args):
        if next(num) == commits:
            raise OSError(28, "No space left on device")
        return write_dense(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(Commits, "write_dense", failing)
        driver = make_driver(left.workflow, tmp_path, **THREE_TIERS)
        with pytest.raises(PipelineError, match="No space left on device: the disk is full; make room there") as caught:
            driver.run()
    kept = "commit 2 is kept, up to epoch 2, train, batch 0" if commits else "nothing is committed yet"
    assert kept in str(caught.value)
    assert not (tmp_path / "result.json").exists()
    assert make_driver(left.workflow, tmp_path, **THREE_TIERS).run()["fingerprint"] == left.result["fingerprint"]


def test_a_run_that_cannot_be_opened_gives_all_back(left, tmp_path):
    """The last step of the opening fails: a folder has the name of a file that it writes."""
    (tmp_path / "workflow.json.partial").mkdir()
    source = Source(left.workflow.data, left.workflow.seed)
    setup = setup_of(left.workflow, source, **THREE_TIERS)
    gc.collect()
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    slabs = {id(slab) for slab in gc.get_objects() if type(slab) is Slab}
    with pytest.raises(OSError, match="Is a directory") as caught, open_local(setup, source, tmp_path, serial=True):
        raise AssertionError("it was opened")
    # A notebook keeps the exception, and so all objects of its traceback.
    new = [slab for slab in gc.get_objects() if type(slab) is Slab and id(slab) not in slabs]
    assert caught.value
    assert len(new) == 2
    assert [len(slab.words_SW) for slab in new] == [0, 0]
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (threads, files)


def test_a_state_whose_metrics_are_of_no_split_is_refused(left):
    newest = Commits(left.run_dir, Files(), 1).kept()[-1]
    forged = dataclasses.replace(newest, state=newest.state | {"epochs": [{"split": "tset"}]})
    with pytest.raises(Damaged, match=r'state.epochs: {"split": "tset"} has no valid epoch and split'):
        newest_state([forged])


def test_a_test_that_no_cap_holds_ends_the_run(left, tmp_path):
    driver = make_driver(left.workflow, tmp_path, **THREE_TIERS)
    block = driver.agenda.test(2, 1)[0]
    driver.runner.score = lambda blocks_of: Refusal(block, "map", "the key map is full", 1 << 20)
    with (
        closing(driver),
        driver.progress,
        pytest.raises(PipelineError, match="the test of epoch 3 was refused: the key map is full"),
    ):
        driver.test_best(2)


def test_too_little_memory_for_the_rings_ends_with_a_table(left, tmp_path, monkeypatch):
    def none_left(self, num_buffers, buffer_bytes):
        raise MemoryError("no more")

    monkeypatch.setattr(OnHost, "start", none_left)
    with pytest.raises(PipelineError, match="out of memory"):
        make_driver(left.workflow, tmp_path, **THREE_TIERS).run()
