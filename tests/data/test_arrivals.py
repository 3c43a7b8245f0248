"""Files that came and are not taken: incomplete ones, and those that cannot be read. And parts of a span."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.data.days import day_table, days_workflow, write_days
from support.oracle.reference import Reference
from support.runs.harness import make_driver

from pipeline.data.arrivals import Arrivals
from pipeline.data.identity import Begun
from pipeline.driver.driver import Driver
from pipeline.files.find import find
from pipeline.run import main
from pipeline.workflow import Time, Workflow

SIZES = {"device_rows": 400, "host_rows": 24, "chunk_rows": 4}
A, B, C = "day=2026-11-20/a.parquet", "day=2026-11-20/site=1/b.parquet", "day=2026-11-21/c.parquet"


@pytest.mark.parametrize(
    ("rule", "marks", "expected"),
    [
        ("name", {}, [A, B, C]),
        ("success", {}, []),
        ("success", {"day=2026-11-20/_SUCCESS": ""}, [A, B]),
        ("success", {"day=2026-11-20/site=1/_SUCCESS": ""}, [B]),
        ("success", {"_SUCCESS": ""}, [A, B, C]),
        ("success", {"../_SUCCESS": ""}, []),
        ("manifest:done.txt", {"done.txt": f"./{B}\n{C}\n"}, [B, C]),
        ("manifest:done.txt", {"done.txt": f"{B}\n{C}"}, [B]),
        ("manifest:done.txt", {"day=2026-11-20/done.txt": "a.parquet\nc.parquet\n"}, [A]),
    ],
)
def test_a_file_is_taken_once_it_is_complete(tmp_path: Path, rule: str, marks: dict[str, str], expected: Any) -> None:
    log = tmp_path / "log"
    for name in (A, B, C):
        (log / name).parent.mkdir(parents=True, exist_ok=True)
        (log / name).write_bytes(b"PAR1")
    for name, text in marks.items():
        (log / name).write_text(text)
    data = days_workflow(log, time=Time(name="day")).with_settings({"data.complete": rule}).data
    arrivals = Arrivals(data, Begun())
    found = arrivals.complete(find([str(log)], log, form="Parquet").files)
    assert [str(Path(file.place).relative_to(log)) for file in found] == expected
    assert len(arrivals.lines) == len(arrivals.unread) == 3 - len(expected)
    assert arrivals.held == {name[4:14] for name in (A, B, C) if name not in expected}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A folder of days with two files each."""
    for file in write_days(tmp_path / "made", [20, 13, 8]):
        table, folder = pq.read_table(file), tmp_path / f"log/day=2026-11-2{file.stem[-1]}"
        folder.mkdir(parents=True)
        pq.write_table(table.slice(0, 5), folder / "a.parquet")
        pq.write_table(table.slice(5), folder / "b.parquet")
    return tmp_path / "log"


def half_written(file: Path) -> bytes:
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    return whole


def night(log: Path, time: str, *days: int, **settings: Any) -> Driver:
    workflow = days_workflow(log, time=Time(name=time)).with_settings({"data.train": ("day=2026-11-20",)} | settings)
    days = [str(log / f"day=2026-11-2{day}") for day in days]
    return make_driver(workflow, log.parent / "run", extend=tuple(days), **SIZES)


@pytest.mark.parametrize(
    ("time", "first", "second"),
    [("day", ["2026-11-20", "2026-11-22"], ["2026-11-21"]), ("at", ["2026-11-20"], ["2026-11-21", "2026-11-22"])],
)
@pytest.mark.parametrize("corrected", [False, True])
def test_an_unreadable_file_is_waited_for_in_one_command(log: Path, time, first, second, corrected) -> None:
    night(log, time).run()
    file = log / "day=2026-11-21/b.parquet"
    whole = half_written(file)
    driver = night(log, time, 1, 2)
    assert [f"{file} cannot be read; correct it" in line for line in driver.set_aside] == [True]
    assert trained(driver.run()) == (first, 20 + 8 * (time == "day"))
    if corrected:
        file.write_bytes(whole)
    driver = night(log, time)
    assert ["is left out" in line for line in driver.set_aside] == [True] * (not corrected)
    assert trained(driver.run()) == (first + second, 20 + 8 + (13 if corrected else 5))
    assert not night(log, time).set_aside


def trained(result: Any) -> tuple[list[str], int]:
    """Names of the spans that were trained on, and the number of examples."""
    spans = result["data"]["train"]["spans"]
    return spans[: len({entry["span"] for entry in result["epochs"]})], result["examples"]


@pytest.mark.parametrize("rule", ["success", "manifest:done.txt"])
def test_an_incomplete_day_waits_while_later_ones_go_on(log: Path, rule: str) -> None:
    (log / "day=2026-11-20/_SUCCESS").touch()
    (log / "day=2026-11-22/_SUCCESS").touch()
    (log / "day=2026-11-20/done.txt").write_text("a.parquet\nb.parquet\n")
    (log / "day=2026-11-22/done.txt").write_text("a.parquet\nb.parquet\n")
    settings = {"data.complete": rule}
    night(log, "day", **settings).run()
    driver = night(log, "day", 1, 2, **settings)
    assert ["span 2026-11-21 waits" in line for line in driver.set_aside] == [True, True]
    assert trained(driver.run()) == (["2026-11-20", "2026-11-22"], 28)
    assert not night(log, "day", **settings).set_aside
    (log / "day=2026-11-21/_SUCCESS").touch()
    (log / "day=2026-11-21/done.txt").write_text("a.parquet\nb.parquet\n")
    assert trained(night(log, "day", **settings).run()) == (["2026-11-20", "2026-11-22", "2026-11-21"], 41)


def write_parts(root: Path, days: int = 3) -> list[Path]:
    """Days in three parts each."""
    files, rng = [], np.random.default_rng(1)
    for day in range(days):
        table = day_table(rng, day, 21)
        for part in range(3):
            files.append(root / f"day-{day}-{part}.parquet")
            pq.write_table(table.slice(7 * part, 7), files[-1], row_group_size=4)
    return files


def next_workflow(root: Path, files: list[Path]) -> Workflow:
    return days_workflow(root).with_settings({
        "data.train": tuple(file.name for file in files), "data.close": "next"
    })  # fmt: skip


@pytest.mark.parametrize("commands", [[1] * 9, [2, 2, 2, 2, 1], [4, 5], [9]])
def test_parts_of_a_day_one_by_one_equal_all_at_once(tmp_path: Path, commands: list[int]) -> None:
    files = write_parts(tmp_path)
    first, rest = files[: commands[0]], files[commands[0] :]
    workflow = next_workflow(tmp_path, first)
    result = make_driver(workflow, tmp_path / "run", **SIZES).run()
    for number in commands[1:]:
        given, rest = rest[:number], rest[number:]
        result = make_driver(workflow, tmp_path / "run", extend=tuple(map(str, given)), **SIZES).run()
    whole = Reference(
        days_workflow(tmp_path).with_settings({"data.train": next_workflow(tmp_path, files[:6]).data.train})
    )
    assert result is not None
    assert result["fingerprint"] == whole.train().fingerprint()
    assert trained(result) == (["2026-11-20", "2026-11-21"], 42)


def test_the_last_span_is_trained_on_when_it_is_closed(tmp_path: Path, monkeypatch, capsys) -> None:
    files = write_parts(tmp_path, days=1)
    workflow = next_workflow(tmp_path, files[:1]).with_settings({
        "storage.device": 1 << 20, "storage.host": 1 << 20, "storage.disk": 1 << 26, "storage.read": 1 << 22,
        "storage.map": 1 << 20,
    })  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("days.json").write_text(workflow.model_dump_json())
    found = []
    for more in ([], ["--extend", str(files[1])], ["--extend", str(files[2]), "--close"], []):
        assert main(["days.json", "--serial", *more]) == 0, capsys.readouterr().err
        found.append(pipeline_result(workflow.name)["examples"])
    assert found == [0, 0, 21, 21]


def pipeline_result(name: str) -> dict[str, Any]:
    return dict(json.loads(Path("runs", name, "result.json").read_text()))
