"""Whole studies with their processes: trials that are killed, pruned or interrupted; the best one is tested once."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.depth import some
from support.runs.studies import trials_of

from pipeline.workflow import load

pytest.importorskip("optuna")
pytestmark = [pytest.mark.prove, pytest.mark.timeout(900)]

PLATEAU = "threads=1, epochs=3, plateau=Plateau(metric='logloss', stop_after=2)"
SPACE = """
from pipeline.api import Between, Plateau, Tune
tune = Tune(space={"optimizer.rows.lr": Between(low=1e-4, high=1.0, log=True), "model.embedding_dim": [2, 3]})
"""


@pytest.fixture
def study_file(workflow_file):
    text = workflow_file.read_text().replace("threads=1", PLATEAU)
    text = text.replace("labels=", 'test=("test.parquet",), labels=').replace("\nworkflow =", f"{SPACE}\nworkflow =")
    # A trial has half of the caps.
    text = text.replace('"1 MiB"', '"4 MiB"').replace("64 MiB", "256 MiB")
    workflow_file.write_text(text)
    # A trial imports no library from the current folder.
    (workflow_file.parent / "numpy.py").write_text("raise SystemExit(7)")
    return workflow_file


def command(workflow, out, *options):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    call = [sys.executable, "-P", "-m", "pipeline", "tune", str(workflow), "--out", str(out), *options]
    return subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finished(process, code=0):
    out, err = process.communicate(timeout=400)
    assert process.returncode == code, out + err
    return out, err


def children(process):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == process.pid and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


class Killer(threading.Thread):
    """Kills trials of a study at random moments, so many times."""

    def __init__(self, process, kills, seed):
        super().__init__()
        self._process, self._left, self._rng = process, kills, random.Random(seed)
        self.killed = 0

    def run(self):
        while self._process.poll() is None and self.killed < self._left:
            time.sleep(self._rng.uniform(0.2, 6))
            for pid in children(self._process)[:1]:
                os.kill(pid, signal.SIGKILL)
                self.killed += 1


def figures(out):
    (verdict,) = (out / "records").glob("best-*/verdict.json")
    return json.loads(verdict.read_bytes())["test"]


@pytest.mark.parametrize("seed", some(range(4), 0))
def test_a_study_with_killed_trials_equals_an_undisturbed_one(study_file, tmp_path, seed):
    options = ("--trials", "2", "--parallel", "2")
    finished(command(study_file, tmp_path / "whole", *options))
    process = command(study_file, tmp_path / "killed", *options)
    killer = Killer(process, 3, seed)
    killer.start()
    finished(process)
    killer.join()
    assert killer.killed
    assert trials_of(tmp_path / "killed") == trials_of(tmp_path / "whole")
    assert figures(tmp_path / "killed") == figures(tmp_path / "whole")
    best = load(tmp_path / "whole" / "best.py").optimizer.rows.lr
    assert best in {params["optimizer.rows.lr"] for _, _, params, *_ in trials_of(tmp_path / "whole")}


def test_an_interrupted_study_says_the_best_and_how_to_go_on(study_file, tmp_path):
    options = ("--trials", "2", "--set", "data.test=[]")
    process = command(study_file, tmp_path / "out", *options)
    while not (tmp_path / "out" / "records" / "001" / "losses.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = finished(process, 130)
    assert "the best so far: trial 0: logloss" in err
    assert f"to resume: pipeline tune {study_file} --out {tmp_path / 'out'} --trials 2 --set 'data.test=[]'" in err
    out, _ = finished(command(study_file, tmp_path / "out", *options))
    assert f"its run: {tmp_path / 'out' / 'trials' / '00'}" in out
    assert "tested" not in out
    assert [state for _, state, *_ in trials_of(tmp_path / "out")] == ["COMPLETE", "COMPLETE"]
    assert "plotly" in (tmp_path / "out" / "report.html").read_text()
