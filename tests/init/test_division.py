"""Rows are divided by the times of all rows, and what came out is what was announced."""

import datetime
import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.data.drafts import init
from support.depth import examples, some

from pipeline.files.find import named
from pipeline.init.choice import Choice
from pipeline.init.division import by_prepare
from pipeline.init.look import LOOKED_AT_ROWS, look_at_files
from pipeline.init.roles import choose_roles
from pipeline.workflow import load

BEGIN = 1_772_323_200
"""2026-03-01."""


def iso(seconds, form):
    return [datetime.datetime.fromtimestamp(int(s), datetime.UTC).strftime(form) for s in seconds]


FORMS = {
    "seconds": lambda t: pa.array(t),
    "milliseconds": lambda t: pa.array(t * 1000),
    "with T": lambda t: pa.array(iso(t, "%Y-%m-%dT%H:%M:%S")),
    "with a blank": lambda t: pa.array(iso(t, "%Y-%m-%d %H:%M:%S")),
    "timestamps of nanoseconds": lambda t: pa.array(t, pa.timestamp("s")).cast(pa.timestamp("ns")),
    "timestamps of a zone": lambda t: pa.array(t, pa.timestamp("ms", "Europe/Berlin")),
    "dates": lambda t: pa.array(t // 600 - BEGIN // 600 + 20_000).cast(pa.int32()).cast(pa.date32()),
    "with Z": lambda t: pa.array(iso(t, "%Y-%m-%dT%H:%M:%SZ")),
}


def log(times, **more):
    rng = np.random.default_rng(0)
    n = len(times)
    return pa.table({"click": rng.integers(0, 2, n), "user_id": rng.integers(0, 50, n), "time": times, **more})


def made(folder):
    return json.loads((folder / "my_data" / "_prepared.json").read_bytes())["splits"]


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("form", some(FORMS, "seconds", "with T", "timestamps of a zone", "dates"))
def test_the_last_fifth_of_the_time_is_a_fifth_of_the_rows(tmp_path, capsys, form, suffix):
    table = log(FORMS[form](BEGIN + np.arange(6000) * 600))
    if suffix == "csv":
        pa_csv.write_csv(table, tmp_path / "log.csv")
    else:
        pq.write_table(table, tmp_path / "log.parquet")
    assert init([str(tmp_path / f"log.{suffix}"), "--out", str(tmp_path / "my.py")]) == 0
    assert {split: of["rows"] for split, of in made(tmp_path).items()} == {
        "train": 4800,
        "validation": 600,
        "test": 600,
    }
    said = capsys.readouterr().out
    assert "splits: the last fifth of the time in time is held out" in said
    assert "warning" not in said


def test_a_sorted_file_of_one_row_group_is_seen_whole(tmp_path):
    """Hours and times of the end are seen, not only those of the first rows."""
    rows = 3 * LOOKED_AT_ROWS
    table = log(BEGIN + np.arange(rows), hour=np.arange(rows) * 24 // rows)
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=rows)
    look = look_at_files([named(tmp_path / "log.parquet")])
    assert look.sample.num_rows == pytest.approx(LOOKED_AT_ROWS, rel=0.02)
    assert next(column for column in look.columns if column.name == "hour").num_different == 24
    found = by_prepare(look, choose_roles(look, ["click"]))
    ends = [BEGIN + rows * 8 // 10, BEGIN + rows * 9 // 10]
    assert found.option == f"time:time,validation_from={ends[0]},test_from={ends[1]}"


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12))
@examples(20, 200)
def test_rows_of_one_time_stay_together(tmp_path_factory, counts):
    """Or, if training would get less than half of the rows, the rows are divided at random, and it is said why."""
    folder = tmp_path_factory.mktemp("ties")
    days = np.repeat(np.arange(len(counts)), counts)
    times = pa.array((BEGIN + days * 86400).tolist() + [BEGIN] * 2)
    pq.write_table(log(times), folder / "log.parquet")
    look = look_at_files([named(folder / "log.parquet")])
    found = by_prepare(look, [Choice(look.columns[2], "time", "")])
    all_times = np.asarray(times)
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


def test_files_of_a_null_partition_are_for_training(tmp_path):
    days = ("__HIVE_DEFAULT_PARTITION__", *(f"2026-11-{day:02}" for day in range(1, 10)))
    for number, day in enumerate(days):
        (folder := tmp_path / "data" / f"day={day}").mkdir(parents=True)
        pq.write_table(log(np.arange(600) + 600 * number), folder / "part-0.parquet")
    assert init([str(tmp_path / "data"), "--out", str(tmp_path / "my.py"), "--no-try"]) == 0
    data = load(tmp_path / "my.py").data
    assert "DEFAULT" in str(data.train)
    assert "DEFAULT" not in str((data.validation, data.test))


def test_whole_files_are_shown_with_rows_days_and_rates(tmp_path, capsys):
    for day in range(6):
        table = log(BEGIN + day * 86400 + np.arange(100) * 60)
        pq.write_table(table.set_column(0, "click", pa.array([0, 0, 0, 1] * 25)), tmp_path / f"day_{day}.parquet")
    assert init([str(tmp_path), "--out", str(tmp_path / "my.py")]) == 0
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "split rows positive: click time from .. to" in said
    assert "train 400 25.00% 2026-03-01 00:00:00 .. 2026-03-04 01:39:00" in said
    assert "test 100 25.00% 2026-03-06 00:00:00 .. 2026-03-06 01:39:00" in said
