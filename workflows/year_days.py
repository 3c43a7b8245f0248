"""Days of clicks as logs deliver them, and what a run must be trained on then (see year.sh).

    python workflows/year_days.py write FOLDER NIGHTS SEED
    python workflows/year_days.py check FOLDER NIGHTS SEED

`write` makes a folder for each night: the files that come, `removed` with the names of those that go, and perhaps
`rewind` with a day to undo; and `perfect` with the same rows, each in the file of its day. `check` compares each row
with what the run in FOLDER says, and ends with exit code 1 if they differ.
"""

import json
import os
import sys
from collections import Counter
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.storage.files import checksum

FIRST_DAY, ROWS, BLOCK = date(2026, 1, 1), 400, 8
NUM_LATE, WRONG_TIMES = 5, ["2027-06-01T12:00:00"] * 3 + ["1970-01-01T00:00:00"]
WAYS = ("whole", "renamed"), ("bad", "missing", "split"), ("parts", "whole", "empty"), ("whole",)
"""Ways in which the days of a block come: those of each tuple in random order."""


def name_of(day: int) -> str:
    return str(FIRST_DAY + timedelta(day))


class Year:
    """The files that are there on each night. Each whole block of eight days has everything that can happen."""

    def __init__(self, nights: int, seed: int) -> None:
        self.nights, self.seed, self.end = nights, seed, nights // BLOCK * BLOCK
        rng = np.random.default_rng([seed, 0])
        shuffled = [str(way) for _ in range(0, self.end, BLOCK) for ways in WAYS[:3] for way in rng.permutation(ways)]
        self.ways = shuffled + ["whole"] * (nights - self.end)
        self.rewound = nights // (2 * BLOCK) * BLOCK + 5
        """This day comes again two nights later, with its later clicks; the run goes back and trains on it again."""

    def day(self, day: int, state: str = "all clicks") -> pa.Table:
        """Rows of a day. `state`: "early", before the later clicks are known, "inverted", or "all clicks"."""
        rng = np.random.default_rng([self.seed, 1, day])
        user, item = rng.integers(0, 100, ROWS), rng.integers(2 * day, 40 + 2 * day, ROWS)
        click = rng.random(ROWS) < 0.1 + 0.4 * (user % 3 == 0) + 0.4 * (item % 4 == 0)
        click = {"early": click & (rng.random(ROWS) < 0.7), "inverted": ~click}.get(state, click)
        times = np.datetime64(name_of(day), "s") + np.sort(rng.integers(0, 86_400, ROWS)).astype("timedelta64[s]")
        columns = {"id": ROWS * day + np.arange(ROWS), "time": times, "user": user, "item": item, "click": click * 1}
        return pa.table(columns).replace_schema_metadata({"delivery": f"{day}, {state}"})

    def sent(self, day: int, state: str) -> pa.Table:
        """Rows that come with a day: without those that are late, with late ones of another day, with wrong clocks."""
        table, place = self.day(day, state), day % BLOCK if day < self.end else 0
        if place == 1:
            return table.slice(0, ROWS - NUM_LATE)
        if place == 5:
            late = self.day(day - 4).slice(ROWS - NUM_LATE)
            return pa.concat_tables([late, table]).replace_schema_metadata(table.schema.metadata)
        if place == 6:
            wrong = pa.array(WRONG_TIMES).cast(table["time"].type)
            return table.set_column(1, "time", pa.chunked_array([wrong, *table["time"].slice(len(wrong)).chunks]))
        return table

    def files_of(self, day: int, night: int) -> dict[str, pa.Table]:
        """The files of a day that are there on a night."""
        age, way, name = night - day, self.ways[day], name_of(day)
        if age < 0 or (way == "missing" and age < 3):
            return {}
        is_early = age == 0 or (day == self.rewound and age < 2)
        table = self.sent(day, "early" if is_early else "inverted" if way == "bad" and age < 3 else "all clicks")
        if way == "parts" or (way == "split" and age):
            return {f"{name}-{part}.parquet": table.slice(part * ROWS // 2, ROWS // 2 + 9 * part) for part in (0, 1)}
        empty = {f"{name}-empty.parquet": table.slice(0, 0)} if way == "empty" else {}
        return {f"{name}-part-7f3a.parquet" if way == "renamed" and age else f"{name}.parquet": table} | empty

    def merged(self, first: int) -> list[int]:
        """Days of a block whose files are merged into one at its end, after training."""
        return [day for day in (first, first + 1, first + 5) if day != self.rewound]

    def files(self, night: int) -> dict[str, pa.Table]:
        """All files that are there on a night."""
        files = {name: table for day in range(night + 1) for name, table in self.files_of(day, night).items()}
        for first in range(0, min(night - 2, self.end), BLOCK):
            files[f"copy-of-{name_of(first)}.parquet"] = next(iter(self.files_of(first, night).values()))
            if night >= first + BLOCK - 1:
                old = [name for day in self.merged(first) for name in self.files_of(day, night)]
                files[f"merged-{name_of(first)}.parquet"] = pa.concat_tables([files.pop(name) for name in old])
        return files

    def account(self) -> tuple[dict[int, tuple[str | None, str]], Counter[tuple[str, str, str | None]]]:
        """For each row, its span of training or None, and why it is not its own; and numbers of rows out of place by
        kind, own span, and span of training."""
        rows: dict[int, tuple[str | None, str]] = {}
        counts = Counter[tuple[str, str, str | None]]()
        for day, way in enumerate(self.ways):
            name, ids = name_of(day), range(ROWS * day, ROWS * (day + 1))
            rows |= dict.fromkeys(ids, (name, "") if day < self.nights - 1 else (None, "waits for its labels"))
            # A day that is missing is not late if the next one was held by the guard, or undone.
            is_late = way == "missing" and self.ways[day + 1] != "bad" and day + 1 != self.rewound
            counts["late", name, name] += ROWS * is_late
        for first in range(0, self.end, BLOCK):
            second, with_late, wrong = first + 1, first + 5, first + 6
            # On the night on which the rewound day is trained on again, the file of the second day is gone.
            found = (None, "rewritten") if with_late == self.rewound else (name_of(with_late), "late")
            rows |= dict.fromkeys(range(ROWS * (second + 1) - NUM_LATE, ROWS * (second + 1)), found)
            counts[found[1], name_of(second), found[0]] += NUM_LATE
            rows |= dict.fromkeys(range(ROWS * wrong, ROWS * wrong + len(WRONG_TIMES)), (None, "wrong clock"))
            counts.update({("ahead", WRONG_TIMES[0][:10], None): 3, ("implausible", "no span", None): 1})
            counts.update(("rewritten", name_of(day), None) for day in self.merged(first) for _ in range(ROWS))
            counts["rewritten", name_of(second), None] -= NUM_LATE * (with_late == self.rewound)
        return rows, +counts


def deliver(table: pa.Table, path: Path, folder: Path) -> None:
    """Write a file, and keep a copy of it by the checksum of its footer, by which a run's list names it, too."""
    pq.write_table(table, path)
    content = path.read_bytes()
    footer = content[-8 - int.from_bytes(content[-8:-4], "little") : -8]
    if not (copy := folder / f"delivered/{checksum(footer)}.parquet").exists():
        os.link(path, copy)


def write(folder: Path, year: Year) -> None:
    """Write the files of each night, and the perfect ones."""
    (folder / "delivered").mkdir(parents=True)
    (folder / "perfect").mkdir()
    before: dict[str, pa.Table] = {}
    for night in range(year.nights):
        here, files = folder / f"nights/{night:03}", year.files(night)
        here.mkdir(parents=True)
        for name, table in files.items():
            if name in before and before[name].equals(table, check_metadata=True):
                continue
            deliver(table, here / name, folder)
        (here / "removed").write_text("".join(f"{name}\n" for name in before.keys() - files.keys()))
        if night == year.rewound + 2:
            (here / "rewind").write_text(name_of(year.rewound))
        items = np.arange(40 + 2 * night)
        pq.write_table(pa.table({"item": items, "brand": items % 4}), here / "_items.parquet")
        pq.write_table(year.day(night), folder / f"perfect/{name_of(night)}.parquet")
        before = files
    os.link(here / "_items.parquet", folder / "perfect/_items.parquet")


def check(folder: Path, year: Year) -> list[str]:
    """Print what the run was trained on, and what not. Returns what is not as it should be."""
    ours, perfect = (json.loads((folder / f"runs/{name}/result.json").read_text()) for name in ("year", "perfect"))
    spans, (rows, counts), of_span = ours["data"]["train"]["spans"], year.account(), dict[str, list[str]]()
    found = Counter[tuple[int, int, str | None]]()
    for file in ours["data"]["train"]["files"]:
        table, first = pq.read_table(folder / f"delivered/{file['footer']}.parquet", columns=["id", "click"]), 0
        for number, count in file["spans"]:
            span, part = None if number is None else spans[number], table.slice(first, count).to_pydict()
            first += count
            of_span.setdefault(span or "left out", []).append(f"{count} of {file['path']}")
            found.update((*row, span) for row in zip(*part.values(), strict=True) if span)
    print(
        "trained on, in order (the last one waits):",
        *(f"{span}: {', '.join(of_span[span])}" for span in spans),
        sep="\n  ",
    )
    waits = name_of(year.nights - 1)
    print("not used, or with another span:", *Counter(why for _, why in rows.values() if why).items(), sep="\n  ")
    clicks = dict(
        row
        for day in range(year.nights)
        for row in zip(*year.day(day).select(["id", "click"]).to_pydict().values(), strict=True)
    )
    expected = Counter((row, clicks[row], span) for row, (span, _) in rows.items() if span)
    found = Counter({row: number for row, number in found.items() if row[2] != waits})
    said = Counter({(of["kind"], of["span"], of["trained_with"]): of["rows"] for of in ours["out_of_place"]})
    scores = [{of["span"]: of["ne"] for of in run["epochs"]} for run in (ours, perfect)]
    ne, best = ([of.get(name_of(day), np.nan) for day in range(year.nights // 3, year.nights - 1)] for of in scores)
    error = float(np.std(best, ddof=1)) / len(best) ** 0.5
    print(f"mean NE {np.mean(ne):.4f}; delivered perfectly {np.mean(best):.4f}, standard error {error:.4f}")
    return [
        *(f"row {row}: trained {n} times too often" for row, n in (found - expected).items()),
        *(f"row {row}: trained {n} times too little" for row, n in (expected - found).items()),
        *(
            f"{key}: {said[key]} rows counted, expected {counts[key]}"
            for key in said | counts
            if said[key] != counts[key]
        ),
        *(
            []
            if ours["examples"] == expected.total()
            else [f"{ours['examples']} examples, {expected.total()} expected"]
        ),
        *(
            []
            if abs(np.mean(ne) - np.mean(best)) < 2 * error
            else ["the mean NE differs by more than two standard errors"]
        ),
    ]


if __name__ == "__main__":
    command, where, *numbers = sys.argv[1:]
    year = Year(*map(int, numbers))
    wrong = write(Path(where), year) if command == "write" else check(Path(where), year)
    sys.exit("\n".join(wrong[:9]) if wrong else 0)
