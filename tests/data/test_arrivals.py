"""Files that came and are not taken: incomplete ones, and those that cannot be read. And spans that come in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data.days import day_table, days_workflow
from support.oracle.reference import Reference
from support.runs.harness import make_driver

from pipeline.data.arrivals import Arrivals
from pipeline.data.identity import Begun
from pipeline.driver.driver import Driver
from pipeline.files.find import find
from pipeline.workflow import Time, Workflow

SIZES = {"device_rows": 400, "host_rows": 24, "chunk_rows": 4}
FIRST, SECOND, THIRD = (f"2026-11-2{day}" for day in range(3))
A, B, C = f"day={FIRST}/a.parquet", f"day={FIRST}/site=1/b.parquet", f"day={SECOND}/c.parquet"


@pytest.mark.parametrize(
    ("rule", "marks", "expected"),
    [
        ("name", [], [A, B, C]), ("success", [], []), ("success", ["../_SUCCESS"], []),
        ("success", ["_SUCCESS"], [A, B, C]),
        ("success", [f"day={FIRST}/_SUCCESS"], [A, B]), ("success", [f"day={FIRST}/site=1/_SUCCESS"], [B]),
        ("manifest:m", ["m", f"./{B}\n{C}\n"], [B, C]), ("manifest:m", ["m", f"{B}\n{C}"], [B]),
        ("manifest:m", [f"day={FIRST}/m", "a.parquet\nc.parquet\n"], [A]),
    ],
)  # fmt: skip
def test_a_file_is_taken_once_it_is_complete(tmp_path: Path, rule: str, marks: list[str], expected: Any) -> None:
    log = tmp_path / "log"
    for name, *texts in ([A], [B], [C], marks or [A]):
        (log / name).parent.mkdir(parents=True, exist_ok=True)
        (log / name).write_text("".join(texts) or "PAR1")
    arrivals = Arrivals(days_workflow(log, time=Time(name="day")).with_settings({"data.complete": rule}).data, Begun())
    found = arrivals.complete(find([str(log)], log, form="Parquet").files)
    assert [str(Path(file.place).relative_to(log)) for file in found] == expected
    assert len(arrivals.lines) == len(arrivals.unread) == 3 - len(expected)
    assert arrivals.held == {name[4:14] for name in (A, B, C) if name not in expected}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Three days in three parts of 7 rows each."""
    rng = np.random.default_rng(1)
    for day in range(3):
        table, folder = day_table(rng, day, 21), tmp_path / f"log/day=2026-11-2{day}"
        folder.mkdir(parents=True)
        for part in range(3):
            pq.write_table(table.slice(7 * part, 7), folder / f"{part}.parquet", row_group_size=4)
    return tmp_path / "log"


def workflow_of(log: Path, time: str, **settings: Any) -> Workflow:
    given = {f"data.{name}": value for name, value in settings.items()}
    return days_workflow(log, time=Time(name=time)).with_settings(given)


def night(log: Path, time: str, *places: object, **settings: Any) -> Driver:
    """The run over the first day, extended by these places."""
    workflow = workflow_of(log, time, **{"train": (f"day={FIRST}",), **settings})
    return make_driver(workflow, log.parent / "run", extend=tuple(str(log / str(place)) for place in places), **SIZES)


def trained(result: Any) -> tuple[list[str], int]:
    """Names of the spans that were trained on, and the number of examples."""
    return [entry["span"] for entry in result["epochs"]], result["examples"]


@pytest.mark.parametrize(("time", "first"), [("day", [FIRST, THIRD]), ("at", [FIRST])])
@pytest.mark.parametrize("corrected", [False, True])
def test_an_unreadable_file_is_waited_for_in_one_command(log: Path, time, first, corrected) -> None:
    night(log, time).run()
    file = log / f"day={SECOND}/1.parquet"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    driver = night(log, time, f"day={SECOND}", f"day={THIRD}")
    assert [f"{file} cannot be read; correct it" in line for line in driver.set_aside] == [True]
    assert trained(driver.run()) == (first, 21 * len(first))
    if corrected:
        file.write_bytes(whole)
    driver = night(log, time)
    assert ["is left out" in line for line in driver.set_aside] == [True] * (not corrected)
    rest = [day for day in (SECOND, THIRD) if day not in first]
    assert trained(driver.run()) == ([*first, *rest], 56 + 7 * corrected)
    assert not night(log, time).set_aside


def test_an_incomplete_day_waits_while_later_ones_go_on(log: Path) -> None:
    for day in (FIRST, THIRD):
        (log / f"day={day}/_SUCCESS").touch()
    night(log, "day", complete="success").run()
    driver = night(log, "day", f"day={SECOND}", f"day={THIRD}", complete="success")
    assert [f"span {SECOND} waits" in line for line in driver.set_aside] == [True] * 3
    assert trained(driver.run()) == ([FIRST, THIRD], 42)
    assert not night(log, "day", complete="success").set_aside
    (log / f"day={SECOND}/_SUCCESS").touch()
    assert trained(night(log, "day", complete="success").run()) == ([FIRST, THIRD, SECOND], 63)


@pytest.mark.parametrize("ends", [[7, 14, 21, 28, 35, 42, 49, 56], [21, 63], [5, 24, 25, 44], [40, 60], [63]])
def test_parts_of_a_day_one_by_one_equal_all_at_once(log: Path, ends: list[int]) -> None:
    whole = pa.concat_tables(pq.read_table(file, partitioning=None) for file in sorted(log.rglob("*.parquet")))
    files = [f"{begin:02}.parquet" for begin in [0, *ends] if begin < 63]
    for file, begin, end in zip(files, [0, *ends], [*ends, 63], strict=False):
        pq.write_table(whole.slice(begin, end - begin), log / file, row_group_size=4)
    for n, file in enumerate(files):
        result = night(log, "at", *[file] * bool(n), train=(files[0],), close="next").run()
    at_once = make_driver(
        workflow_of(log, "at", train=tuple(files), close="next"), log.parent / "at-once", **SIZES
    ).run()
    assert result is not None
    assert (result["fingerprint"], trained(result)) == (at_once["fingerprint"], ([FIRST, SECOND], 42))
    if ends[0] == 7:
        days = workflow_of(log, "at", train=tuple(files[:6]))
        assert result["fingerprint"] == Reference(days).train().fingerprint()
