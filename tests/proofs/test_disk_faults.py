"""A disk that is full, or becomes read-only, as the system makes it so, under whole processes.

It is a small tmpfs in a separate namespace, which another process fills, or which is mounted again. Whatever happens
when, a run ends with one message and no traceback, what it had committed is whole, and once the disk is as it was, the
same command goes on to the bits of a run that nothing happened to.
"""

import errno
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support import depth
from support.runs.waiting_runs import fingerprint_of, finished, gated, make_run, message_of, of_run, started
from test_stop import ROOT, write_workflow

from pipeline.commits.manifest import Commits
from pipeline.storage.files import Files
from pipeline.verify import main as verify

pytestmark = pytest.mark.prove

FULL, READ_ONLY = os.strerror(errno.ENOSPC), os.strerror(errno.EROFS)
ANY = ""
PLACES = (
    ("pipeline.worker.stage_runner:train", 12),
    ("pipeline.worker.worker:flush", 1),
    ("pipeline.commits.manifest:Commits.write_dense", 1),
    ("pipeline.commits.manifest:Commits.publish", 1),
    ("pipeline.worker.worker:Worker.settle", 1),
    (ANY, 4),
    (ANY, 9),
    ("pipeline.driver.driver:write_result", 1),
)
"""Before a block trains; before rows, dense state and manifest of a commit are written; after it; when so many files of
rows have been written; at the end."""


class Disk:
    """A tmpfs that only processes in a separate namespace see, and this one through one of them."""

    def __init__(self, at):
        at.mkdir()
        self.at = at
        """Where its processes see it."""
        mount = f"mount -t tmpfs -o size=96m,mode=755 faulty '{at}' && echo up && exec cat"
        self.keeper = started(["unshare", "--map-root-user", "--mount", "sh", "-c", mount])
        assert self.keeper.stdout
        if self.keeper.stdout.readline() != "up\n":
            pytest.skip(f"a mount in a separate namespace is not to be had here: {self.keeper.communicate()[1]}")
        enter = f"nsenter --target {self.keeper.pid} --user --mount --preserve-credentials env --chdir"
        self.inside = [*enter.split(), str(ROOT)]
        self._filler = self.seen(at / "of another process")

    def seen(self, path):
        """As this process sees it."""
        return Path(f"/proc/{self.keeper.pid}/root{path}")

    def break_it(self, how):
        if how == READ_ONLY:
            return self._mount("ro")
        with open(self._filler, "ab", buffering=0) as file:
            for num_bytes in (1 << 20, 1 << 12):
                with suppress(OSError):
                    while True:
                        file.write(bytes(num_bytes))
        return None

    def mend(self, how):
        if how == READ_ONLY:
            self._mount("rw")
        else:
            self._filler.unlink()

    def _mount(self, how):
        """Anew, as soon as nobody writes a file."""
        argv = [*self.inside, "mount", "-o", f"remount,{how}", str(self.at)]
        until = time.monotonic() + 60
        while (done := subprocess.run(argv, capture_output=True, text=True)).returncode:
            assert time.monotonic() < until, done.stderr


@pytest.fixture
def disk(tmp_path):
    made = Disk(tmp_path / "disk")
    yield made
    made.keeper.communicate(timeout=10)


@pytest.fixture(scope="module")
def workflow(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def fingerprint(workflow, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    finished(of_run(write_workflow(workflow, folder), "--run-dir", str(folder / "run"), "--serial"))
    return fingerprint_of(folder / "run")


def disturbed(disk, how, place, number, argv, run_dir):
    """A run whose disk breaks there."""
    if place != ANY:
        with gated(place, number, argv, disk.inside) as process:
            disk.break_it(how)
        return process
    rows = disk.seen(run_dir / "table.zarr/rows")
    seen = set(rows.glob("c.*"))
    begin = len(seen)
    process = started(of_run(*argv), disk.inside)
    while len(seen) < begin + number:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
        seen |= set(rows.glob("c.*"))
    while process.poll() is None:
        # Older commits are deleted, which makes room.
        disk.break_it(how)
        time.sleep(0.01)
    return process


def says(said, how, run_dir):
    """True if the first line of a message has the reason and a path in the run directory."""
    first = said.splitlines()[0]
    return first.startswith("error: ") and how in first and str(run_dir) in first


@pytest.mark.parametrize("how", [FULL, READ_ONLY])
def test_a_run_goes_on_after_a_full_or_read_only_disk(workflow, fingerprint, tmp_path, disk, how, capfd):
    # The lock is next to the run directory, and what has a file open for writing cannot be made read-only.
    run_dir = disk.at if how == READ_ONLY else disk.at / "run"
    argv = [write_workflow(workflow, tmp_path), "--run-dir", str(run_dir)]
    disk.break_it(how)
    said = message_of(started(of_run(*argv), disk.inside), 2)
    disk.mend(how)
    assert says(said, how, run_dir), said
    for at, (place, number) in enumerate(PLACES if depth.ALL else PLACES[1::2]):
        process = disturbed(disk, how, place, number, argv + ["--serial"] * (at % 2), run_dir)
        said = message_of(process, 1)
        disk.mend(how)
        assert says(said, how, run_dir), f"{place}: {said}"
        if Commits(disk.seen(run_dir), Files(), keep=1).numbers():
            assert verify([str(disk.seen(run_dir))]) == 0, capfd.readouterr()
    finished(of_run(*argv), disk.inside)
    assert fingerprint_of(disk.seen(run_dir)) == fingerprint
    assert "commits are intact" in finished([sys.executable, "-m", "pipeline.verify", str(run_dir)], disk.inside)
