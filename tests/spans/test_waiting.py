"""Spans that wait to be trained on: until then, their files may change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data.days import days_workflow, write_days
from support.oracle.reference import Reference
from support.runs.harness import make_driver

from pipeline.driver.driver import Driver
from pipeline.monitor.report import span_table
from pipeline.spans.waiting import begun_and_done
from pipeline.workflow import Workflow

SIZES = {"device_rows": 400, "host_rows": 24, "chunk_rows": 4}


def day(root: Path, rows: int, seed: int) -> pa.Table:
    """Another delivery of the first day."""
    return pq.read_table(write_days(root / f"made-{seed}", [rows], seed)[0])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A folder with the first day; the second one is in the folder above."""
    write_days(tmp_path, [20, 13])
    (tmp_path / "in").mkdir()
    (tmp_path / "train-0.parquet").rename(tmp_path / "in/a.parquet")
    return tmp_path / "in"


def workflow_of(log: Path) -> Workflow:
    return days_workflow(log.parent, label_delay="1 d").with_settings({"data.train": ("in",)})


def next_day(log: Path) -> Driver:
    """The run, continued by the second day, with which the first one is due."""
    return make_driver(workflow_of(log), log.parent / "run", extend=(str(log.parent / "train-1.parquet"),), **SIZES)


def replaced(log: Path) -> None:
    pq.write_table(day(log.parent, 20, 7), log / "a.parquet")


def renamed(log: Path) -> None:
    pq.write_table(day(log.parent, 25, 7), log / "part-00000-7f.parquet")
    (log / "a.parquet").unlink()


def added(log: Path) -> None:
    pq.write_table(day(log.parent, 5, 7), log / "b.parquet")


def split(log: Path) -> None:
    whole = pq.read_table(log / "a.parquet")
    pq.write_table(whole.slice(0, 9), log / "b.parquet")
    pq.write_table(whole.slice(9), log / "c.parquet")
    (log / "a.parquet").unlink()


@pytest.mark.parametrize("change", [replaced, renamed, added, split])
def test_files_of_a_span_that_waits_may_change(log: Path, change: Callable[[Path], None]) -> None:
    make_driver(workflow_of(log), log.parent / "run", **SIZES).run()
    change(log)
    result = next_day(log).run()
    files = [f"in/{file.name}" for file in sorted(log.iterdir())]
    whole = workflow_of(log).with_settings({"data.train": (*files, "train-1.parquet")})
    assert result is not None
    assert result["fingerprint"] == Reference(whole).train().fingerprint()
    assert [(e["span"], e["trained"]) for e in result["epochs"]] == [("2026-11-20", 0)]


@pytest.mark.parametrize("rows", [0, 19])
def test_a_span_that_lost_rows_waits_until_it_is_whole(log: Path, rows: int) -> None:
    make_driver(workflow_of(log), log.parent / "run", **SIZES).run()
    whole = (log / "a.parquet").read_bytes()
    (log / "a.parquet").unlink()
    if rows:
        pq.write_table(pq.read_table(pa.BufferReader(whole)).slice(0, rows), log / "a.parquet")
    for is_first in (True, False):
        driver = next_day(log)
        assert [line.startswith(f"span 2026-11-20 has {rows} rows and had 20") for line in driver.set_aside] == [
            True
        ] * is_first
        assert (driver.run() or {})["examples"] == 0
    (log / "a.parquet").write_bytes(whole)
    files = {"data.train": ("in/a.parquet", "train-1.parquet")}
    result: dict[str, Any] = next_day(log).run() or {}
    assert result["fingerprint"] == Reference(workflow_of(log).with_settings(files)).train().fingerprint()


@pytest.mark.parametrize(
    ("trained", "expected"), [(0, (0, 0)), (1, (1, 0)), (20, (1, 0)), (40, (1, 1)), (41, (2, 1)), (66, (2, 2))]
)
def test_a_span_is_final_once_training_on_it_has_begun(trained: int, expected: tuple[int, int]) -> None:
    assert begun_and_done((20, 13), 2, trained) == expected


@pytest.mark.parametrize("nulls", [0, 4, 13])
def test_scores_at_arrival_are_shown_and_change_nothing(log: Path, nulls: int) -> None:
    second, third = pq.read_table(log.parent / "train-1.parquet"), write_days(log.parent / "third", [1, 1, 9])[2]
    clicks = pa.array([None] * nulls + second["click"].to_pylist()[nulls:], pa.int8())
    early, found = second.set_column(second.column_names.index("click"), "click", clicks), []
    for scored in (True, False):
        workflow = workflow_of(log).with_settings({"metrics.score_arrivals": scored, "metrics.guard": 9.0})
        for today, extend in ((early, ()), (second, (str(third),))):
            pq.write_table(today, log / "b.parquet")
            found.append(make_driver(workflow, log.parent / f"run-{scored}", extend=extend, **SIZES).run() or {})
    first, result, _, plain = found
    scores = [(e["split"], e["span"][-2:], e["trained"]) for e in result["epochs"]]
    assert scores == [("span", "20", 0), ("arrival", "21", 20), ("span", "21", 20), ("arrival", "22", 33)]
    assert (first["epochs"][1]["auc"] is None) == (nulls == 13)
    assert [e for e in result["epochs"] if e["split"] == "span"] == plain["epochs"]
    assert all(result[name] == plain[name] for name in ("fingerprint", "auc", "logloss", "split", "baselines"))
    assert [line.split()[:2] for line in span_table(first["epochs"])[3:]] == [["2026-11-21", "(waits)"]]


@pytest.mark.parametrize("name", ["a.parquet", "b.parquet"])
def test_later_labels_of_a_file_with_a_trained_day_count(tmp_path: Path, name: str) -> None:
    first, second, third = write_days(tmp_path, [20, 13, 9])
    later = write_days(tmp_path / "later", [1, 13], 7)[1]
    (log := tmp_path / "in").mkdir()

    def write(path: Path, *days: Path) -> None:
        with pq.ParquetWriter(path, pq.read_schema(first)) as writer:
            for day in days:
                writer.write_table(pq.read_table(day), row_group_size=8)

    write(log / "a.parquet", first, second)
    assert (make_driver(workflow_of(log), tmp_path / "run", **SIZES).run() or {})["examples"] == 20
    (log / "a.parquet").unlink()
    write(log / name, first, later)
    result = make_driver(workflow_of(log), tmp_path / "run", extend=(str(third),), **SIZES).run() or {}
    files = {"data.train": (first.name, "later/train-1.parquet", third.name)}
    assert result["fingerprint"] == Reference(workflow_of(log).with_settings(files)).train().fingerprint()
    assert result["out_of_place"] == [{"span": "2026-11-20", "kind": "rewritten", "trained_with": None, "rows": 20}]
