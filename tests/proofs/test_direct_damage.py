"""Files of the log that are damaged under a whole process that reads them past the page cache.

Between two sessions or while one reads, bits flip, files are cut short or deleted. A run that goes on over that ends
with a message that names the file, and never with other bits.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.runs.waiting_runs import fingerprint_of, finished, gated, make_run, message_of, of_run, started
from support.scratch import DISK
from test_stop import write_workflow

from pipeline.commits.manifest import Commits
from pipeline.storage.disk_speed import measure
from pipeline.storage.files import Files
from pipeline.storage.log import keys_file, rows_file
from pipeline.verify import main as verify

pytestmark = pytest.mark.prove

TRAIN = "pipeline.worker.stage_runner:train"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """On a file system that takes O_DIRECT."""
    for parent in (Path(os.environ[DISK]), Path("/var/tmp"), Path(__file__).parent):
        try:
            measure(parent, direct=True, num_bytes=1 << 20)
        except (ValueError, OSError):
            continue
        with tempfile.TemporaryDirectory(dir=parent) as name:
            yield Path(name)
        return
    pytest.skip("no file system here takes O_DIRECT")


@dataclass(frozen=True)
class Begun:
    """A run that was ended by a signal halfway, and what one that was not comes to."""

    written: str
    run_dir: Path
    fingerprint: str


@pytest.fixture(scope="module")
def begun(folder: Path) -> Begun:
    written = write_workflow(make_run(folder / "data", direct=True), folder)
    finished(of_run(written, "--run-dir", str(folder / "undisturbed")))
    with gated(TRAIN, 50, [written, "--run-dir", str(folder / "begun")]) as process:
        process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 143, err
    assert "the same command resumes from there" in out
    return Begun(written, folder / "begun", fingerprint_of(folder / "undisturbed"))


@pytest.fixture
def run_dir(begun: Begun, folder: Path) -> Iterator[Path]:
    """A copy."""
    copy = folder / "run"
    shutil.copytree(begun.run_dir, copy)
    yield copy
    shutil.rmtree(copy)


def flipped(file: Path) -> None:
    """A bit of every 64 bytes: almost every row is another."""
    content = np.fromfile(file, np.uint8)
    content[:: 1 << 6] ^= 1 << 3
    with open(file, "r+b") as opened:
        opened.write(content.data)
        os.fsync(opened.fileno())


def truncated(file: Path) -> None:
    os.truncate(file, 100)


def deleted(file: Path) -> None:
    file.unlink()


Damage = Callable[[Path], None]


def max_needed(run_dir: Path, of: Callable[[Path, int, int], Path]) -> Path:
    """The chunk with the most live rows."""
    newest = Commits(run_dir, Files(), keep=1).kept()[-1]
    return of(run_dir / "table.zarr", min(newest.chunks, key=lambda chunk: chunk.stale).number, 1)


@pytest.mark.parametrize("damage", [flipped, truncated, deleted])
@pytest.mark.parametrize("of", [rows_file, keys_file])
def test_a_file_damaged_between_sessions_is_named(
    begun: Begun, run_dir: Path, of: Callable[[Path, int, int], Path], damage: Damage, capfd: pytest.CaptureFixture[str]
) -> None:
    damage(file := max_needed(run_dir, of))
    said = message_of(started(of_run(begun.written, "--run-dir", str(run_dir))), 1, 2)
    assert str(file) in said
    assert verify([str(run_dir)]) == 1
    assert str(file) in capfd.readouterr().out


@pytest.mark.parametrize("damage", [flipped, truncated])
def test_a_file_that_is_damaged_while_a_run_reads_it_is_named(begun: Begun, run_dir: Path, damage: Damage) -> None:
    file = max_needed(run_dir, rows_file)
    with gated(TRAIN, 5, [begun.written, "--run-dir", str(run_dir)]) as process:
        damage(file)
    assert str(file) in message_of(process, 1)


def test_a_file_deleted_during_a_run_is_named_or_changes_no_bit(
    begun: Begun, run_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is there for who has it open. Where a run comes to its end so, `verify` names it if a kept commit needs it."""
    file = max_needed(run_dir, rows_file)
    with gated(TRAIN, 5, [begun.written, "--run-dir", str(run_dir)]) as process:
        deleted(file)
    out, err = process.communicate(timeout=600)
    assert "Traceback" not in out + err
    if process.returncode:
        assert str(file) in err
    else:
        assert fingerprint_of(run_dir) == begun.fingerprint
    needed = [chunk for kept in Commits(run_dir, Files(), keep=9).kept() for chunk in kept.chunks]
    is_needed = any(rows_file(run_dir / "table.zarr", chunk.number, 1) == file for chunk in needed)
    assert verify([str(run_dir)]) == is_needed
    assert (f"{file}: is missing" in capfd.readouterr().out) == is_needed
