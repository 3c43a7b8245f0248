"""A run of many nights with whatever can happen to deliveries: an oracle of plain loops says what each command does."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.data.days import FIRST, days_workflow
from support.depth import examples
from support.faults.killed_after_commit import Killed, killed_after
from support.oracle.year import BEFORE, Refused, Row, Rows, Rules, Year, name_of

from pipeline.commits.manifest import Commits
from pipeline.data import waiting
from pipeline.data.identity import files_in
from pipeline.models import LR
from pipeline.run import main
from pipeline.settings.columns import Category
from pipeline.storage.files import Files
from pipeline.workflow import Workflow

GUARD = 0.3
RUN = Path("run")


class Log:
    """The folder in which days arrive."""

    def __init__(self, root: Path) -> None:
        self.folder, self.files, self.lost = root / "in", dict[str, Rows | None](), dict[str, Rows | None]()
        self.day = self._number = self._num_files = 0
        self.folder.mkdir()

    def rows(self, days: Sequence[int], flipped: bool = False) -> Rows:
        """New rows of these days."""
        self._number += len(days)
        return tuple(Row(self._number - n, day, flipped) for n, day in enumerate(days, 1))

    def put(self, rows: Rows | None, name: str = "", prefix: str = "d") -> None:
        self._num_files += 1
        name = name or f"{prefix}{self._num_files:03}.parquet"
        self.files[name] = rows
        write(self.folder / name, rows)

    def remove(self, name: str) -> Rows | None:
        (self.folder / name).unlink()
        return self.files.pop(name)

    def happens(self, what: str, a: int, b: int) -> None:
        """One of `EVENTS`. `a`, `b`: choose how."""
        today = [self.day] * (9 + a)
        if what in ("day", "bad day", "mixed day"):
            other = max(0, self.day + (-1, -2, -4, 2, 3, 1)[b % 6])
            rows = self.rows(today + [other] * 3 * (what == "mixed day"), what == "bad day")
            self.put(rows if a % 2 else rows[::-1])
            self.day += 1
        elif what == "no day":
            self.day += 1
        elif what == "old day":
            self.put(self.rows([b % (self.day + 1)] * (3 + a)), prefix="z" if a % 2 else "b")
        elif what == "empty":
            self.put(())
        elif what == "unreadable":
            self.put(None)
        elif what == "back":
            for name, rows in self.lost.items():
                self.put(rows, name)
            self.lost = {}
        elif there := [name for name, rows in self.files.items() if rows and self._once(name)]:
            self._changes(what, there[-1 - b % min(4, len(there))], there[0], a)

    def _once(self, name: str) -> bool:
        """True if no other file has the same rows: these would come twice once one of the files is changed."""
        numbers = {*(self.files[name] or ())}
        others = [*self.lost.values(), *(rows for other, rows in self.files.items() if other != name)]
        return not any(numbers & {*(rows or ())} for rows in others)

    def _changes(self, what: str, name: str, other: str, a: int) -> None:
        rows = self.files[name] or ()
        if what == "copied":
            self.put(rows, prefix="z" if a % 2 else "a")
        elif what == "corrected":
            self.put(self.rows([row.day for row in rows] + [rows[0].day] * (1 + a % 3)), name)
        elif what == "shortened":
            self.put(rows[: 1 + a], name)
        else:
            self.remove(name)
            if what == "gone":
                self.lost[name] = rows
            elif what == "renamed":
                self.put(rows, prefix="r")
            elif what == "split":
                self.put(rows[: 1 + a], name if a % 2 else "", prefix="s")
                self.put(rows[1 + a :], prefix="s")
            elif other != name:
                self.put((self.remove(other) or ()) + rows, prefix="c")


def write(path: Path, rows: Rows | None) -> None:
    if rows is None:
        path.write_bytes(b"PAR1 half of a file")
        return
    items = [row.number * 7919 % 5 for row in rows]
    times = [FIRST + timedelta(days=row.day, seconds=row.number % 86_400) for row in rows]
    clicks = [item % 2 ^ row.flipped for item, row in zip(items, rows, strict=True)]
    columns = {"click": pa.array(clicks, pa.int8()), "item": pa.array(items, pa.int64())}
    pq.write_table(pa.table(columns | {"at": pa.array(times, pa.timestamp("us"))}), path, row_group_size=8)


def workflow_of(root: Path, delay: int) -> Workflow:
    workflow = days_workflow(
        root, kind=LR, embedding_dim=0, args={}, categories=(Category(name="item"),), batch_size=4, block_batches=8,
        label_delay=f"{delay} d" if delay else None, metrics={"guard": GUARD}, storage={"keep_spans": 9},
    )  # fmt: skip
    return workflow.with_settings({"data.train": ("in",), "data.numbers": (), "optimizer.rows.lr": 0.3})


def objects(epochs: list[dict[str, Any]], spans: Sequence[str], span: str) -> bool:
    """True if the guard objects to a span that was scored: its rule, over the run's scores."""
    numbers = [n for n, one in enumerate(epochs) if one["span"] == span]
    if not numbers:
        return False
    *before, last = epochs[: numbers[-1] + 1]
    known = {n: one for n, one in enumerate(before) if one["span"] in spans and one["span"] != span}
    newest = {one["span"]: n for n, one in known.items()}
    scores = [known[n]["ne"] for n in sorted(newest.values()) if known[n]["trained"] and math.isfinite(known[n]["ne"])]
    return bool(scores) and last["ne"] > sum(scores[-7:]) / len(scores[-7:]) + GUARD


def state() -> dict[str, Any]:
    return Commits(RUN, Files(), 1).all()[-1].state


def as_expected(year: Year) -> None:
    """Compare a run's commit with the oracle."""
    now, split = state(), year.split
    train, files = now["data"]["train"], [*files_in(now["data"]["train"], RUN)]
    assert train["spans"] == split.spans, (train["spans"], split.spans)
    assert now["trained"] == sum(len(file.of(span)) for file in split.files for span in split.spans[: year.trained])
    assert {span: one["why"] for span, one in train.get("held", {}).items()} == {s: h[0] for s, h in split.held.items()}
    found = [
        (re.sub(r"[.][0-9a-f]{16}$", BEFORE, file["path"]),
         [None if n is None else train["spans"][n] for n, rows in file["spans"] for _ in range(rows)])
        for file in files if file["spans"]
    ]  # fmt: skip
    expected = [(f"in/{file.name}", [one.span for one in file.places]) for file in split.files if file.rows]
    assert found == expected, (found, expected)
    counted = Counter[tuple[str, str, str | None]]()
    for file in split.files:
        for row, at in zip(file.rows, file.places, strict=True):
            counted[at.kind, name_of(row.day), at.span] += bool(at.kind)
    of_product = Counter[tuple[str, str, str | None]]()
    for file in files:
        for one in file.get("out_of_place", ()):
            of_product[one["kind"], one["span"], one.get("trained_with")] += one["rows"]
    assert of_product == +counted
    scored = {entry["span"] for entry in now["epochs"]}
    for span in split.spans[: year.trained]:
        own = any(at.span == span and name_of(row.day) == span for f in split.files
                  for row, at in zip(f.rows, f.places, strict=True))  # fmt: skip
        assert (span in scored) == own, span
    rows = Counter(number for file in split.files for span in split.spans for number in file.of(span))
    assert set(rows.values()) <= {1}, "a row is trained on twice"


EVENTS = [
    "day", "day", "mixed day", "mixed day", "bad day", "no day", "old day", "empty", "unreadable", "back", "copied",
    "corrected", "shortened", "renamed", "split", "compacted", "gone",
]  # fmt: skip
COMMANDS = ["", "", "", "", "accept", "as-is", "without", "rewind", "killed", "small caps"]
SETTINGS = st.tuples(st.sampled_from(["refuse", "take", "take", "drop"]), st.sampled_from(["refuse", "take", "drop"]))
NIGHT = st.tuples(
    st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=3),
    st.sampled_from(COMMANDS), st.integers(0, 3), SETTINGS, st.sampled_from(["stop", "hold"]),
)  # fmt: skip


class Nights:
    """A run and its oracle, night by night."""

    def __init__(self, root: Path, delay: int) -> None:
        self.log, self.year, self.delay = Log(root), Year(), delay
        Path("days.json").write_text(workflow_of(root, delay).model_dump_json())

    def command(self, rules: Rules, *more: str, kill: int = 0) -> int:
        settings = {"data.late": rules.late, "data.ahead": rules.ahead, "metrics.guard_then": rules.then}
        argv = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        argv = ["days.json", "--serial", "--out", "run", "--extend", "in", "--known-ok", *argv, *more]
        if not kill:
            return main(argv)
        with suppress(Killed), killed_after(kill):
            main(argv)
        return main(argv)

    def night(self, events: list[Any], command: str, n: int, settings: tuple[str, str], then: str) -> None:
        for event in events:
            self.log.happens(*event)
        rules = Rules(*settings, self.delay, then)
        year, waits = self.year, [*self.year.split.spans[self.year.trained :], *self.year.split.held]
        if command == "rewind" and year.trained:
            span = year.split.spans[max(0, year.trained - 1 - n)]
            assert main(["days.json", "--out", "run", "--rewind", span]) == 0
            year.rewind(span)
        more, as_is, without = [], "", ""
        if command in ("accept", "as-is", "without") and waits:
            span = waits[n % len(waits)]
            more = [f"--{command}", span]
            as_is, without = ("", span) if command == "without" else (span, "")
        if command == "small caps":
            more = ["--set", "storage.read=2 MiB", "--set", "schedule.block_batches=1"]
        code = self.command(rules, *more, kill=(n + 1) * (command == "killed"))
        epochs = state()["epochs"] if RUN.exists() else []

        def bad(span: str) -> bool:
            return objects(epochs, year.split.spans, span)

        before = year.split, year.trained
        try:
            expected = year.night(self.log.files, rules, bad, as_is, without)
            if command == "killed":
                year.night(self.log.files, rules, bad)
        except Refused:
            expected, (year.split, year.trained) = 2, before
        assert code == expected or command == "killed"
        if year.split.files:
            as_expected(year)
        for name in [name for name, rows in self.log.files.items() if rows is None]:
            self.log.remove(name)

    def end(self) -> None:
        """Train the list of the run again, from the files as they were."""
        year, rules = self.year, Rules("take", "drop", self.delay, "stop")
        for name in [*self.log.files]:
            self.log.remove(name)
        paths = (Path(file["path"]).name for file in files_in(state()["data"]["train"], RUN) if file["spans"])
        for file in year.split.files:
            self.log.put(file.rows, next(paths) if file.rows else file.name)
        code = self.command(rules)
        while code == 3:
            code = self.command(rules, "--accept", state()["epochs"][-1]["span"])
        if not state()["trained"]:
            return
        expected = json.loads((RUN / "result.json").read_text())
        argv = ["days.json", "--serial", "--like", "run", "--out", "alike"]
        assert main(argv) == 0
        assert json.loads(Path("alike/result.json").read_text())["fingerprint"] == expected["fingerprint"]


@given(st.integers(0, 2), st.booleans(), st.lists(NIGHT, min_size=3, max_size=7))
@examples(8, 160)
def test_a_year_is_as_the_oracle_says(delay: int, listed: bool, nights: list[Any]) -> None:
    """`listed`: a file is in a list as soon as it can be."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("MOST_FILES", "KEPT_SPANS") if listed else ():
            patch.setattr(waiting, name, 0)
        run = Nights(Path(folder), delay)
        run.night([("day", 3, 0)], "", 0, ("take", "drop"), "stop")
        for night in nights:
            run.night(*night)
        run.end()
