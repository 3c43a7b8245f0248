"""What the command `run` leaves in the run directory, and which folders it refuses."""

import json
import os
import re

from pipeline.preflight import sizes
from pipeline.run import main
from pipeline.storage.lock import RunLock


def test_a_run_leaves_all_its_files_and_is_never_overwritten(workflow_file, tmp_path, capsys, monkeypatch):
    argv = [str(workflow_file), "--serial", "--set", 'data.test=["test.parquet"]']
    assert main(argv) == 0
    assert "error" not in capsys.readouterr().err
    run_dir = tmp_path / "runs" / "tiny"
    outputs = {"model.safetensors", "workflow.json", "metrics.jsonl", "result.json", "live.jsonl"}
    assert {"table.zarr", "commits", "report.html", *outputs} == {path.name for path in run_dir.iterdir()}
    result = (run_dir / "result.json").read_bytes()
    assert json.loads(result)["examples"] == 40

    # All is done: the same command says so, and begins nothing; another workflow is refused as ever.
    with monkeypatch.context() as patched:
        patched.setattr("pipeline.driver.session.open_session", None)
        patched.setattr("pipeline.preflight.setup.rehearse", None)
        assert main(argv) == main([*argv, "--set", "storage.host=2 MiB"]) == 0
        said = capsys.readouterr().out.splitlines()
        assert said[0] == "nothing to do: runs/tiny has ended after epoch 1, with commit 1"
        assert said[1].startswith("epoch 1 test: auc ")
        assert f"fingerprint {json.loads(result)['fingerprint']}" in said
        assert "schedule.epochs=N (more than 1)" in said[-1]
        assert "--fresh" in said[-1]
        assert main([*argv, "--set", "seed=1"]) == 2
        assert "seed: was 0, is 1" in capsys.readouterr().err
        assert main([*argv, "--set", "optimizer.dense.lr=0.5"]) == 2
        said = capsys.readouterr()
        assert "its results are not those of this workflow:\n       optimizer.dense.lr: was 0.001, is 0.5" in said.err
        assert "auc" not in said.out
    (run_dir / "model.safetensors").unlink()
    assert main(argv) == 0
    assert "holds all of the training" in capsys.readouterr().err
    assert (run_dir / "model.safetensors").exists()
    assert (run_dir / "result.json").read_bytes() == result

    assert main([*argv, "--fresh"]) == 0
    said = capsys.readouterr().out
    moved = re.search(
        r"^--fresh: what was in runs/tiny is now (.*) \((.*) [KM]iB\); to delete it: rm -r (.*)$", said, re.M
    )
    assert moved[1] == moved[3] == "runs/tiny.1"
    assert float(moved[2]) > 0
    assert (tmp_path / "runs" / "tiny.1" / "result.json").read_bytes() == result
    again = json.loads((run_dir / "result.json").read_bytes())
    assert again["fingerprint"] == json.loads(result)["fingerprint"]


def test_a_run_names_its_report_when_it_begins_and_ends(workflow_file, tmp_path, capsys):
    assert main([str(workflow_file), "--serial", "--run-dir", "a run", "--set", "data.test=[]"]) == 0
    said = capsys.readouterr()
    assert "report: a run/report.html (open it in a browser; it follows the run)\n" in said.err
    assert "\nreport: a run/report.html\n" in said.out
    assert ">finished<" in (tmp_path / "a run" / "report.html").read_text()


def test_a_folder_that_holds_no_run_is_refused_and_kept_by_fresh(refused, workflow_file, tmp_path):
    run_dir = tmp_path / "thesis"
    run_dir.mkdir()
    (run_dir / "chapter-1.txt").write_text("years of work")
    assert f"{run_dir} is not empty and holds no run; --fresh" in refused(workflow_file, "--run-dir", run_dir)
    assert [path.name for path in run_dir.iterdir()] == ["chapter-1.txt"]
    assert main([str(workflow_file), "--serial", "--run-dir", str(run_dir), "--fresh"]) == 0
    assert (tmp_path / "thesis.1" / "chapter-1.txt").read_text() == "years of work"


def test_a_run_directory_in_use_is_refused(refused, workflow_file, tmp_path):
    with RunLock(tmp_path / "runs" / "tiny"):
        assert f"tiny is in use by process {os.getpid()}" in refused(workflow_file, "--serial")
        assert f"tiny is in use by process {os.getpid()}" in refused(workflow_file, "--serial", "--fresh")
    assert not (tmp_path / "runs" / "tiny").exists()


def test_a_run_directory_that_is_a_file_is_refused(refused, workflow_file):
    assert "tiny.py" in refused(workflow_file, "--run-dir", workflow_file)


def test_a_run_that_ends_early_has_a_result_and_exit_code_1(workflow_file, tmp_path, capsys, monkeypatch):
    # Room for the first window's rows, and not for those of the whole run.
    monkeypatch.setattr(sizes, "bytes_for", lambda num_keys: 0)
    assert main([str(workflow_file), "--serial", "--set", "storage.map=64 KiB"]) == 1
    err = capsys.readouterr().err
    assert "error: stopped before block 0" in err
    assert re.search(r"would need (\d+ KiB) and has 64 KiB; raise storage.map from 64 KiB to at least \1\n", err), err
    assert "the same command with a larger storage.map resumes from there" in err
    assert json.loads((tmp_path / "runs" / "tiny" / "result.json").read_text())["stopped"]
    assert (tmp_path / "runs" / "tiny" / "result.json").exists()


def test_a_model_that_diverges_is_warned_about(workflow_file, capsys):
    rates = ["--set", "optimizer.rows.lr=1e9", "--set", "optimizer.dense.lr=1e9"]
    assert main([str(workflow_file), "--serial", *rates]) == 0
    assert "warning: ne of validation is " in capsys.readouterr().err


def test_an_interrupt_while_a_run_closes_ends_it_with_a_message(workflow_file, tmp_path, capsys, monkeypatch):
    """Stages are not watched for signals any more then."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("pipeline.cluster.local_crew.LocalCrew.close", interrupted)
    assert main([str(workflow_file), "--run-dir", str(tmp_path / "run"), "--serial"]) == 130
    assert "interrupted at its end: the commits are kept, and the same command resumes" in capsys.readouterr().err
