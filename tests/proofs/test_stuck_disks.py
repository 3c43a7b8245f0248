"""A disk that stops answering: the process says what it waits for, ends, and goes on later with the same bits."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import make_table, make_workflow
from support.scratch import DISK
from test_stop import ROOT, write_workflow

from pipeline.run import main

HANGS = """
import ctypes, os, sys, time
from llvmlite.binding import add_symbol
from pipeline.machine import stuck

what, after, fifo = sys.argv[1], int(sys.argv[2]), sys.argv[3]
stuck.REPORT_SECONDS, stuck.END_SECONDS, stuck.SCAN_SECONDS = 1, 3, 0.3
stuck.watch_process()
word, libc, num = ctypes.c_int64, ctypes.CDLL(None, use_errno=True), [0]
SYSCALL = ctypes.CFUNCTYPE(word, *[word] * 6, use_errno=True)
libc.syscall.restype = word

def hangs(kind):
    num[0] += kind == what
    return kind == what and num[0] > after

def syscall(number, *args):
    # io_getevents has a time limit, and nothing is done when it is over. The disk's speed is measured before.
    if number == 208 and measured and hangs("in_flight"):
        time.sleep(1)
        return 0
    return libc.syscall(*map(word, (number, *args)))

keep = SYSCALL(syscall)
add_symbol("syscall", ctypes.cast(keep, ctypes.c_void_p).value)

from pipeline.driver import driver
from pipeline.storage.files import Files

measured, measure = [], driver.measure
def measure_first(*args):
    found = measure(*args)
    measured.append(found)
    return found
driver.measure = measure_first

class System:
    def __getattr__(self, name):
        return getattr(os, name)

    def fsync(self, descriptor):
        if hangs("commit"):
            open(fifo)
        os.fsync(descriptor)

Files.system = System()
from pipeline.run import main

sys.exit(main(sys.argv[4:]))
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A workflow most of whose rows are on disk, with a commit before the disk stops."""
    root, rng = tmp_path_factory.mktemp("stuck"), np.random.default_rng(0)
    pq.write_table(make_table(rng, 3000, 40_000), root / "train.parquet", row_group_size=1000)
    storage = {"device": 1 << 19, "host": 1 << 19, "direct": True}
    workflow = make_workflow(root, block_batches=1, batch_size=50, shuffle_window=500, epochs=1, storage=storage)
    return write_workflow(workflow.with_settings({"data.validation": (), "data.test": ()}), root)


@pytest.fixture(scope="module")
def expected(file):
    with tempfile.TemporaryDirectory(dir=os.environ[DISK]) as run_dir:
        assert main([file, "--run-dir", run_dir, "--serial"]) == 0
        return json.loads((Path(run_dir) / "result.json").read_text())["fingerprint"]


@pytest.mark.prove
@pytest.mark.disk
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="system calls have other numbers")
@pytest.mark.parametrize(
    ("what", "after", "flags", "named"),
    [
        pytest.param("in_flight", 5, [], "prefetch of block", id="in_flight"),
        pytest.param("commit", 40, ["--serial"], "commit 2", id="commit"),
    ],
)
def test_a_disk_that_stops_ends_a_run_which_goes_on(file, expected, tmp_path, what, after, flags, named):
    run_dir, fifo = tmp_path / "run", tmp_path / "hangs"
    os.mkfifo(fifo)
    command = [file, "--run-dir", str(run_dir), "--set", "commit.every_blocks=10"]
    child = subprocess.run(
        [sys.executable, "-c", HANGS, what, str(after), str(fifo), *command, *flags], cwd=ROOT, capture_output=True,
        text=True, timeout=100, check=False,
    )  # fmt: skip
    assert child.returncode == 1, child.stderr
    where = f"reading '{run_dir}/table.zarr/rows/" if what == "in_flight" else f"opening '{fifo}'"
    assert f"s, {where}" in child.stderr
    assert f"in {named}" in child.stderr
    assert "error: no answer for 3 s" in child.stderr
    assert any((run_dir / "commits").iterdir())
    assert main([*command, "--serial"]) == 0
    assert json.loads((run_dir / "result.json").read_text())["fingerprint"] == expected
