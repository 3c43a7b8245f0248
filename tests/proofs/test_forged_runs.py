"""Nothing that is read back from a run directory brings other bits, a traceback, code that runs or harm elsewhere."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest
from conftest import make_workflow, write_data
from support.depth import deep
from support.faults.forging import KINDS, Forger, Watched, fresh_copy, outcome, verified
from support.faults.killed_after_commit import kill_after
from support.runs.harness import run
from test_stop import write_workflow

from pipeline.run import main
from pipeline.workflow import Category, Commit

SEED = 20261122


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A workflow's file, its fingerprint, and directories of a run that was killed and of one that has finished."""
    folder = tmp_path_factory.mktemp("forged")
    root = write_data(folder / "data", num_train=36, num_keys=9)
    workflow = make_workflow(
        root, epochs=1, categories=(Category(name="item"), Category(name="country")), args={"hidden": (2,)}
    )
    data = workflow.data.model_copy(update={"validation": (), "numbers": ()})
    small = {name: 1 << 20 for name in ("device", "host", "read", "map")} | {"disk": 1 << 26}
    storage = workflow.storage.model_copy(update=small)
    workflow = workflow.model_copy(update={"data": data, "storage": storage, "commit": Commit(every_blocks=1)})
    (folder / "payload.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    with pytest.MonkeyPatch.context() as patched:
        kill_after(2, workflow, folder / "killed", patched, chunk_rows=1024, device_rows=1024, host_rows=64)
    file = write_workflow(workflow, folder)
    assert main([file, "--run-dir", str(folder / "finished"), "--serial"]) == 0
    expected = run(workflow, chunk_rows=1024)["fingerprint"]
    assert outcome(file, fresh_copy(folder / "killed", folder / "case"), expected) == "same"
    return folder, file, expected


def forge(runs, watched, seed, each, capsys=None):
    """So many changes of each kind, each in a fresh copy: how many of them ended how; whatever may not be fails."""
    folder, file, expected = runs
    counts = {kind: Counter() for kind in KINDS}
    for number in range(each * len(KINDS)):
        kind, rng = KINDS[number % len(KINDS)], random.Random(f"{seed} {number}")
        # A finished run has no reserve.
        finished = kind in ("model", "result", "metrics") or (kind != "reserve" and rng.random() < 0.3)
        run_dir = fresh_copy(folder / ("finished" if finished else "killed"), folder / "case")
        done = Forger(run_dir, rng).change(kind)
        case = f"seed {seed}, case {number}, {'finished' if finished else 'killed'} run: {kind}: {done}"
        with watched.watching(folder / "case"):
            try:
                found = [] if rng.random() < 0.75 else [verified(run_dir)]
                end = outcome(file, run_dir, expected)
            except BaseException as error:
                raise AssertionError(f"{case}: {type(error).__name__}") from error
        assert end in ("same", "refused"), f"{case}: {end}"
        assert set(found) <= {0, 1, 2}, case
        assert not watched.touched, f"{case}: {watched.touched}"
        assert not watched.imports.names, f"{case}: imports {watched.imports.names}"
        assert (folder / "case/outside/notes.txt").read_text() == "mine", case
        assert not (folder / "ran").exists(), case
        counts[kind][end] += 1
    return counts


@pytest.fixture(scope="module")
def watched():
    return Watched()


def test_any_changed_file_gives_the_same_result_or_one_message(runs, watched):
    counts = forge(runs, watched, SEED, 2)
    ends = sum(counts.values(), Counter())
    assert ends["same"]
    assert ends["refused"]


@pytest.mark.prove
def test_many_changes_end_in_the_same_result_or_one_message(runs, watched, capsys):
    start, each = time.monotonic(), deep(10, 80)
    counts = forge(runs, watched, SEED + 1, each)
    with capsys.disabled():
        print(f"\nseed {SEED + 1}: {len(KINDS)} kinds, {each} changes each, {time.monotonic() - start:.0f} s")
        for kind, ends in counts.items():
            print(f"  {kind:9} same {ends['same']:4}  refused {ends['refused']:4}")
