"""The calendar: which rows belong to which span, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.data.source import Source
from pipeline.workflow import Data, Time

NOON = datetime(2026, 11, 24, 12)


def at(*hours: float, zone: Any = None) -> pa.Array:
    """Times so many hours after noon of 24 November."""
    times = [None if hour is None else (NOON + timedelta(hours=hour)).replace(tzinfo=zone) for hour in hours]
    return pa.array(times, pa.timestamp("us", tz=str(zone) if zone else None))


def write(root: Path, *files: Any, name: str = "part-{}.parquet") -> None:
    """Write a file for each array of times; None: one without that column."""
    for number, times in enumerate(files):
        num = 3 if times is None else len(times)
        table = pa.table({"click": [n % 2 for n in range(num)], "item": [*range(9 * number, 9 * number + num)]})
        table = table if times is None else table.append_column("at", times)
        path = root / name.format(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, row_group_size=2)


def source(root: Path, train: Sequence[str] = (".",), **settings: Any) -> Source:
    settings = {"time": Time(name="at")} | settings
    return Source(Data(root=root, train=tuple(train), labels=("click",), categories=("item",), **settings), 0)


def spans(root: Path, **settings: Any) -> dict[str, int]:
    found = source(root, **settings).calendar
    assert found
    return dict(zip(found.labels, found.num_rows, strict=True))


def test_days_go_on_from_file_to_file_and_within_them(tmp_path):
    write(tmp_path, at(-1, 2, 13), at(14, 14, 40), at(90))
    assert spans(tmp_path) == {"2026-11-24": 2, "2026-11-25": 3, "2026-11-26": 1, "2026-11-28": 1}


def test_hours_and_files_are_spans_too(tmp_path):
    write(tmp_path, at(0, 0.5, 1), at(1.5), at())
    assert spans(tmp_path, span="hour") == {"2026-11-24T12": 2, "2026-11-24T13": 2}
    assert spans(tmp_path, span="file", time=None) == {"part-0.parquet": 3, "part-1.parquet": 1}


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_integers_have_a_unit_and_days_begin_in_a_zone(tmp_path, unit):
    factor = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    seconds = [int(datetime(2026, 11, 24, hour, tzinfo=UTC).timestamp()) for hour in (21, 22, 23)]
    write(tmp_path, pa.array([second * factor for second in seconds]))
    assert spans(tmp_path, time=Time(name="at", unit=unit)) == {"2026-11-24": 3}
    berlin = spans(tmp_path, time=Time(name="at", unit=unit, zone="Europe/Berlin"))
    assert berlin == {"2026-11-24": 2, "2026-11-25": 1}


def test_dates_and_times_of_any_zone_are_read(tmp_path):
    write(tmp_path / "dates", pa.array([date(2026, 11, 24), date(2026, 11, 26)]))
    assert spans(tmp_path / "dates") == {"2026-11-24": 1, "2026-11-26": 1}
    write(tmp_path / "zones", at(0, zone=UTC), at(20, zone=ZoneInfo("Asia/Tokyo")))
    assert spans(tmp_path / "zones") == {"2026-11-24": 2}


def test_the_hour_that_a_clock_repeats_is_one_span(tmp_path):
    summer_ends = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    times = [summer_ends + timedelta(hours=n) for n in range(3)]
    write(tmp_path, pa.array(times, pa.timestamp("us", tz="UTC")))
    berlin = Time(name="at", zone="Europe/Berlin")
    assert spans(tmp_path, time=berlin, span="hour") == {"2026-10-25T02": 2, "2026-10-25T03": 1}


@pytest.mark.parametrize("year", [2036, 2038, 2099])
@pytest.mark.parametrize("month", [1, 7])
def test_a_zone_has_summer_time_in_any_year(tmp_path, year, month):
    moments = [datetime(year, month, 1, 21, 10, tzinfo=UTC) + timedelta(minutes=30 * n) for n in range(4)]
    write(tmp_path, pa.array(moments, pa.timestamp("us", tz="UTC")))
    expected = [moment.astimezone(ZoneInfo("Europe/Berlin")).strftime("%Y-%m-%dT%H") for moment in moments]
    found = spans(tmp_path, time=Time(name="at", zone="Europe/Berlin"), span="hour")
    assert found == {label: expected.count(label) for label in expected}


def test_an_hour_that_the_clock_leaves_out_is_no_gap(tmp_path):
    moments = [datetime(2026, 3, 29, hour, 30, tzinfo=UTC) for hour in (0, 0, 1)]
    write(tmp_path, pa.array(moments, pa.timestamp("us", tz="UTC")))
    found = spans(tmp_path, time=Time(name="at", zone="Europe/Berlin"), span="hour")
    assert found == {"2026-03-29T01": 2, "2026-03-29T03": 1}


PATHS = {
    "parts of a date": (("year", "month", "day"), "day", ("year=2026/month=9/day=30", "year=2026/month=10/day=1"),
                        ["2026-09-30", "2026-10-01"]),
    "a date and an hour": (("dt", "hr"), "hour", ("dt=2026-11-24/hr=9", "dt=2026-11-24/hr=10"),
                           ["2026-11-24T09", "2026-11-24T10"]),
    "hours of a day": (("y", "m", "d", "h"), "day", ("y=2026/m=11/d=24/h=09", "y=2026/m=11/d=24/h=10"), ["2026-11-24"]),
    "values": (("year", "week"), "value", ("year=2026/week=52", "year=2027/week=1"), ["2026/52", "2027/1"]),
    "a value that comes again": ("day", "value", ("year=2026/month=11/day=09", "year=2026/month=12/day=09"),
                                 ["2026/11/09", "2026/12/09"]),
}  # fmt: skip


@pytest.mark.parametrize("what", PATHS)
def test_times_come_from_several_columns_of_the_path(tmp_path, what):
    time, span, folders, expected = PATHS[what]
    for folder in folders:
        write(tmp_path / folder, None)
    found = Data(root=tmp_path, train=(".",), labels=("click",), categories=("item",), time=time, span=span)
    assert [*Source(found, 0).calendar.labels] == expected
    assert Data.model_validate_json(found.model_dump_json()).time == found.time


def test_a_path_without_one_of_several_columns_is_refused(tmp_path):
    write(tmp_path / "year=2026", None)
    with pytest.raises(ValueError, match=r"has no value of data\.time, 'month', and has year"):
        source(tmp_path, time=("year", "month", "day"))


def test_files_are_read_by_day_and_within_it_in_their_order(tmp_path):
    """Names say nothing of the day; the least times of the files of a day are shuffled."""
    write(tmp_path, at(30, 24), at(5), at(2, 7), at(28), at(), at(1), at(50), name="x{}.parquet")
    found = source(tmp_path)
    names = [file.path for file in found.identity["train"].files]
    assert names == [f"x{n}.parquet" for n in (1, 2, 5, 0, 3, 4, 6)]
    listed = source(tmp_path, [f"x{n}.parquet" for n in (6, 2, 5, 1, 3, 0)])
    assert [file.path for file in listed.identity["train"].files] == [f"x{n}.parquet" for n in (2, 5, 1, 3, 0, 6)]


def test_days_and_values_come_from_paths(tmp_path):
    for day in ("2026-11-09", "2026-11-10"):
        write(tmp_path / f"day={day}", None, None)
    day = Time(name="day")
    assert spans(tmp_path, time=day) == {"2026-11-09": 6, "2026-11-10": 6}
    assert spans(tmp_path, time=day, span="value") == {"2026-11-09": 6, "2026-11-10": 6}


REFUSED = {
    "null": ((at(0, 1, None),), {}, "part-0.parquet, row 2: column 'at' .data.time. is null"),
    "no column": ((at(0), None), {}, "part-1.parquet has no column 'at', which data.time names; it has click, item"),
    "integers without a unit": ((pa.array([1, 2]),), {}, "has type int64, expected timestamps or dates; give"),
    "times with a unit": ((at(0),), {"time": Time(name="at", unit="s")}, "expected integers, since its unit is 's'"),
    "integers that a unit fits": ((pa.array([1_795_500_000]),), {}, "give data.time a unit, which 's' fits: Time.name"),
    "text": ((pa.array(["2026-11-24"]),), {}, "has type string, expected .*; convert it by .*'%Y-%m-%d'"),
    "text of times": ((pa.array(["2026-11-24 10:00:00"]),), {}, "; convert it by .*'%Y-%m-%d %H:%M:%S'"),
    "zone in some files": ((at(0), at(1, zone=UTC)), {}, "part-1.parquet: .*holds times with a zone, .*as in .*part-0"),
    "zone for times without one": (
        (at(0),), {"time": Time(name="at", zone="Europe/Berlin")}, "without a zone, and is taken as it is written",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_times_that_cut_no_spans_are_refused_with_file_and_row(tmp_path, what):
    files, settings, said = REFUSED[what]
    write(tmp_path, *files)
    with pytest.raises(ValueError, match=said):
        source(tmp_path, **settings)


def test_rows_and_files_may_go_back_in_time_without_a_word(tmp_path):
    write(tmp_path, at(30, 0, 12), at(11, 10, 35), at(2, 1))
    found = source(tmp_path)
    assert not found.notes
    assert dict(zip(found.calendar.labels, found.calendar.num_rows, strict=True)) == {"2026-11-24": 5, "2026-11-25": 3}


def test_a_path_that_is_no_date_is_refused(tmp_path):
    write(tmp_path / "day=monday", None)
    with pytest.raises(ValueError, match="'day', is 'monday' in its path, which is no date"):
        source(tmp_path, time=Time(name="day"))
    write(tmp_path / "day=tuesday", None)
    with pytest.raises(ValueError, match="its path has no value of data"):
        source(tmp_path, ("day=tuesday",), time=Time(name="hour"), span="value")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"span": "day"}, "data.span is 'day', but data.time names no column"),
        ({"span": "file", "label_delay": "3 d"}, "data.label_delay is '3 d', which needs spans that end at a known"),
        ({"time": "at", "label_delay": "3 weeks"}, "data.label_delay is '3 weeks'; give a number and a unit"),
        ({"time": {"name": "at", "zone": "Mars/Base"}}, "there is no time zone 'Mars/Base'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        Data(train=("x",), labels=("click",), categories=("item",), **settings)


def test_a_workflow_without_spans_is_written_as_before():
    assert "time" not in Data(train=("x",), labels=("click",), categories=("item",)).model_dump_json()
