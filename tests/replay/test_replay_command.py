"""`pipeline replay`: the tiers of result.json without the training, and clear words for what is wrong."""

import json
import re

import pytest
from conftest import make_workflow
from support.runs.replayed_runs import with_settings

from pipeline.driver.stretches import STRETCHES
from pipeline.replay.main import main
from pipeline.run import main as run

SMALL = {"device": "14 KiB", "host": "80 KiB", "disk": "16 MiB", "chunk_rows": 1024}


@pytest.fixture(scope="module")
def trained(data_root, tmp_path_factory):
    """A workflow's file, its run directory, and the run's result."""
    folder = tmp_path_factory.mktemp("replayed")
    workflow = make_workflow(data_root, storage=SMALL, block_batches=1, look_ahead=1)
    workflow = with_settings(workflow, ("lru", "lfu"), every_blocks=4, keep_best=False)
    file, run_dir = folder / "small.json", folder / "run"
    file.write_text(workflow.model_dump_json())
    assert run([str(file), "--serial", "--run-dir", str(run_dir)]) == 0
    return file, run_dir, json.loads((run_dir / "result.json").read_bytes())


def found(capsys, *argv):
    """What the command prints: the table, and its last line as a value."""
    assert main([str(arg) for arg in argv]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    return "\n".join(table), json.loads(last)


def refused(capsys, *argv):
    assert main([str(arg) for arg in argv]) == 2
    return capsys.readouterr().err


def test_a_simulated_run_has_the_tiers_of_the_result(trained, capsys):
    file, _, result = trained
    table, value = found(capsys, file)
    (cell,), (bound,) = value["cells"], value["bounds"]
    assert cell["tiers"] == result["tiers"]
    assert (cell["device_policy"], cell["host_policy"]) == ("lru", "lfu")
    assert cell["tiers"]["disk"]["hits"] >= bound["disk_reads"]
    assert "optimal" in table
    assert "lru" in table


def test_a_replayed_run_has_the_tiers_of_the_result(trained, capsys):
    _, run_dir, result = trained
    _, value = found(capsys, run_dir)
    assert value["equals_result"] is True
    assert [cell["tiers"] for cell in value["cells"]] == [result["tiers"]]
    assert value["bounds"] == []


@pytest.mark.prove
def test_sizes_policies_and_a_sample_make_a_grid(trained, capsys, tmp_path):
    _, run_dir, _ = trained
    table, value = found(
        capsys, run_dir, "--sizes", "1", "16 KiB:96 KiB", "--policies", "lru:lfu", "clock:clock", "--sample", "1/2",
        "--workers", "2",
    )  # fmt: skip
    sizes = ["1", "1", "16 KiB:96 KiB", "16 KiB:96 KiB"]
    assert [cell["size"] for cell in value["cells"]] == sizes
    assert [cell["host_policy"] for cell in value["cells"]] == ["lfu", "clock"] * 2
    assert all({*cell["errors"]} == {"device", "memory"} for cell in value["cells"])
    assert len(value["bounds"]) == 2
    assert value["sample"] == 0.5
    assert "±" in table
    _, value = found(capsys, run_dir, "--policies", "all", "--no-bound")
    assert len(value["cells"]) == 1 + 25
    assert value["bounds"] == []


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--sample", "2"], "--sample 2: expected a share of the keys above 0 and up to 1"),
        (["--sample", "1/0"], "--sample 1/0: expected a share"),
        (["--policies", "lru"], "--policies lru: expected DEVICE:HOST"),
        (["--policies", "lru:belady"], "clock, lru, lfu"),
        (["--sizes", "much"], "--sizes much: expected DEVICE:HOST, such as '1 GiB:4 GiB', or a factor, such as 1/2"),
        (["--sizes", "1 MiB:big"], "--sizes 1 MiB:big: expected"),
        (["--sizes", "1/9"], "storage.device is"),
        (["--workers", "99"], "--workers 99"),
    ],
)
def test_a_wrong_argument_is_named(trained, capsys, argv, said):
    assert said in refused(capsys, trained[0], *argv)


def test_what_is_no_run_is_told(trained, capsys, tmp_path):
    assert "is not a run: it has no workflow.json" in refused(capsys, tmp_path)
    (tmp_path / "workflow.json").write_text("{}")
    assert f"has no {STRETCHES}, since an earlier version trained it" in refused(capsys, tmp_path)
    record = tmp_path / STRETCHES
    record.write_bytes((trained[1] / STRETCHES).read_bytes())
    assert "if its model is your own, name its file with --workflow" in refused(capsys, tmp_path)
    (tmp_path / "workflow.json").write_bytes((trained[1] / "workflow.json").read_bytes())
    record.write_text("")
    assert "does not begin with the opening of a run" in refused(capsys, tmp_path)
    record.write_text("all is well\n\n")
    assert f"{record}, line 1: it is not an event of a run" in refused(capsys, tmp_path)


def edited(trained, tmp_path, capsys, change):
    """What the command says of a run whose record was changed."""
    lines = [line for line in (trained[1] / STRETCHES).read_text().split("\n") if line]
    (tmp_path / STRETCHES).write_text("\n".join(change(lines)) + "\n")
    return refused(capsys, tmp_path, "--workflow", trained[0])


def test_a_record_of_other_data_is_told(trained, tmp_path, capsys):
    blocks = lambda lines: [line.replace('"num_blocks":4', '"num_blocks":400') for line in lines]  # noqa: E731
    assert "the record does not fit these data: it has 400 blocks" in edited(trained, tmp_path, capsys, blocks)
    few = lambda lines: [fewer(line) for line in lines]  # noqa: E731
    assert "the record does not fit these data: the run planned block 0" in edited(trained, tmp_path, capsys, few)
    more = lambda lines: [re.sub(r'"train":\d+', '"train":12345', line) for line in lines]  # noqa: E731
    assert "the record does not fit these data: a session had {'train': 12345" in edited(
        trained, tmp_path, capsys, more
    )
    late = lambda lines: lines[:1] + [lines[0].replace('"commit":0,"kept":[]', '"commit":7,"kept":[7]')]  # noqa: E731
    assert "the record of the run has no commit 7" in edited(trained, tmp_path, capsys, late)


def fewer(line):
    event = json.loads(line)
    for worker in event.get("workers", ()):
        worker["device_rows"] = 5
    return json.dumps(event, separators=(",", ":"))
