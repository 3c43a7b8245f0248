"""Rows out of place: an oracle of plain loops says for each row what becomes of it."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.data.days import day_table, days_workflow
from support.depth import examples
from support.oracle.year import Refused, Rules, name_of, place
from support.runs.harness import make_driver

from pipeline.data.identity import Begun
from pipeline.data.side_files import SideFiles
from pipeline.data.source import Source
from pipeline.settings.columns import Time
from pipeline.spans.rows import part_of
from pipeline.spans.times import Clock
from pipeline.workflow import Data

DAY = 86_400
BEGIN = 1_795_478_400
"""The first second of 24 November 2026."""
EARLIER = 4
"""Number of days by which the oracle's first day comes before it."""


def data_of(root: Path, **settings: Any) -> Data:
    given = {"time": Time(name="at", unit="s"), "train": (".",)} | settings
    return Data(root=root, labels=("click",), categories=("item",), **given)


def write(path: Path, days: list[int]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    times = [BEGIN + DAY * day + 60 * row for row, day in enumerate(days)]
    rows = [*range(len(days))]
    names = [f"{path.name} {row}" for row in rows]
    table = pa.table({"click": [row % 2 for row in rows], "item": names, "at": pa.array(times, pa.int64())})
    pq.write_table(table, path, row_group_size=3)
    return path


def rows_of(source: Source, path: str) -> list[str | None]:
    (file,) = [file for file in source.identity["train"].files if file.path == path]
    names = source.identity["train"].spans or []
    return [None if span is None else names[span] for span, rows in file.spans or () for _ in range(rows)]


FILES = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=7), min_size=1, max_size=3)
RULES = st.sampled_from(["refuse", "take", "take", "drop"])


@given(st.lists(st.tuples(FILES, RULES, RULES, st.integers(1, 2)), min_size=1, max_size=3))
@examples(40, 1000)
def test_each_row_goes_where_the_oracle_puts_it(commands: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root, known, begun = Path(folder), list[str](), Begun()
        for number, (files, late, ahead, gap) in enumerate(commands):
            paths = [
                write(root / f"{number}-{n}.parquet", [day - EARLIER for day in days]) for n, days in enumerate(files)
            ]
            settings = {"train": [p.name for p in paths], "late": late, "ahead": ahead, "gap": f"{gap} d"}
            begun = Begun(begun.splits, tuple(map(str, paths)) if begun.splits else ())
            try:
                expected, names = place(files, known, Rules(late, ahead), gap)
            except Refused as refused:
                with pytest.raises(ValueError, match=str(refused)):
                    Source(data_of(root, **settings), 0, begun=begun)
                return
            source = Source(data_of(root, **settings), 0, begun=begun)
            of_train = source.identity["train"]
            assert of_train.spans == names
            assert [f.path for f in of_train.files[-len(files) :]] == [f"{number}-{n}.parquet" for n, _ in expected]
            scored = Counter(
                name for n, rows in expected for day, (name, _) in zip(files[n], rows, strict=True)
                if name == name_of(day)
            )  # fmt: skip
            assert source.calendar.num_scored[len(known) :] == tuple(scored[name] for name in names[len(known) :])
            for n, rows in expected:
                assert rows_of(source, f"{number}-{n}.parquet") == [name for name, _ in rows]
                (file,) = [file for file in of_train.files if file.path == f"{number}-{n}.parquet"]
                counted = {(one.kind, one.span, one.trained_with): one.rows for one in file.out_of_place or ()}
                by_day = zip(files[n], rows, strict=True)
                assert counted == Counter((kind, name_of(day), name) for day, (name, kind) in by_day if kind)
            again = Source(data_of(root, **settings), 0, begun=Begun(source.identity, begun.extend))
            assert again.identity == source.identity
            known, begun = names, Begun(source.identity)


def two_days(root: Path, *, late: int, as_today: bool = False) -> list[Path]:
    """Files of two days; a row group of yesterday's rows, `late` of them, is the first of the second file."""
    rng = np.random.default_rng(5)
    days = [day_table(rng, day, 24) for day in (0, 1)]
    of_yesterday = day_table(rng, 0, late)
    if as_today:
        at = of_yesterday.column_names.index("at")
        of_yesterday = of_yesterday.set_column(at, "at", days[1]["at"][:late])
    root.mkdir(parents=True)
    paths = [root / f"train-{day}.parquet" for day in (0, 1)]
    pq.write_table(days[0], paths[0], row_group_size=8)
    with pq.ParquetWriter(paths[1], days[1].schema) as writer:
        if late:
            writer.write_table(of_yesterday)
        writer.write_table(days[1], row_group_size=8)
    return paths


@pytest.mark.parametrize(
    ("rule", "as_if"), [("take", {"late": 5, "as_today": True}), ("drop", {"late": 0})], ids=["take", "drop"]
)
def test_a_run_is_as_if_late_rows_were_of_today_or_not_there(tmp_path, rule, as_if):
    found = []
    for name, days in (("late", {"late": 5}), ("as if", as_if)):
        files = two_days(tmp_path / name, **days)
        workflow = days_workflow(tmp_path / name).with_settings({"data.train": (files[0].name,), "data.late": rule})
        for extend in ((), (str(files[1]),)):
            driver = make_driver(workflow, tmp_path / name / "run", extend=extend, device_rows=130, host_rows=24)
            result = driver.run() or {}
            found.append(result["fingerprint"])
            assert [one["examples"] for one in result["epochs"]] in ([24], [24, 24 + as_if["late"] * (name == "as if")])
    assert found[1] == found[3]
    assert found[0] == found[2] != found[1]


def test_rows_of_files_that_are_gone_may_be_the_same_and_are_left_out(tmp_path):
    first, part = write(tmp_path / "a.parquet", [0, 0, 1, 1]), write(tmp_path / "b.parquet", [1, 1])
    begun = Source(data_of(tmp_path, train=("a.parquet", "b.parquet")), 0).identity
    rewritten = write(tmp_path / "c.parquet", [1, 0, 2, 2])
    part.unlink()
    source = Source(data_of(tmp_path, late="take"), 0, begun=Begun(begun, (str(rewritten),)))
    assert rows_of(source, "c.parquet") == [None, "2026-11-26", "2026-11-26", "2026-11-26"]
    assert [note.partition(":")[0] for note in source.notes[:2]] == [
        "1 rows are rewritten (2026-11-25", "1 rows are late (2026-11-24",
    ]  # fmt: skip
    first.unlink()
    source = Source(data_of(tmp_path, late="take"), 0, begun=Begun(begun, (str(rewritten),)))
    assert rows_of(source, "c.parquet") == [None, None, "2026-11-26", "2026-11-26"]


@pytest.mark.parametrize(
    ("changed", "now", "comes"), [("0", [0, 0], [0, 0, 2, 2]), ("1", [], [0, 1, 1, 2])], ids=["cut in two", "merged"]
)
def test_rows_of_changed_files_are_not_trained_on_again(tmp_path, changed, now, comes):
    begun = Begun()
    for name, days in (("0", [0] * 4), ("1", [0, 1, 1])):
        path = write(tmp_path / name, days)
        added = (str(path),) if begun.splits else ()
        begun = Begun(
            Source(data_of(tmp_path, train=("0",), late="take"), 0, begun=Begun(begun.splits, added)).identity
        )
    (tmp_path / changed).unlink()
    if now:
        write(tmp_path / changed, now)
    again = Begun(begun.splits, (str(write(tmp_path / "2", comes)),), sides=SideFiles(done=2))
    source = Source(data_of(tmp_path, train=("0",), late="take"), 0, begun=again)
    assert rows_of(source, "2") == [None if day < 2 else "2026-11-26" for day in comes]


def test_a_gap_is_said_once_and_is_late_when_it_comes(tmp_path):
    names = [write(tmp_path / f"{day}.parquet", [day] * 3) for day in (0, 1, 4, 5)]
    source = Source(data_of(tmp_path, train=tuple(path.name for path in names)), 0)
    assert "no rows lie between the spans 2026-11-25 and 2026-11-28; such rows are late" in (source.notes)[0]
    begun = Begun(source.identity, (str(write(tmp_path / "3.parquet", [3] * 3)),))
    with pytest.raises(ValueError, match=r"3\.parquet, row 0: span 2026-11-27 is late"):
        Source(data_of(tmp_path), 0, begun=begun)
    taken = Source(data_of(tmp_path, late="take"), 0, begun=begun)
    assert (taken.identity["train"].spans or [])[-2:] == ["2026-11-29", "2026-11-27"]
    assert len(taken.notes) == 1
    dropped = Source(data_of(tmp_path, late="drop"), 0, begun=begun)
    assert dropped.identity["train"].spans == source.identity["train"].spans
    assert dropped.num_examples == source.num_examples


@pytest.mark.parametrize(
    ("num_wrong", "rule", "expected"),
    [
        (1, "refuse", "part.parquet, row 7: column 'at' .data.time. is .*; or set data.ahead to 'drop'"),
        (1, "take", "2026-11-24"),
        (1, "drop", None),
        (3, "take", "part.parquet, row 7: column 'at' .data.time. is .*in the unit 'ms' it would be 2026-11-24"),
    ],
)
def test_times_that_are_not_plausible_are_ahead_or_refused(tmp_path, num_wrong, rule, expected):
    write(tmp_path / "part.parquet", [0] * 200)
    table = pq.read_table(tmp_path / "part.parquet")
    times = table["at"].to_pylist()
    times[7 : 7 + num_wrong] = [1000 * time for time in times[7 : 7 + num_wrong]]
    pq.write_table(table.set_column(2, "at", pa.array(times)), tmp_path / "part.parquet", row_group_size=6)
    if isinstance(expected, str) and "part" in expected:
        with pytest.raises(ValueError, match=expected):
            Source(data_of(tmp_path, ahead=rule), 0)
        return
    source = Source(data_of(tmp_path, ahead=rule), 0)
    assert rows_of(source, "part.parquet") == ["2026-11-24"] * 7 + [expected] + ["2026-11-24"] * 192
    assert "1 rows are implausible (no span: 1)" in source.notes[0]


@pytest.mark.parametrize(("hour", "said"), [(0, []), (5, [True]), (11, [True]), (13, []), (30, [])])
def test_a_part_of_a_day_is_named(hour, said):
    lines = part_of("2026-11-24", BEGIN + 3600 * hour, Clock("day"))
    assert ["its other parts are late" in line for line in lines] == said
