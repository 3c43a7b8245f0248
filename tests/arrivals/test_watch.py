"""A watched folder's files are given to training once, in order; a signal ends the wait."""

import json
import os
import shutil
import signal
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
from support.data.days import days_workflow, write_days
from support.oracle.reference import Reference

from pipeline.arrivals import watch as module
from pipeline.arrivals.complete import Arrivals, Rule
from pipeline.arrivals.watch import watch
from pipeline.driver.driver import Driver
from pipeline.run import main


def write(path):
    pq.write_table(pa.table({"x": [1, 2]}), path.with_suffix(".unfinished"))
    path.with_suffix(".unfinished").rename(path)


def test_files_are_given_once_and_a_failed_training_ends_the_watch(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    given, known = [], set()

    def train(files):
        given.append([file.rpartition("/")[2] for file in files])
        known.update(files)
        if len(given) == 2:
            write(tmp_path / "day-11.parquet")
            write(tmp_path / "day-3.parquet")
        return 7 if len(given) == 3 else 0

    write(tmp_path / "day-2.parquet")
    write(tmp_path / "day-1.parquet")
    known.add(str(tmp_path / "day-1.parquet"))
    said = []
    assert watch(train, Arrivals(str(tmp_path), Rule.of("rename")), lambda: known, said.append) == 7
    assert given == [[], ["day-2.parquet"], ["day-3.parquet", "day-11.parquet"]]
    assert said == [f"1 new file: {tmp_path}/day-2.parquet", f"2 new files: {tmp_path}/day-3.parquet ..."]


def test_a_first_training_that_fails_waits_for_nothing(tmp_path):
    assert watch(lambda files: 2, Arrivals(str(tmp_path), Rule.of("rename")), set, print) == 2


def test_ctrl_c_ends_the_wait_with_its_exit_code(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
    said = []

    def interrupt():
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert watch(lambda files: 0, Arrivals(str(tmp_path), Rule.of("rename")), set, said.append) == 130
    thread.join()
    assert "all that came is committed; the same command resumes" in said[0]


WORKFLOW = """
from pathlib import Path
from support.data.days import days_workflow
workflow = days_workflow(Path({root!r})).with_settings({{"data.train": ["train-0.parquet"]}})
"""


def test_the_command_trains_on_what_comes_and_loses_nothing(tmp_path, monkeypatch, capsys):
    files = write_days(tmp_path / "made", [20, 13, 0, 31, 9])
    root = tmp_path / "root"
    root.mkdir()
    files[0].rename(root / files[0].name)
    (tmp_path / "w.py").write_text(WORKFLOW.format(root=str(root)))
    command = [str(tmp_path / "w.py"), "--out", str(tmp_path / "run"), "--serial", "--watch", str(root)]
    coming, later = files[1:3], files[3:]

    def sleep(seconds):
        if not coming:
            os.kill(os.getpid(), signal.SIGINT)
            return
        file = coming.pop(0)
        shutil.copy(file, root / f".{file.name}")
        (root / f".{file.name}").rename(root / file.name)

    monkeypatch.setattr(module.time, "sleep", sleep)
    monkeypatch.setattr(module, "SILENT_SECONDS", 1e9)
    assert main(command) == 130
    # The power fails while a day is trained on: the commit before it is there, and its file.
    coming[:] = later[:1]
    with monkeypatch.context() as patched:
        patched.setattr(Driver, "_finish", lambda *_: (_ for _ in ()).throw(MemoryError("no power")))
        assert main(command) == 1
    coming[:] = later[1:]
    assert main(command) == 130
    said = capsys.readouterr().out
    assert said.count("new file") >= 3
    for file in files[1:]:
        assert (root / file.name).exists()
    workflow = days_workflow(root)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()
    assert [epoch["span"] for epoch in result["epochs"]] == [f"2026-11-{day}" for day in (20, 21, 23, 24)]


def test_a_workflow_without_spans_is_not_watched(workflow_file, tmp_path, capsys):
    assert main([str(workflow_file), "--watch", str(tmp_path)]) == 2
    assert "--watch needs training data with spans" in capsys.readouterr().err
