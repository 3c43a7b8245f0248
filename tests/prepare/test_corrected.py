"""After an error in the data the corrected command resumes: it leaves what it would have made in an empty folder."""

import pytest
from support.data.preparations import contents, prepare, write_lines

PIECE = ("--piece-size", "4 KiB", "--workers", 1)


@pytest.fixture
def sources(tmp_path):
    """A folder with three files, each of several parts."""
    (tmp_path / "raw").mkdir()
    for number in range(3):
        write_lines(tmp_path / "raw" / f"day_{number}", "avazu", 150, number)
    return tmp_path / "raw"


def add(path, line, at):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:at], line, *lines[at:]]))


def check_goes_on(tmp_path, sources, capsys, *corrected):
    """The corrected command resumes, and leaves what it would have made in an empty folder."""
    capsys.readouterr()
    assert prepare("avazu", sources, tmp_path / "out", *PIECE, *corrected) == 0
    said = capsys.readouterr().out
    assert "resumes with what was corrected" in said
    assert prepare("avazu", sources, tmp_path / "again", *PIECE, *corrected) == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "again")
    return said


def test_a_command_with_skip_bad_added_keeps_finished_parts(tmp_path, sources, capsys):
    add(sources / "day_1", b"nonsense\n", 60)
    assert prepare("avazu", sources, tmp_path / "out", *PIECE) == 1
    said = capsys.readouterr().err
    assert "day_1: line 61: expected 24 columns, got 1; correct it, or leave bad lines out (--skip-bad " in said
    assert "the same command resumes, when a source is corrected, or with another --skip-bad" in said
    made = [path.stat().st_mtime_ns for path in sorted((tmp_path / "out" / ".prepare" / "write").iterdir())]
    assert made
    said = check_goes_on(tmp_path, sources, capsys, "--skip-bad", 0.1)
    assert "(--skip-bad): 0 parts are made again" in said


def test_only_a_corrected_source_is_read_again(tmp_path, sources, capsys):
    good = (sources / "day_1").read_bytes()
    add(sources / "day_1", b"nonsense\n" * 3000, 60)
    assert prepare("avazu", sources, tmp_path / "out", *PIECE) == 1
    names = {path.name for path in (tmp_path / "out" / ".prepare" / "write").iterdir()}
    (sources / "day_1").write_bytes(good)
    said = check_goes_on(tmp_path, sources, capsys)
    of_day_1 = sum(name.startswith("part-0001") for name in names)
    assert 0 < of_day_1 < len(names)
    assert f"({sources / 'day_1'}): {of_day_1} parts are made again" in said


def test_a_smaller_skip_bad_makes_parts_beyond_it_again(tmp_path, sources, capsys):
    good = (sources / "day_2").read_bytes()
    add(sources / "day_0", b"nonsense\n" * 3, 5)
    add(sources / "day_2", b"nonsense\n" * 3000, 5)
    assert prepare("avazu", sources, tmp_path / "out", *PIECE, "--skip-bad", 0.5) == 1
    (sources / "day_2").write_bytes(good)
    capsys.readouterr()
    assert prepare("avazu", sources, tmp_path / "out", *PIECE, "--skip-bad", 0.001) == 1
    assert "this is bad line 2 of a part" in capsys.readouterr().err
    check_goes_on(tmp_path, sources, capsys, "--skip-bad", 0.5)
