"""`pipeline replay`: the tiers of result.json without the training, and clear words for what is wrong."""

import json

import pytest
from conftest import make_workflow
from support.runs.replayed_runs import with_settings

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


def test_a_run_is_simulated_by_its_workflow(trained, capsys):
    file, run_dir, _ = trained
    assert found(capsys, run_dir, "--no-bound") == found(capsys, file, "--no-bound")


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
    assert len(value["cells"]) == 25
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


def test_what_is_no_run_is_told(capsys, tmp_path):
    assert "is not a run: it has no workflow.json" in refused(capsys, tmp_path)
    (tmp_path / "workflow.json").write_text("{}")
    assert "if its model is your own, name its file with --workflow" in refused(capsys, tmp_path)
