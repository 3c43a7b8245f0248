"""A run goes on with the data that it began with, wherever that lies now, and notices what changes meanwhile."""

import os
import shutil

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from conftest import make_workflow, write_data
from support.data.parquet_files import with_columns
from support.faults.killed_after_commit import changed, kill_after
from support.runs.harness import THREE_TIERS, make_driver, run

from pipeline.errors import PipelineError
from pipeline.workflow import Commit


@pytest.fixture(scope="module")
def workflow(data_root):
    return make_workflow(data_root).model_copy(update={"commit": Commit(every_blocks=3)})


@pytest.fixture(scope="module")
def whole(workflow):
    return run(workflow, **THREE_TIERS)


def rewrite(change, name="train-0.parquet", row_group_size=8):
    """Write a file of the data again, with a change of its table."""

    def apply(root):
        table = pq.read_table(root / name)
        pq.write_table(change(table), root / name, row_group_size=row_group_size)

    return apply


def column(name, change):
    return lambda table: with_columns(table, **{name: change(table[name])})


def swapped(root):
    """Two training files of as many rows change their names."""
    os.rename(root / "train-0.parquet", root / "x")
    os.rename(root / "train-1.parquet", root / "train-0.parquet")
    os.rename(root / "x", root / "train-1.parquet")


OTHER_DATA = {
    "seed": (lambda root: write_data(root, seed=1, num_train=90, num_keys=60), r"train-0\.parquet: "),
    "keys": (rewrite(column("item", lambda c: pc.add(c, 1_000_000))), r"train-0\.parquet: "),
    "labels": (rewrite(column("click", lambda c: pc.subtract(pa.scalar(1, pa.int8()), c))), r"train-0\.parquet: "),
    "type": (
        lambda root: [
            rewrite(column("item", lambda c: c.cast(pa.string())), file.name)(root) for file in root.glob("*.parquet")
        ],
        r"train-0\.parquet: type of column 'item' was int64, is string",
    ),
    "row groups": (
        rewrite(lambda table: table, row_group_size=5),
        r"row groups were 5 of 8 rows, 1 of 5 rows, are 9 of 5 rows",
    ),
    "order": (swapped, r"train-0\.parquet: other content|train-0\.parquet: size was"),
    "name": (
        lambda root: os.rename(root / "train-0.parquet", root / "train-2.parquet"),
        r"file 1 was train-0\.parquet, is train-1\.parquet",
    ),
    "fewer": (lambda root: (root / "train-1.parquet").unlink(), r"file 2 was train-1\.parquet, is none"),
    "rows": (lambda root: write_data(root, num_train=91, num_keys=60), "row groups were"),
}


@pytest.mark.parametrize("other", OTHER_DATA)
def test_other_training_data_is_refused_with_a_difference(workflow, tmp_path, tmp_path_factory, monkeypatch, other):
    change, said = OTHER_DATA[other]
    root, run_dir = copy_of(workflow, tmp_path_factory), tmp_path / "run"
    elsewhere = changed(workflow, data__root=root, data__train=("train*.parquet",))
    if other == "order":
        # As many rows each, so that nothing but their order is another one.
        shutil.copy(root / "train-0.parquet", root / "train-1.parquet")
        rewrite(column("item", lambda c: pc.add(c, 1)), "train-1.parquet")(root)
    kill_after(1, elsewhere, run_dir, monkeypatch)
    change(root)
    with pytest.raises(ValueError, match=r"another workflow:\n +data\.train: .*" + said) as caught:
        make_driver(elsewhere, run_dir, **THREE_TIERS)
    assert "batch norm" not in str(caught.value)


def copy_of(workflow, tmp_path_factory):
    root = tmp_path_factory.mktemp("copy") / "data"
    shutil.copytree(workflow.data.root, root)
    return root


def test_the_same_data_moved_elsewhere_goes_on_without_a_warning(
    workflow, whole, tmp_path, tmp_path_factory, monkeypatch
):
    kill_after(1, workflow, tmp_path / "run", monkeypatch)
    root = copy_of(workflow, tmp_path_factory)
    moved = changed(workflow, data__root=root, data__train=("train-0.parquet", "*-1.parquet"))
    driver = make_driver(moved, tmp_path / "run", **THREE_TIERS)
    assert driver.warnings == []
    assert driver.run()["fingerprint"] == whole["fingerprint"]


def test_other_test_data_is_warned_about_and_named_in_metrics(workflow, whole, tmp_path, tmp_path_factory, monkeypatch):
    kill_after(1, workflow, tmp_path / "run", monkeypatch)
    root = copy_of(workflow, tmp_path_factory)
    rewrite(lambda table: table.slice(2), "test.parquet")(root)
    driver = make_driver(changed(workflow, data__root=root), tmp_path / "run", **THREE_TIERS)
    said = "metrics of test are from here on of other data, and cannot be compared with earlier ones: test.parquet: row"
    assert [warning[: len(said)] for warning in driver.warnings] == [said]
    result = driver.run()
    assert result["fingerprint"] == whole["fingerprint"]
    digests = [{e["split"]: e["data"] for e in r["epochs"]} for r in (whole, result)]
    assert digests[0]["validation"] == digests[1]["validation"]
    assert digests[0]["test"] != digests[1]["test"]
    assert [result["data"][split]["digest"] for split in ("validation", "test")] == list(digests[1].values())


@pytest.mark.parametrize("replaced", [True, False], ids=["replaced", "in place"])
def test_a_file_changed_during_a_run_ends_it_until_restored(workflow, whole, tmp_path, tmp_path_factory, replaced):
    root = copy_of(workflow, tmp_path_factory)
    driver = make_driver(changed(workflow, data__root=root), tmp_path / "run", **THREE_TIERS)
    watch, file, before = driver.runner.watch, root / "train-1.parquet", (root / "train-1.parquet").read_bytes()

    def overwrite(done):
        watch(done)
        if done.trained and done.trained.block.epoch == 0 and not done.trained.block.trains:
            invert = column("click", lambda c: pc.subtract(pa.scalar(1, pa.int8()), c))
            pq.write_table(invert(pq.read_table(file)), root / "x", row_group_size=8)
            assert len((root / "x").read_bytes()) == len(before), "sizes alone would show it"
            os.rename(root / "x", file) if replaced else file.write_bytes((root / "x").read_bytes())

    driver.runner.watch = overwrite
    with pytest.raises(
        PipelineError, match=r"train-1\.parquet was changed during the run: train-1\.parquet: other con"
    ):
        driver.run()
    file.write_bytes(before)
    again = make_driver(driver.setup.workflow, tmp_path / "run", **THREE_TIERS).run()
    assert again["fingerprint"] == whole["fingerprint"]


def test_a_file_rewritten_with_the_same_bytes_changes_nothing(workflow, whole, tmp_path, tmp_path_factory):
    root = copy_of(workflow, tmp_path_factory)
    driver = make_driver(changed(workflow, data__root=root), tmp_path / "run", **THREE_TIERS)
    watch = driver.runner.watch

    def rewrite_all(done):
        watch(done)
        for file in root.glob("*.parquet"):
            file.write_bytes(file.read_bytes())

    driver.runner.watch = rewrite_all
    assert driver.run()["fingerprint"] == whole["fingerprint"]
