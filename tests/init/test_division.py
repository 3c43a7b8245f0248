"""Rows are divided by whole units of the time of all rows, and what came out is what was announced."""

import datetime
import pathlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.data.drafts import drafted, splits_of, write_logs
from support.depth import examples, some

from pipeline.files.find import named
from pipeline.init.choice import Choice
from pipeline.init.division import divide
from pipeline.init.look import LOOKED_AT_ROWS, look_at_files
from pipeline.init.roles import choose_roles
from pipeline.prepare.command import sources_of

BEGIN = 1_772_323_200
"""2026-03-01."""


FORMS = {
    "seconds": lambda t: pa.array(t),
    "milliseconds": lambda t: pa.array(t * 1000),
    "timestamps of nanoseconds": lambda t: pa.array(t, pa.timestamp("s")).cast(pa.timestamp("ns")),
    "timestamps of a zone": lambda t: pa.array(t * 1000, pa.timestamp("ms", "Europe/Berlin")),
    "dates": lambda t: pa.array(t // 86_400).cast(pa.int32()).cast(pa.date32()),
    "with T": lambda t: pc.strftime(pa.array(t, pa.timestamp("s")), "%Y-%m-%dT%H:%M:%S"),
    "with a blank": lambda t: pc.strftime(pa.array(t, pa.timestamp("s")), "%Y-%m-%d %H:%M:%S"),
    "with Z": lambda t: pc.strftime(pa.array(t, pa.timestamp("s")), "%Y-%m-%dT%H:%M:%SZ"),
}


def log(times, **more):
    rng = np.random.default_rng(0)
    n = len(times)
    return pa.table({"click": rng.integers(0, 2, n), "user_id": rng.integers(0, 50, n), "time": times, **more})


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("form", some(FORMS, "seconds", "with T", "timestamps of a zone", "dates"))
def test_the_last_weeks_of_a_time_are_held_out_in_any_form(tmp_path, capsys, form, suffix):
    drafted(write_logs(tmp_path, suffix, log=log(FORMS[form](BEGIN + np.arange(6000) * 600))))
    assert [of["rows"] for of in splits_of(tmp_path).values()] == [4176, 1008, 816]
    said = capsys.readouterr().out
    begins = "validation from 2026-03-30 (16.8% of the rows), test from 2026-04-06 (13.6% of the rows)"
    assert f"splits: by the time in time, by whole weeks: {begins}" in said
    assert "warning" not in said


def test_a_sorted_file_of_one_row_group_is_seen_whole(tmp_path):
    """Hours and times of the end are seen, not only those of the first rows."""
    rows = 3 * LOOKED_AT_ROWS
    table = log(BEGIN + np.arange(rows), hour=np.arange(rows) * 24 // rows)
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=rows)
    look = look_at_files([named(tmp_path / "log.parquet")])
    assert look.sample.num_rows == pytest.approx(LOOKED_AT_ROWS, rel=0.02)
    assert next(column for column in look.columns if column.name == "hour").num_different == 24
    found = divide(look, choose_roles(look, ["click"]))
    ends = [BEGIN + 5 * 86_400, BEGIN + 6 * 86_400]
    assert found.option == f"time:time,validation_from={ends[0]},test_from={ends[1]}"


def dated(form):
    return lambda time, n: time.strftime(form)


FIRST = datetime.datetime(2026, 1, 5)
"""A Monday."""
FOLDERS = {
    "log": lambda time, n: "log",
    "hours": dated("day=%Y-%m-%d/hour=%H/part"),
    "parts of days": lambda time, n: f"year={time.year}/month={time.month}/day={time.day}/{n % 2}",
    "plain": dated("%Y/%m/%d/part"),
    "digits": dated("events-%Y%m%d"),
    "numbered": lambda time, n: f"day_{(time - FIRST).days + 1}",
    "sorted": lambda time, n: f"part-{(time - FIRST).days:05}",
    "countries": lambda time, n: f"country={'abcdefgh'[n % 8]}/part",
    "splits": lambda time, n: f"{('Training', 'VAL', 'dev', 'Test')[(time - FIRST).days // 3]}/{n % 2}",
}
"""Layout of a log -> path of the file for a time and a row."""
DIVIDED = {
    "months": ("log", "ts", 365, 7300, 2, "in ts, by whole months: validation from 2026-11-01 (8", "2026-12-01 (9"),
    "few": ("log", "ts", 365, 7300, 10, "in ts, by whole months: validation from 2026-09-01 (16", "2026-11-01 (17"),
    "weeks": ("log", "ts", 60, 6000, 2, "in ts, by whole weeks: validation from 2026-02-23 (11", "2026-03-02 (6"),
    "days": ("log", "ts", 14, 7000, 2, "in ts, by whole days: validation from 2026-01-17 (7", "2026-01-18 (7"),
    "hours": ("log", "ts", 2, 9600, 2, "in ts, by whole hours: validation from 2026-01-06 14:00", "2026-01-06 19:00"),
    "an hour": ("log", "ts", 1 / 24, 7200, 2, "in ts: validation from 2026-01-05 00:48", "2026-01-05 00:54"),
    "part files": ("sorted", "ts", 6, 6000, 2, "in ts, by whole days: validation from 2026-01-09", "2026-01-10"),
    "places": ("countries", "ts", 6, 6000, 2, "in ts, by whole days: validation from 2026-01-09", "2026-01-10"),
    "hour folders": ("hours", "", 2, 9600, 2, "in the paths of the files, by whole hours", "2026-01-06 19:00"),
    "parts of days": ("parts of days", "", 6, 6000, 2, "in the paths of the files, by whole days", "2026-01-10"),
    "plain folders": ("plain", "ts", 6, 6000, 2, "in the paths of the files, by whole days", "2026-01-10"),
    "dated files": ("digits", "", 6, 6000, 2, "in the paths of the files, by whole days", "2026-01-10"),
    "numbered files": ("numbered", "", 6, 6000, 2, "in the paths of the files, by whole days", "test from 6 (16"),
    "1970": ("log", "ts", 14, 7000, 2, "14 rows have a ts such as 1970-01-01 00:00:00, which", "2026-01-18 (7"),
    "9999": ("sorted", "ts", 14, 7000, 2, "whole days: validation from 2026-01-17 (7", "2026-01-18 (7"),
    "1970 of a folder": ("plain", "", 6, 6000, 2, "; 12 rows of files without such a time, such as ", "2026-01-10"),
    "countries": ("countries", "", 6, 6000, 2, "20% of the rows, drawn at random, are held out", ""),
    "no time": ("sorted", "", 6, 6000, 3, "40% of the rows, drawn at random", "20% for each, since only 2,000 rows"),
    "named folders": ("splits", "ts", 12, 6000, 2, "by the names of the folders", ""),
}
"""Layout, time column, days, rows, rows for each positive one -> what is said of the split and of test. In a case that
is called by a year, some times are of that year."""


@pytest.mark.parametrize("case", DIVIDED)
def test_whole_units_of_time_are_held_out(tmp_path, case):
    layout, time, days, rows, each, said, test = DIVIDED[case]
    times = [FIRST + datetime.timedelta(days) * n / rows for n in range(rows)]
    if case[:4].isdigit():
        times[7::500] = [datetime.datetime(int(case[:4]), 1, 1)] * len(times[7::500])
    of_path = {}
    for n, at in enumerate(times):
        of_path.setdefault(tmp_path / f"{FOLDERS[layout](at, n)}.parquet", []).append(n)
    table = pa.table({"click": [int(n % each == 0) for n in range(rows)], **({"ts": times} if time else {})})
    for path, numbers in of_path.items():
        write_logs(path.parent, **{path.stem: table.take(numbers)})
    look = look_at_files(sources_of([str(tmp_path)])[0])
    roles = {"click": "label", "ts": "time"}
    found = divide(look, [Choice(c, roles[c.name], "") for c in look.columns if c.name in roles])
    assert (said in found.why, test in found.why) == (True, True), found.why
    assert sum(found.shares) <= 0.5
    assert bool(found.files) == (layout not in ("log", "countries") and case != "no time")
    if found.files:
        first = {split: [min(of_path[pathlib.Path(str(path))]) for path in of] for split, of in found.files.items()}
        assert max(first["train"]) < min(first["validation"]) < min(first["test"])
        assert sum(map(len, found.files.values())) == len(of_path)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12))
@examples(8, 200)
def test_rows_of_one_time_stay_together(tmp_path_factory, counts):
    """Or, if a part would get more than a quarter of the rows, the rows are divided at random, and it is said why."""
    all_times = np.append(BEGIN + np.repeat(np.arange(len(counts)), counts) * 86400, [BEGIN] * 2)
    look = look_at_files([named(write_logs(tmp_path_factory.mktemp("ties"), log=log(all_times)) / "log.parquet")])
    found = divide(look, [Choice(look.columns[0], "label", ""), Choice(look.columns[2], "time", "")])
    if found.option.startswith("ratio"):
        largest = max([counts[0] + 2, *counts[1:]]) / len(all_times)
        assert len(counts) < 3 or largest > 0.2
        assert "time cannot divide them" in found.why
        return
    begins = [int(word.partition("=")[2]) for word in found.option.split(",")[1:]]
    shares = [(all_times < begins[0]).mean(), ((all_times >= begins[0]) & (all_times < begins[1])).mean()]
    assert shares[0] >= 0.5
    assert found.shares == pytest.approx((shares[1], 1 - sum(shares)))
    assert min(found.shares) > 0


def test_rows_of_parquet_are_not_divided_by_text_of_other_forms(tmp_path):
    times = pc.strftime(pa.array(BEGIN + np.arange(6000) * 600, pa.timestamp("s")), "%d.%m.%Y %H:%M:%S")
    look = look_at_files([named(write_logs(tmp_path, log=log(times)) / "log.parquet")])
    assert "time is text in another form than 2026" in divide(look, choose_roles(look, ["click"])).why


def test_files_of_a_null_partition_are_for_training(tmp_path):
    days = ("__HIVE_DEFAULT_PARTITION__", *(f"2026-11-{day:02}" for day in range(1, 10)))
    for number, day in enumerate(days):
        write_logs(tmp_path / f"day={day}", part=log(np.arange(600) + 600 * number))
    data = drafted(tmp_path).data
    assert "DEFAULT" in str(data.train)
    assert "DEFAULT" not in str((data.validation, data.test))


def test_whole_files_are_shown_with_rows_days_and_rates(tmp_path, capsys):
    for day in range(6):
        table = log(BEGIN + day * 86400 + np.arange(100) * 60)
        write_logs(tmp_path, **{f"day_{day}": table.set_column(0, "click", pa.array([0, 0, 0, 1] * 25))})
    drafted(tmp_path)
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "split rows positive: click time from .. to" in said
    assert "train 400 25.00% 2026-03-01 00:00:00 .. 2026-03-04 01:39:00" in said
    assert "test 100 25.00% 2026-03-06 00:00:00 .. 2026-03-06 01:39:00" in said
