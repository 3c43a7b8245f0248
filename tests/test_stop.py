"""Signals: the first one ends a run at a commit, the second one now; either way the run goes on from a commit."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import make_workflow, write_data
from support.runs.harness import make_driver, run

from pipeline.machine.signals import end_at_interrupt, exit_code, heed_interrupts, on_signal
from pipeline.workflow import Workflow

SIZES = {"device_rows": 130, "host_rows": 24, "chunk_rows": 4}
ROOT = Path(__file__).parent.parent

SLOW = """
import json, sys, time
from pathlib import Path
from pipeline.worker import stage_runner
from pipeline.run import main

train, told = stage_runner.train, []

def slow(*args):
    if not told:
        told.append(print("training", flush=True))
    time.sleep(float(sys.argv[1]))
    return train(*args)

stage_runner.train = slow
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def workflow(tmp_path_factory):
    """Forty blocks of one batch."""
    root = write_data(tmp_path_factory.mktemp("stop"), num_train=90, num_keys=60)
    workflow = make_workflow(root, block_batches=1)
    return workflow.model_copy(update={"storage": workflow.storage.model_copy(update={"device": 1 << 18})})


@pytest.fixture(scope="module")
def expected(workflow):
    return run(workflow, **SIZES)


def write_workflow(workflow, folder):
    path = folder / "written.py"
    text = workflow.model_dump_json()
    path.write_text(f"from pipeline.workflow import Workflow\nworkflow = Workflow.model_validate_json({text!r})\n")
    return str(path)


def child(seconds, *argv):
    return subprocess.Popen(
        [sys.executable, "-c", SLOW, str(seconds), *argv], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("number", "flags"),
    [
        pytest.param(signal.SIGINT, [], id="int"),
        pytest.param(signal.SIGTERM, ["--serial"], id="term", marks=pytest.mark.prove),
    ],
)
def test_the_first_signal_ends_in_a_commit_and_says_how_to_go_on(workflow, expected, tmp_path, number, flags):
    run_dir = tmp_path / "run"
    argv = [write_workflow(workflow, tmp_path), "--run-dir", str(run_dir), *flags]
    process = child(0.2, *argv)
    while (line := process.stdout.readline()) != "training\n":
        assert line
    process.send_signal(number)
    out, err = process.communicate(timeout=50)
    assert process.returncode == 128 + number, err
    assert (
        f"{signal.Signals(number).name}: finishing the planned blocks, then a commit; a second signal stops at once"
        in err
    )
    assert "commit 1 is kept, up to epoch 1, train, batch " in out
    assert "the same command resumes from there" in out
    assert "Traceback" not in out + err
    assert not (run_dir / "result.json").exists()
    resumed = make_driver(
        Workflow.model_validate_json((run_dir / "workflow.json").read_text()), run_dir, chunk_rows=1024
    )
    assert 0 < resumed.committer.position.batch < 15
    assert resumed.run()["fingerprint"] == expected["fingerprint"]


@pytest.mark.prove
@pytest.mark.parametrize("number", [signal.SIGINT])
def test_a_second_signal_ends_the_process_at_once_by_that_signal(workflow, tmp_path, number):
    process = child(5, write_workflow(workflow, tmp_path), "--run-dir", str(tmp_path / "run"), "--serial")
    while (line := process.stdout.readline()) != "training\n":
        assert line
    process.send_signal(number)
    while "a second signal" not in (line := process.stderr.readline()):
        assert line
    process.send_signal(number)
    process.communicate(timeout=4)
    assert process.returncode == -number


def test_a_signal_between_commits_ends_the_run_with_a_commit(workflow, expected, tmp_path):
    """In this process: a signal while block 7 trains."""
    driver = make_driver(workflow, tmp_path, **SIZES)
    watch = driver.runner.watch

    def interrupting(done):
        if done.trained and done.number == 7:
            signal.raise_signal(signal.SIGTERM)
        watch(done)

    driver.runner.watch = interrupting
    assert driver.run() is None
    assert driver.committer.position.epoch == 0
    assert 8 <= driver.committer.position.batch <= 13
    assert "commit 1 is kept" in driver.what_is_kept()
    assert json.loads((tmp_path / "commits" / "000001.json").read_text())["commit"]["state"]["trained"] > 0
    assert make_driver(workflow, tmp_path, **SIZES).run()["fingerprint"] == expected["fingerprint"]


def test_a_run_whose_output_is_closed_ends_with_a_commit(workflow, tmp_path, monkeypatch):
    told = []

    def closed(self, done):
        if done.number == 7 and not told:
            told.append(done)
            raise BrokenPipeError

    monkeypatch.setattr("pipeline.driver.observers.TerminalDisplay.on_stage", closed)
    monkeypatch.setattr("pipeline.driver.runner.discard_output", lambda: "SIGPIPE")
    driver = make_driver(workflow, tmp_path, **SIZES)
    assert driver.run() is None
    assert "commit 1 is kept" in driver.what_is_kept()
    assert exit_code(driver.pauses.signal) == 141


def test_earlier_signal_handlers_are_restored():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    got = []
    with on_signal(got.append):
        os.kill(os.getpid(), signal.SIGINT)
        assert got == ["SIGINT"]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_run_can_begin_outside_the_main_thread():
    got = []

    def begin():
        with on_signal(got.append):
            got.append("ran")

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    assert got == ["ran"]


@pytest.mark.prove
@pytest.mark.parametrize("command", ["run", "verify"])
def test_an_interrupt_during_imports_ends_with_one_line(command, tmp_path):
    # The file of a workflow comes before a run's other imports.
    (file := tmp_path / "none.py").write_text("import pipeline.driver.session\n")
    process = subprocess.Popen(
        [sys.executable, "-m", f"pipeline.{command}", str(file)], cwd=ROOT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    # NumPy is imported by all of them, first of what takes long.
    while "numpy" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None, "it ended before: this shows nothing"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "interrupted before anything was begun\n")


def test_an_ignored_interrupt_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        end_at_interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        heed_interrupts()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
