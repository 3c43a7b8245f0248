"""Histories made day by day: those of one command, whatever was late, killed or given again."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.depth import deep, examples
from support.faults.kills import killed_anywhere

from pipeline.prepare.main import main

OPTIONS = (
    "--user",
    "user",
    "--time",
    "at",
    "--items",
    "item",
    "--schema",
    "click:label",
    "n:category",
    "--workers",
    "1",
)
ROWS = st.lists(st.tuples(st.sampled_from([1, 1, 2, 3, 9, None]), st.integers(0, 30), st.integers(0, 9)), min_size=1)
DAYS = [[(1, 3, 0), (2, 4, 1), (1, 5, 2)], [(1, 13, 3), (None, 14, 4), (3, 14, 5)], [(1, 23, 6), (2, 4, 7), (2, 25, 8)],
        [(1, 33, 9), (3, 34, 0)]]  # fmt: skip


def write_day(folder, name, rows):
    """File of (user, time, item); time is the number of days since some day."""
    folder.mkdir(exist_ok=True)
    users, times, items = zip(*rows, strict=True)
    at = pa.array([20_000 + at for at in times], pa.date32())
    columns = {"user": pa.array(users, pa.int64()), "at": at, "item": items, "n": range(len(rows))}
    pq.write_table(pa.table(columns | {"click": [0] * len(rows)}), folder / f"{name}.parquet")
    return folder / f"{name}.parquet"


def write_days(folder, days):
    return [write_day(folder, f"day-{number}", rows) for number, rows in enumerate(days)]


def prepared(into, *days, last=2, more=()):
    argv = ["sequences", "--examples", *map(str, days), "--into", str(into), *OPTIONS, "--last", str(last), *more]
    return main(argv)


def outputs(into):
    return {str(path.relative_to(into)): path.read_bytes() for path in into.glob("[!_]*/*")}


def histories(into):
    return [pq.read_table(day, partitioning=None)["hist_item"].to_pylist() for day in sorted(into.glob("day-*"))]


def plain(days, last):
    """By day and row: the user's last events before the row, of what earlier days left and of the day."""
    left, found = {}, []
    for rows in days:
        events = {u: left.get(u, []) + [(at, i) for user, at, i in rows if user == u] for u, _, _ in rows if u}
        events = {user: sorted(of_user, key=lambda event: event[0]) for user, of_user in events.items()}
        found.append([[i for t, i in events.get(user, []) if t < at][-last:] for user, at, _ in rows])
        left |= {user: of_user[-last:] for user, of_user in events.items()}
    return found


@examples(6, 200)
@given(days=st.lists(ROWS, min_size=1, max_size=6), last=st.integers(1, 4), cut=st.integers(0, 5))
def test_days_one_by_one_equal_one_command_byte_by_byte(tmp_path_factory, days, last, cut):
    folder = tmp_path_factory.mktemp("days")
    days = [[*rows, (5, 0, 0)] for rows in days]
    files = write_days(folder / "log", days)
    for some in (files[:cut], files[cut:]):
        assert not some or prepared(folder / "one", *some, last=last) == 0
    assert prepared(folder / "whole", *files, last=last) == 0
    assert outputs(folder / "one") == outputs(folder / "whole")
    assert histories(folder / "whole") == plain(days, last)


def test_a_day_given_again_is_made_from_its_own_state(tmp_path, capsys):
    files = write_days(tmp_path / "log", DAYS)
    assert prepared(tmp_path / "into", *files) == 0
    assert "day-2: 3 events, 1 of them late" in capsys.readouterr().out
    before = outputs(tmp_path / "into")
    assert prepared(tmp_path / "into", files[1]) == 0
    assert (outputs(tmp_path / "into"), capsys.readouterr().out) == (before, "")
    days = [DAYS[0], [(3, 15, 8), (1, 16, 2)], *DAYS[2:]]
    write_day(tmp_path / "log", "day-1", days[1])
    assert prepared(tmp_path / "into", files[1]) == 0
    assert histories(tmp_path / "into") == plain(days, 2)
    write_day(tmp_path / "log", "day-0", days[1])
    assert prepared(tmp_path / "into", files[0]) == 2
    assert "the state before it is not kept (--keep-days 3)" in capsys.readouterr().err


@pytest.mark.prove
def test_a_killed_night_is_made_again_to_the_same_bytes(tmp_path):
    files = write_days(tmp_path / "log", DAYS)
    assert prepared(tmp_path / "begun", *files[:2]) == 0
    assert prepared(tmp_path / "whole", *files) == 0

    def work(folder):
        if not any(folder.iterdir()):
            shutil.copytree(tmp_path / "begun", folder, dirs_exist_ok=True)
        assert prepared(folder, *files[2:]) == 0

    for folder in killed_anywhere(tmp_path, work, deep(17, 1)):
        assert outputs(folder) == outputs(tmp_path / "whole")
        assert not any((folder / "_made").iterdir())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--split", "last"), "--split does not apply to --into"), (("--last", "9"), "made with another --last (2)"),
        (("--user", "who"), "was made with another --user (user)"),
        (("--keep-days", "0"), "the state before it is not kept (--keep-days 0)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_days_there_are_is_refused(tmp_path, capsys, more, said):
    files = write_days(tmp_path / "log", DAYS)
    assert prepared(tmp_path / "into", files[0]) == 0
    write_day(tmp_path / "log", "day-0", DAYS[1])
    assert prepared(tmp_path / "into", files[0], more=more) == 2
    assert said in capsys.readouterr().err
