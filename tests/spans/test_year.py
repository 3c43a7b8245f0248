"""A run of many nights with whatever can happen to deliveries: an oracle of plain loops says what each command does."""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.data.days import FIRST, days_workflow
from support.depth import examples
from support.faults.kills import dying
from support.oracle.year import Refused, Row, Rows, Rules, Year, name_of
from support.runs.harness import SPEED

from pipeline.commits.manifest import Commits
from pipeline.data import waiting
from pipeline.data.identity import files_in
from pipeline.driver import driver, resume
from pipeline.features.settings import Lookup
from pipeline.models import LR
from pipeline.run import main
from pipeline.settings.columns import Category
from pipeline.storage.files import Files, checksum
from pipeline.workflow import Workflow

GUARD = 0.3
RUN = Path("run")
SIDE = "items.parquet"
CAPS = [
    {"storage.read": "2 MiB", "schedule.block_batches": 1},
    {"storage.device_policy": "foresight", "storage.host_policy": "foresight"},
]


class Log:
    """The folder in which days arrive."""

    def __init__(self, root: Path) -> None:
        self.folder, self.files, self.lost = root / "in", dict[str, Rows | None](), dict[str, Rows | None]()
        self.day = self._number = self._num_files = 0
        self.tables: list[str] = []
        """Checksum of each side table that there has been."""
        self.folder.mkdir()
        self.write_table()

    def rows(self, days: Sequence[int], flipped: bool = False) -> Rows:
        """New rows of these days."""
        self._number += len(days)
        return tuple(Row(self._number - n, day, flipped) for n, day in enumerate(days, 1))

    def put(self, rows: Rows | None, name: str = "", prefix: str = "d") -> None:
        self._num_files += 1
        name = name or f"{prefix}{self._num_files:03}.parquet"
        self.files[name] = rows
        write(self.folder / name, rows)

    def write_table(self) -> None:
        """Write the next side table: with more keys, and other values of known ones."""
        night, path = len(self.tables), self.folder.parent / SIDE
        brands = [f"{(item + night // 2) % 3}" for item in range(min(5, 2 + night))]
        pq.write_table(pa.table({"id": [*range(len(brands))], "brand": brands}), path)
        self.tables.append(checksum(path.read_bytes()))

    def remove(self, name: str) -> Rows | None:
        (self.folder / name).unlink()
        return self.files.pop(name)

    def happens(self, what: str, a: int, b: int, fixed: set[str]) -> None:
        """One of `EVENTS`. `a`, `b`: choose how; `fixed`: names of files that do not change."""
        today = [self.day] * (9 + a)
        if what in ("day", "bad day", "mixed day"):
            other = max(0, self.day + (-1, -2, -4, 2, 3, 1)[b % 6])
            rows = self.rows(today + [other] * 3 * (what == "mixed day"), what == "bad day")
            self.put(rows if a % 2 else rows[::-1])
            self.day += 1
        elif what == "part":
            self.put(self.rows(today[a:]))
        elif what == "table":
            self.write_table()
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
        # A file with rows of a day in training and of another one does not change, nor do labels mature in it.
        elif there := [name for name, rows in self.files.items() if rows and name not in fixed and self._once(name)]:
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
            elif what == "matured":
                rows = tuple(row._replace(flipped=row.flipped ^ (row.number % 4 == 0)) for row in rows)
                self.put(rows, name if a % 2 else "", prefix="m")
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
    table = pa.table(columns | {"at": pa.array(times, pa.timestamp("us"))})
    # A run notices by the size that a file has other labels.
    flips = "flipped " * sum(row.flipped for row in rows)
    pq.write_table(table.replace_schema_metadata({"flips": flips * 2}), path, row_group_size=8)


def workflow_of(root: Path, delay: int) -> Workflow:
    workflow = days_workflow(
        root, kind=LR, embedding_dim=0, args={}, categories=(Category(name="item"), Category(name="brand")),
        batch_size=4, block_batches=8, label_delay=f"{delay} d" if delay else None, metrics={"guard": GUARD},
        storage={"keep_spans": 9},
    )  # fmt: skip
    lookup = Lookup(file=SIDE, column="item", key="id", take={"brand": "brand"})
    settings = {"data.train": ("in",), "data.numbers": (), "data.features": (lookup,), "optimizer.rows.lr": 0.3}
    return workflow.with_settings(settings)


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


def number_of_commit() -> int:
    return max(Commits(RUN, Files(), 1).numbers(), default=0)


def state() -> dict[str, Any]:
    return Commits(RUN, Files(), 1).all()[-1].state


def as_expected(year: Year, tables: Sequence[str]) -> None:
    """Compare a run's commit with the oracle. `tables`: checksums of the side tables."""
    now, split = state(), year.split
    train, files = now["data"]["train"], [*files_in(now["data"]["train"], RUN)]
    assert train["spans"] == split.spans, (train["spans"], split.spans)
    assert now["trained"] == sum(len(file.of(span)) for file in split.files for span in split.spans[: year.trained])
    assert {span: one["why"] for span, one in train.get("held", {}).items()} == {s: h[0] for s, h in split.held.items()}
    found = [
        (file["path"], [None if n is None else train["spans"][n] for n, rows in file["spans"] for _ in range(rows)])
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
    by_span = now.get("side_files_by_span") or [(0, now["side_files"])]
    used = [[of for first, of in by_span if first <= number][-1] for number in range(year.trained)]
    assert used == [{SIDE: tables[table]} for table in year.tables[: year.trained]]
    scored, before = {entry["span"]: (entry["examples"], entry["trained"]) for entry in now["epochs"]}, 0
    for span in split.spans[: year.trained]:
        own = sum(at.span == span and name_of(row.day) == span for f in split.files
                  for row, at in zip(f.rows, f.places, strict=True))  # fmt: skip
        assert scored.get(span) == ((own, before) if own else None), span
        before += sum(len(file.of(span)) for file in split.files)
    rows = Counter(number for file in split.files for span in split.spans for number in file.of(span))
    assert set(rows.values()) <= {1}, "a row is trained on twice"


EVENTS = [
    "day", "day", "mixed day", "mixed day", "bad day", "part", "no day", "old day", "empty", "unreadable", "back",
    "copied", "corrected", "matured", "shortened", "renamed", "split", "compacted", "gone", "table",
]  # fmt: skip
COMMANDS = ["", "", "", "", "accept", "as-is", "without", "rewind", "killed", "killed", "other caps"]
SETTINGS = st.tuples(
    st.sampled_from(["refuse", "take", "take", "drop"]), st.sampled_from(["refuse", "take", "drop"]),
    st.sampled_from(["arrival", "arrival", "next", "now"]),
)  # fmt: skip
NIGHT = st.tuples(
    st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=3),
    st.sampled_from(COMMANDS), st.integers(0, 40), SETTINGS, st.sampled_from(["stop", "hold"]),
)  # fmt: skip
YEAR = st.integers(0, 2), st.booleans(), st.lists(NIGHT, min_size=3, max_size=7)


class Nights:
    """A run and its oracle, night by night."""

    def __init__(self, root: Path, delay: int) -> None:
        self.log, self.year, self.delay = Log(root), Year(), delay
        Path("days.json").write_text(workflow_of(root, delay).model_dump_json())

    def command(self, rules: Rules, *more: str, **caps: object) -> int:
        close = "arrival" if rules.close == "arrival" else "next"
        of_rules = {"late": rules.late, "ahead": rules.ahead, "close": close}
        settings = {"metrics.guard_then": rules.then, **{f"data.{name}": value for name, value in of_rules.items()}}
        argv = [word for name, value in (settings | caps).items() for word in ("--set", f"{name}={value}")]
        argv = ["days.json", "--serial", "--out", "run", "--extend", "in", "--known-ok", *argv, *more]
        return main([*argv, *["--close"] * (rules.close == "now")])

    def night(self, events: list[Any], command: str, n: int, settings: tuple[str, str, str], then: str) -> None:
        for event in events:
            self.log.happens(*event, fixed=self.year.fixed())
        rules = Rules(*settings, self.delay, then, len(self.log.tables) - 1)
        year, waits = self.year, [*self.year.split.spans[self.year.trained :], *self.year.split.held]
        if command == "rewind" and year.trained:
            span = year.split.spans[max(0, year.trained - 1 - n % 4)]
            rewind = partial(main, ["days.json", "--out", "run", "--rewind", span])
            dying(n, rewind)
            assert rewind() == 0
            year.rewind(span)
        more, as_is, without = [], "", ""
        if command in ("accept", "as-is", "without") and waits:
            span = waits[n % len(waits)]
            more = [f"--{command}", span]
            as_is, without = ("", span) if command == "without" else (span, "")
        caps, is_kept = CAPS[n % 2] if command == "other caps" else {}, False
        if command == "killed":
            newest = number_of_commit()
            dying(1 + 5 * n, partial(self.command, rules))
            is_kept = number_of_commit() > newest
        code = self.command(rules, *more, **caps)
        epochs = state()["epochs"] if RUN.exists() else []

        def bad(span: str) -> bool:
            return objects(epochs, year.split.spans, span)

        before = year.split, year.trained
        try:
            expected = year.night(self.log.files, rules, bad, as_is, without)
            if is_kept:
                year.night(self.log.files, rules, bad)
        except Refused:
            expected, (year.split, year.trained) = 2, before
        assert code == expected or is_kept
        if year.split.files:
            as_expected(year, self.log.tables)
        for name in [name for name, rows in self.log.files.items() if rows is None]:
            self.log.remove(name)

    def end(self) -> None:
        """Train the list of the run again, from the files as they were."""
        year, rules = self.year, Rules("take", "drop", "arrival", self.delay)
        for name in [*self.log.files]:
            self.log.remove(name)
        for file in year.split.files:
            self.log.put(file.rows, file.name)
        code = self.command(rules)
        while code == 3:
            code = self.command(rules, "--accept", state()["epochs"][-1]["span"])
        if not state()["trained"]:
            return
        expected = json.loads((RUN / "result.json").read_text())
        argv = ["days.json", "--serial", "--like", "run", "--out", "alike", "--set", "metrics.guard=null"]
        tables = {*year.tables[: year.trained], len(self.log.tables) - 1}
        assert main(argv) == (2 if len(tables) > 1 else 0)
        if len(tables) == 1:
            assert json.loads(Path("alike/result.json").read_text())["fingerprint"] == expected["fingerprint"]


@given(*YEAR)
@examples(8, 160)
def test_a_year_is_as_the_oracle_says(delay: int, listed: bool, nights: list[Any]) -> None:
    """`listed`: a file is in a list as soon as it can be."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("MOST_FILES", "KEPT_SPANS") if listed else ():
            patch.setattr(waiting, name, 0)
        patch.setattr(driver, "measure", lambda *_: SPEED)
        patch.setattr(resume, "environment", cache(resume.environment))
        run = Nights(Path(folder), delay)
        run.night([("day", 3, 0)], "", 0, ("take", "drop", "arrival"), "stop")
        for night in nights:
            run.night(*night)
        run.end()
