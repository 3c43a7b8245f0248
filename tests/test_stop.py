"""Signals: the first one ends a run at a commit, the second one now; either way the run goes on from a commit."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import make_workflow, write_data
from support.runs.harness import THREE_TIERS, make_driver, run

from pipeline.machine.signals import end_at_interrupt, exit_code, heed_interrupts, on_signal
from pipeline.run import main as run_cli
from pipeline.workflow import Workflow

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
    time.sleep(0.2)
    return train(*args)

stage_runner.train = slow
sys.exit(main(sys.argv[1:]))
"""

HANGS = """
import sys
from importlib import import_module
from pipeline.run import main

module, name, after, fifo = sys.argv[1:5]
module, calls = import_module(module), iter(range(int(after)))
call = getattr(module, name)

def hangs(*args):
    if next(calls, None) is None:
        print("hangs", flush=True)
        open(fifo)
    return call(*args)

setattr(module, name, hangs)
sys.exit(main(sys.argv[5:]))
"""

WAITS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pipeline.machine.process import begin_command
from pipeline.machine.signals import heed_interrupts

begin_command()
heed_interrupts()
with ThreadPoolExecutor(1) as thread:
    thread.submit(open, sys.argv[1])
    print("hangs", flush=True)
"""

DROPS = """
import time
from pipeline.machine.process import begin_command
from pipeline.machine.signals import heed_interrupts

begin_command()
heed_interrupts()

class Slow:
    def __del__(self):
        print("in a finalizer", flush=True)
        time.sleep(10)

try:
    Slow()
    time.sleep(10)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    time.sleep(0.5)
    print("the end")
"""


@pytest.fixture(scope="module")
def workflow(tmp_path_factory):
    """Forty blocks of one batch."""
    root = write_data(tmp_path_factory.mktemp("stop"), num_train=90, num_keys=60)
    workflow = make_workflow(root, block_batches=1)
    return workflow.model_copy(update={"storage": workflow.storage.model_copy(update={"device": 1 << 18})})


@pytest.fixture(scope="module")
def expected(workflow):
    return run(workflow, **THREE_TIERS)


def write_workflow(workflow, folder):
    path = folder / "written.py"
    text = workflow.model_dump_json()
    path.write_text(f"from pipeline.workflow import Workflow\nworkflow = Workflow.model_validate_json({text!r})\n")
    return str(path)


def started(script, *argv):
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", script, *argv], cwd=ROOT, stdout=pipe, stderr=pipe, text=True)


def until(file, text):
    """Read lines of a process up to the one with the text."""
    while text not in (line := file.readline()):
        assert line


@pytest.mark.prove(every=True)
@pytest.mark.parametrize(
    ("number", "flags"), [(signal.SIGINT, []), (signal.SIGTERM, ["--serial"])], ids=["int", "term"]
)
def test_the_first_signal_ends_in_a_commit_and_says_how_to_go_on(workflow, expected, tmp_path, number, flags):
    run_dir = tmp_path / "run"
    argv = [write_workflow(workflow, tmp_path), "--run-dir", str(run_dir), *flags]
    process = started(SLOW, *argv)
    until(process.stdout, "training")
    process.send_signal(number)
    out, err = process.communicate(timeout=50)
    assert process.returncode == 128 + number, err
    name = signal.Signals(number).name
    assert f"{name}: finishing the planned blocks, then a commit; a second signal stops at once" in err
    assert "commit 1 is kept, up to epoch 1, train, batch " in out
    assert "the same command resumes from there" in out
    assert "Traceback" not in out + err
    assert not (run_dir / "result.json").exists()
    resumed = make_driver(
        Workflow.model_validate_json((run_dir / "workflow.json").read_text()), run_dir, chunk_rows=1024
    )
    assert 0 < resumed.committer.position.batch < 15
    assert resumed.run()["fingerprint"] == expected["fingerprint"]


@pytest.mark.prove(every=True)
@pytest.mark.parametrize(
    ("module", "name", "after", "flags"),
    [("pipeline.worker.stage_runner", "prefetch", 12, []), ("pipeline.worker.worker", "flush", 1, ["--serial"])],
    ids=["stage", "commit"],
)
def test_a_second_signal_ends_a_run_whose_disk_hangs(workflow, expected, tmp_path, module, name, after, flags):
    """A file is opened that does not answer: by a stage in its thread, or by a commit in the main thread."""
    os.mkfifo(fifo := tmp_path / "hangs")
    argv = [write_workflow(workflow, tmp_path), "--run-dir", str(tmp_path / "run"), "--set", "commit.every_blocks=4"]
    process = started(HANGS, module, name, str(after), str(fifo), *argv, *flags)
    until(process.stdout, "hangs")
    process.send_signal(signal.SIGINT)
    until(process.stderr, "a second signal")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == -signal.SIGINT
    assert list((tmp_path / "run/commits").glob("*.json"))
    assert run_cli([*argv, "--serial"]) == 0
    assert json.loads((tmp_path / "run/result.json").read_text())["fingerprint"] == expected["fingerprint"]


def test_two_interrupts_end_a_command_whose_file_hangs(tmp_path):
    """Its end waits for the thread, forever, unless the first interrupt comes while Python already waits for it."""
    os.mkfifo(fifo := tmp_path / "hangs")
    with started(WAITS, str(fifo)) as process:
        until(process.stdout, "hangs")
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        process.communicate(timeout=10)
    assert process.returncode == -signal.SIGINT


def test_an_interrupt_that_a_finalizer_drops_comes_again():
    process = started(DROPS)
    until(process.stdout, "in a finalizer")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("interrupted\nthe end\n", "")
    assert process.returncode == 0


def test_a_signal_between_commits_ends_the_run_with_a_commit(workflow, expected, tmp_path):
    """In this process: a signal while block 7 trains."""
    driver = make_driver(workflow, tmp_path, **THREE_TIERS)
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
    assert make_driver(workflow, tmp_path, **THREE_TIERS).run()["fingerprint"] == expected["fingerprint"]


def test_a_run_whose_output_is_closed_ends_with_a_commit(workflow, tmp_path, monkeypatch):
    told = []

    def closed(self, done):
        if done.number == 7 and not told:
            told.append(done)
            raise BrokenPipeError

    monkeypatch.setattr("pipeline.driver.observers.TerminalDisplay.on_stage", closed)
    monkeypatch.setattr("pipeline.driver.runner.discard_output", lambda: "SIGPIPE")
    driver = make_driver(workflow, tmp_path, **THREE_TIERS)
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


def test_a_command_heeds_interrupts_before_it_imports_more():
    code = "import sys; sys.argv[0], sys.orig_argv = '-m', ['python', '-m', 'pipeline']; import pipeline; {}"
    heeds = "import signal; print(signal.getsignal(2).__module__, *({'numpy', 'torch', 'pyarrow'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code.format(heeds)], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "pipeline.machine.signals\n"


def test_an_ignored_interrupt_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        end_at_interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        heed_interrupts()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
