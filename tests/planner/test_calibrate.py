"""The machine is measured once; a damaged file is measured again."""

import tempfile
from pathlib import Path

import pytest
from support.data.round_costs import MACHINE
from support.depth import some

from pipeline.machine.cache import CACHE_FOLDER
from pipeline.planner import calibrate
from pipeline.planner.calibrate import cache_file, this_machine


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """What was said while it was measured: a line for each time. Measuring gives a made-up machine."""
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path / "cache"))
    monkeypatch.setattr(calibrate, "calibrate", lambda folder, direct: MACHINE)
    said = []
    return lambda direct=False: (this_machine(tmp_path, direct, said.append), len(said))


def test_a_machine_is_measured_once_per_way_to_read_the_disk(measured, tmp_path):
    assert measured() == (MACHINE, 1)
    assert measured() == (MACHINE, 1)
    assert measured(direct=True) == (MACHINE, 2)
    assert len(list((tmp_path / "cache").iterdir())) == 2


@pytest.mark.parametrize(
    "damage", [lambda b: b"", lambda b: b[:-9], lambda b: b.replace(b"made", b"mode"), lambda b: b"{}\n"]
)
def test_a_damaged_file_is_measured_again_and_replaced(measured, tmp_path, damage):
    measured()
    path = cache_file(tmp_path, False)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert measured() == (MACHINE, 2)
    assert path.read_bytes() == whole
    assert measured() == (MACHINE, 2)


def test_other_versions_are_measured_again(measured, tmp_path, monkeypatch):
    measured()
    before = cache_file(tmp_path, False)
    monkeypatch.setattr(calibrate, "version", lambda package: "9.9")
    assert cache_file(tmp_path, False) != before
    assert measured()[1] == 2


def test_without_a_place_for_the_file_every_command_measures(measured, tmp_path):
    (tmp_path / "cache").write_text("a file, so that no folder can be made")
    assert measured() == (MACHINE, 1)
    assert measured() == (MACHINE, 2)


def test_the_file_is_in_the_users_cache_folder(tmp_path, monkeypatch):
    monkeypatch.delenv(CACHE_FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_file(tmp_path, False).parent == tmp_path / "xdg" / "pipeline"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_file(tmp_path, False).parent == tmp_path / ".cache" / "pipeline"
    monkeypatch.setattr(calibrate.os.path, "expanduser", str)
    assert cache_file(tmp_path, False).parent == Path(tempfile.gettempdir()), "a user without a home folder"


SMALL = {"ROWS": 1 << 10, "KEYS": 1 << 14, "LOOKED_UP": 1 << 10, "PLANNED_SLOTS": 1 << 12, "BLOCKS": 4, "FILES": 2,
         "FILE_ROWS": 1 << 8, "SENT_BYTES": 1 << 16, "MESSAGES": 4}  # fmt: skip


@pytest.mark.parametrize("sizes", some([SMALL, {}], SMALL))
def test_every_constant_of_this_machine_is_measured(tmp_path, monkeypatch, sizes):
    for name, value in sizes.items():
        monkeypatch.setattr(calibrate, name, value)
    machine = calibrate.calibrate(tmp_path, False)
    assert machine.price_per_hour is None
    given = machine.model_dump(exclude_none=True, exclude={"name", "dask_bytes", "ram"})
    assert all(value for value in given.values())
    assert list(tmp_path.iterdir()) == [], "scratch files were left"
