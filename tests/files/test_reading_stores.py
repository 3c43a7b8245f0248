"""Data in a store are data on a disk: every command makes the same of them, also while the store fails."""

import shutil
import time
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import make_workflow, write_data
from support.data.days import days_workflow, write_days
from support.data.parquet_files import LIMIT, blocks_of, epoch_of
from support.runs.harness import run
from support.stores.faulty_proxy import proxying
from support.stores.s3_server import CACHE_SECONDS, SECRET, environment, serving_s3

from pipeline.__main__ import main
from pipeline.data.buffer import ReadBuffer
from pipeline.data.side_files import SideFiles
from pipeline.data.source import Source
from pipeline.files import stores
from pipeline.files.find import find
from pipeline.messages.uris import cut
from pipeline.workflow import Workflow

SIZES = dict(device_rows=120, host_rows=24, chunk_rows=4)


@pytest.fixture(scope="module")
def bucket():
    with serving_s3() as bucket:
        write_data(bucket[0] / "log", num_train=90, num_keys=60)
        yield bucket


@pytest.fixture
def store(bucket, monkeypatch):
    monkeypatch.setattr(stores, "PAUSES", (0.01, 0.02))
    folder, port = bucket
    with proxying(port) as proxy:
        for name, value in environment(proxy.port).items():
            monkeypatch.setenv(name, value)
        yield folder, proxy


def on(workflow: Workflow, root: str | Path) -> Workflow:
    return workflow.model_copy(update={"data": workflow.data.model_copy(update={"root": Path(root)})})


@pytest.mark.parametrize(
    "source",
    ["a", "a/x.parquet", "a/*.parquet", "**/*.parquet", "*/day=*", "a/day=[12]/*", "a/_h/*.parquet", "a/**", "."],
)
def test_a_store_has_the_files_of_a_folder(store, source, monkeypatch, tmp_path):
    folder, _ = store
    shutil.rmtree(folder / "tree", ignore_errors=True)
    for name in ("x", "y 1", "part-10", "part-9", "_h/z", "day=1/p", "day=2/_t/q", "day=2/r%2F", "day=10/s"):
        path = folder / f"tree/a/{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "log/test.parquet", path)
    time.sleep(3 * CACHE_SECONDS)
    here = find([source], folder / "tree", form="Parquet").files
    for root in ("s3://b/tree", "s3://b/tree?region=us-east-1"):
        there = find([source], Path(root), form="Parquet").files
        assert [(f.below, f.partitions, f.suffix) for f in there] == [(f.below, f.partitions, f.suffix) for f in here]
        assert [cut(f.place)[0].removeprefix("s3://b/") for f in there] == [
            str(Path(f.place).relative_to(folder)) for f in here
        ]
        direct = find([f"s3://b/tree/{source}" if source != "." else root], form="Parquet").files
        assert [f.below for f in direct] == [f.below for f in here]


def test_a_run_from_a_store_has_the_fingerprint_of_files(store, bucket):
    folder, proxy = store
    workflow = make_workflow(folder / "log")
    faults = {}

    def now_and_then(number, method, path):
        faults[number] = {5: "503", 11: "late cut", 17: "cut"}.get(number % 24)
        return faults[number]

    here = run(workflow, **SIZES)
    proxy.fault = now_and_then
    there = run(on(workflow, "s3://b/log"), **SIZES)
    assert there["fingerprint"] == here["fingerprint"]
    assert [epoch["auc"] for epoch in there["epochs"]] == [epoch["auc"] for epoch in here["epochs"]]
    assert {*faults.values()} == {None, "503", "cut", "late cut"}


def on_store(folder, root="s3://b/log"):
    return Source(on(make_workflow(folder), root).data, 7)


def test_examples_of_a_store_are_those_of_files(store):
    folder, _ = store
    here, there = on_store(folder, folder / "log"), on_store(folder)
    # With the largest row group as it is fetched.
    assert here.window_bytes(6) < there.window_bytes(6) < 1 << 20
    for epoch in (0, 1):
        assert epoch_of(there, 6, 2, epoch=epoch) == epoch_of(here, 6, 2, epoch=epoch)
    assert {split: [file.path for file in one.files] for split, one in here.identity.items()} == {
        split: [file.path for file in one.files] for split, one in there.identity.items()
    }
    here.close()
    there.close()


@pytest.mark.parametrize("when", ["before", "during"])
@pytest.mark.parametrize("size", ["same", "other"])
def test_a_file_that_is_replaced_during_the_run_is_named(store, when, size):
    folder, _proxy = store
    shutil.copytree(folder / "log", folder / "changing", dirs_exist_ok=True)
    time.sleep(3 * CACHE_SECONDS)
    source = on_store(folder, "s3://b/changing")
    if when == "during":
        source.read(next(blocks_of(90, 6, 1)), ReadBuffer(LIMIT))
    for name in ("train-0", "train-1"):
        path = folder / f"changing/{name}.parquet"
        content = bytearray(path.read_bytes())
        if size == "same":
            content[50] ^= 1
            path.write_bytes(content)
        else:
            pq.write_table(pq.read_table(path).slice(0, 40), path, row_group_size=8)
    time.sleep(3 * CACHE_SECONDS)
    with pytest.raises(ValueError, match=r"s3://b/changing/train-\d\.parquet was changed during the run: .*restore"):
        epoch_of(source, 6, 1)
    source.close()


@pytest.mark.prove
def test_no_secret_is_in_anything_that_commands_write(store, tmp_path, monkeypatch, capfd):
    """Every command that takes data or writes to a store, with the keys in its environment."""
    folder, _ = store
    monkeypatch.chdir(tmp_path)
    for argv in (
        ["init", "s3://b/log?region=us-east-1", "--out", "my.py", "--label", "click"],
        ["run", "my.py", "--out", "run", "--set", "storage.disk=1 GiB", "--set", "schedule.epochs=1"],
        ["score", "run", "s3://b/log/test.parquet", "--out", "scored"],
        ["export", "run", "--out", "servables/a", "--publish", "servables"],
        ["report", "run"],
        ["prepare", "parquet", "s3://b/log", "--schema", "click:label", "age:number", "user:category", "--out", "made"],
    ):
        assert main(argv) == 0, (argv, capfd.readouterr())
    printed = capfd.readouterr()
    assert pq.read_table(tmp_path / "scored/test.parquet").num_rows == 9
    assert "s3://b/log" in (tmp_path / "run/workflow.json").read_text()
    written = [path for place in (tmp_path, folder) for path in place.rglob("*") if path.is_file()]
    assert len(written) > 30
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]
    assert SECRET not in printed.out + printed.err
    assert main(["run", "my.py", "--out", "other", "--set", f"data.root=s3://key:{SECRET}@b/log"]) == 2
    assert main(["score", "run", f"s3://b/log?secret_key={SECRET}", "--out", "none"]) == 2
    assert main(["score", "run", "s3://b/log/test.parquet", "--out", f"s3://{SECRET}@b/none"]) == 2
    assert main(["export", "run", "--out", "servables/b", "--publish", f"s3://k:{SECRET}@b/servables"]) == 2
    assert main(["init", f"s3://k:{SECRET}@b/log", "--out", "none.py"]) == 2
    said = capfd.readouterr()
    assert said.err.count("which is not shown here") == 3
    assert said.err.count("must be on a disk of this machine") == 2
    assert SECRET not in said.out + said.err


@pytest.mark.parametrize(("change", "is_late"), [
    (Path.exists, True), (Path.unlink, False), (lambda path: path.write_bytes(b"2" + path.read_bytes()[1:]), False),
])  # fmt: skip
def test_rows_of_lost_objects_are_rewritten_ones(store, change, is_late):
    (day,) = write_days(store[0] / "days", [20])
    data = days_workflow(Path("s3://b/days")).data.model_copy(update={"late": "take", "train": (day.name,)})
    pq.write_table(pq.read_table(day), day.with_name("late.parquet"))
    time.sleep(3 * CACHE_SECONDS)
    begun = Source(data, 0).as_begun
    change(day)
    time.sleep(3 * CACHE_SECONDS)
    assert Source(data, 0, begun=begun).num_examples["train"] == 20, "a worker starts without the object"
    begun = replace(begun, extend=("s3://b/days/late.parquet",), sides=SideFiles(done=1))
    assert Source(data, 0, begun=begun).num_examples["train"] == 20 + 20 * is_late
