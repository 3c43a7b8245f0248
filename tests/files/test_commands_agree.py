"""Every command sees the same files of a folder in the same order, and a run that was begun keeps the order it has."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import make_table, make_workflow, write_data
from support.data.parquet_files import data_of, write

from pipeline.data.identity import Begun, SplitIdentity
from pipeline.data.source import Source
from pipeline.files import find
from pipeline.files.description import Description
from pipeline.init.look import look_at_files
from pipeline.prepare.command import sources_of
from pipeline.run import main as run
from pipeline.serving.scored_files import list_files
from pipeline.workflow import Data

DATA = Data(train=("x",), labels=("click",), categories=("item",))
FOLDER = ("day=10/part.2.parquet", "day=10/part.10.parquet", "day=9/part.1.parquet", "_temporary/0/part.3.parquet",
          ".ipynb_checkpoints/part.1-checkpoint.parquet", "day=9/_part.7.parquet")  # fmt: skip
IN_ORDER = ["day=9/part.1.parquet", "day=10/part.2.parquet", "day=10/part.10.parquet"]


@pytest.fixture
def folder(tmp_path):
    for number, name in enumerate(FOLDER):
        write(tmp_path / "log" / name, label=[0, 1], c=[number, number])
    for name in ("_SUCCESS", "day=9/.part.1.parquet.crc", "README.md"):
        (tmp_path / "log" / name).touch()
    return tmp_path / "log"


def test_all_commands_see_the_same_files_in_the_same_order(folder):
    data = data_of(folder.parent, train=("log",))
    places = [f"{folder}/{name}" for name in IN_ORDER]
    seen = {
        "run": [f"{folder.parent}/{file.path}" for file in Source(data, 0).identity["train"].files],
        "score": [str(file.source) for file in list_files([str(folder)], folder.parent / "out", DATA, Description())],
        "prepare": [str(file) for file in sources_of([str(folder)])[0]],
        "init": [str(file) for file in look_at_files(sources_of([str(folder)])[0]).paths],
        "shell": [str(file) for file in sources_of(sorted(map(str, folder.glob("day*/part*"))))[0]],
    }
    assert seen == dict.fromkeys(seen, places)


@pytest.mark.parametrize("named", ["{}", "{}/day=*", "{}/*/*.parquet", "{}/**"])
def test_scores_keep_the_folders_below_what_was_named(folder, named):
    files = list_files([named.format(folder)], folder.parent / "out", DATA, Description())
    assert [str(file.out.relative_to(folder.parent / "out")) for file in files] == IN_ORDER


def test_scoring_a_file_twice_is_refused(folder):
    with pytest.raises(ValueError, match="are one file; name it once"):
        list_files([str(folder), f"{folder}/day=9"], folder.parent / "out", DATA, Description())


def test_folders_with_files_of_one_name_have_an_output_each(folder):
    write(folder / "day=10/part.1.parquet", label=[0], c=[1])
    out = folder.parent / "out"
    files = list_files([f"{folder}/day=9", f"{folder}/day=10"], out, DATA, Description())
    assert len({file.out for file in files}) == len(files)
    assert all(str(file.source) == str(folder / file.out.relative_to(out)) for file in files)


@pytest.mark.parametrize("twice", [{"train": ("log", "log/day=9")}, {"test": ("log/day=9/part.1.parquet",)}])
def test_a_file_twice_in_the_data_of_a_run_is_refused(folder, twice):
    data = data_of(folder.parent, **{"train": ("log",)} | twice)
    with pytest.raises(ValueError, match=r"day=9/part\.1\.parquet \(data\.train\) and .* are one file"):
        Source(data, 0)


def test_files_of_a_commit_are_read_in_its_order_if_they_are_the_same(folder):
    begun = [f"log/{FOLDER[n]}" for n in (3, 1, 0, 2, 5)]
    like = Source(data_of(folder.parent, train=("log",)), 0).identity["train"].files[0]

    def source(train, paths):
        files = [like.model_copy(update={"path": path}) for path in paths]
        return Source(
            data_of(folder.parent, train=train), 0, begun=Begun({"train": SplitIdentity(types={}, files=files)})
        )

    for train in (("log",), ("log", "log/day=9")):
        assert [file.path for file in source(train, begun).identity["train"].files] == begun
    with pytest.raises(ValueError, match="are one file"):
        source(train, begun[2:-1])


def text_order(place):
    return str(place).split("/"), str(place)


@pytest.mark.prove
def test_a_run_begun_in_another_order_resumes_to_its_bits(tmp_path, monkeypatch):
    root = write_data(tmp_path, num_train=30, num_keys=60)
    for number in (1, 2, 10):
        table = make_table(np.random.default_rng(number), 30, 60)
        write(root / f"parts/part.{number}.parquet", **{name: table.column(name) for name in table.column_names})
    workflow = make_workflow(root)
    data = workflow.data.model_copy(update={"train": ("parts",), "shuffle_window": 0})
    file = tmp_path / "w.json"
    file.write_text(workflow.model_copy(update={"data": data}).model_dump_json())

    def trained(name, epochs):
        assert (
            run([str(file), "--serial", "--run-dir", str(tmp_path / name), "--set", f"schedule.epochs={epochs}"]) == 0
        )
        found = json.loads((tmp_path / name / "result.json").read_bytes())
        return found["fingerprint"], [Path(file["path"]).name for file in found["data"]["train"]["files"]]

    order = trained("natural", 2)[1]
    assert order == ["part.1.parquet", "part.2.parquet", "part.10.parquet"]
    with monkeypatch.context() as patch:
        patch.setattr(find, "natural_order", text_order)
        whole, order = trained("whole", 2)
        trained("begun", 1)
    assert order == ["part.1.parquet", "part.10.parquet", "part.2.parquet"]
    assert trained("begun", 2) == (whole, order)
    assert trained("begun", 2) == (whole, order)
