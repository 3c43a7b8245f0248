"""A year of nightly training in short: what a run says that it was trained on is what was delivered, row by row."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.run import main

WORKFLOWS = Path(__file__).parents[2] / "workflows"
DAYS = runpy.run_path(str(WORKFLOWS / "year_days.py"))
SHELL = 'pipeline() { "$PYTHON" -m pipeline "$@"; }; export -f pipeline; bash "$@"'


def year(nights: int, folder: Path) -> str:
    """Output of the nights, which must end with exit code 0."""
    environment = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = ["bash", "-c", SHELL, "bash", str(WORKFLOWS / "year.sh"), str(nights), "1", str(folder)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{(folder / 'nights.log').read_text()}"
    return done.stdout


@pytest.fixture(scope="module")
def nights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("year") / "nights"
    assert "wrong clock" in year(8, folder)
    return folder


@pytest.fixture
def next_night(nights, tmp_path, monkeypatch):
    """A copy of the eight nights, to which the files of the next one have come."""
    folder = shutil.copytree(nights, tmp_path / "copy")
    DAYS["write"](tmp_path / "more", DAYS["Year"](9, 1))
    came = (tmp_path / "more/nights/008").glob("*.parquet")
    (folder / "early.parquet").write_bytes((folder / "arriving/2026-01-08.parquet").read_bytes())
    for file in came:
        file.replace(folder / "arriving" / file.name)
    for place in ("delivered", "perfect"):
        shutil.copytree(tmp_path / "more" / place, folder / place, dirs_exist_ok=True)
    monkeypatch.chdir(folder)
    return folder


def twice(folder: Path) -> None:
    """Rows of a day that was trained on come again in a file of other bytes, while the first one is still there."""
    table = pq.read_table(folder / "perfect/2026-01-05.parquet")
    DAYS["deliver"](table.slice(1), folder / "arriving/again.parquet", folder)


def left_out(folder: Path) -> None:
    """A day is lost while it waits."""
    (folder / "arriving/2026-01-08.parquet").unlink()


def wrong_labels(folder: Path) -> None:
    """A day does not come again with its later clicks."""
    (folder / "early.parquet").replace(folder / "arriving/2026-01-08.parquet")


@pytest.mark.prove(every=True)
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lambda folder: None, ""),
        (twice, "trained 1 times too often"),
        (left_out, "trained 1 times too little"),
        (wrong_labels, "trained 1 times too little"),
    ],
    ids=["nothing", "twice", "left out", "wrong labels"],
)
def test_a_planted_fault_is_found_by_the_numbers_of_a_year(next_night, plant, said):
    plant(next_night)
    argv = [str(WORKFLOWS / "year.py"), "--serial", "--known-ok", "--extend"]
    assert main([*argv, "arriving"]) == (4 if plant is left_out else 0)
    assert main([*argv, "perfect", "--out", "runs/perfect", "--set", "data.root=perfect"]) == 0
    wrong = DAYS["check"](next_night, DAYS["Year"](9, 1))
    assert any(line.endswith(said) for line in wrong) if said else not wrong


@pytest.mark.prove(weekly=True)
@pytest.mark.timeout(1200)
def test_sixty_nights_train_on_each_row_as_they_should(tmp_path):
    assert year(60, tmp_path / "year").count("2026-") > 60
