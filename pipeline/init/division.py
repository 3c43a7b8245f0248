"""Division of rows into training, validation and test: by the names of the files, by their order, or by `prepare`."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data.files import SPLITS
from pipeline.files.find import DataFile, natural_order
from pipeline.init.choice import Choice
from pipeline.init.look import Look

SPLIT_WORDS = {
    "train": re.compile(r"(^|[^a-z])train(ing)?([^a-z]|$)", re.IGNORECASE),
    "validation": re.compile(r"(^|[^a-z])(val|valid|validation|dev)([^a-z]|$)", re.IGNORECASE),
    "test": re.compile(r"(^|[^a-z])(test|eval|holdout)([^a-z]|$)", re.IGNORECASE),
}
HELD_OUT = 0.1
"""Share of the rows that validation and test get each."""
MIN_FILES = 5
"""Number of files from which on whole files can be held out."""

Division = dict[str, tuple[DataFile, ...]]


def divide(look: Look) -> tuple[Division, str] | None:
    """Files of each split, and the reason; None if the rows of the files themselves have to be divided."""
    by_name: dict[str, list[DataFile]] = {split: [] for split in SPLITS}
    for path in look.paths:
        if split := next((name for name, word in SPLIT_WORDS.items() if word.search(path.stem)), None):
            by_name[split].append(path)
    if by_name["train"] and (by_name["validation"] or by_name["test"]):
        found = {split: tuple(paths) for split, paths in by_name.items() if paths}
        left = len(look.paths) - sum(map(len, found.values()))
        return found, "by the names of the files" + (f"; {left} other files are left out" if left else "")
    if len(look.paths) < MIN_FILES:
        return None
    rows = dict(zip(look.paths, look.rows, strict=True))
    ordered = sorted(look.paths, key=natural_order)
    test = _last(ordered, rows, HELD_OUT * sum(look.rows))
    validation = _last(ordered[: -len(test)], rows, HELD_OUT * sum(look.rows))
    train = ordered[: -len(test) - len(validation)]
    found = {"train": tuple(train), "validation": tuple(validation), "test": tuple(test)}
    return found, "the last files, in the order of their names, are held out"


def split_option(look: Look, choices: Sequence[Choice]) -> tuple[str, str]:
    """Value of prepare's --split for files that have to be divided themselves, and the reason."""
    for choice in choices:
        if choice.role == "time":
            times = look.sample.column(choice.column.name).drop_null()
            order = pc.sort_indices(times)
            ends = [_text(times[order[int(share * len(times))].as_py()]) for share in (1 - 2 * HELD_OUT, 1 - HELD_OUT)]
            if len(set(ends)) == 2:
                why = f"the last fifth of the time in {choice.column.name} is held out"
                return f"time:{choice.column.name},validation_from={ends[0]},test_from={ends[1]}", why
    return f"ratio:validation={HELD_OUT},test={HELD_OUT},seed=0", "a fifth of the rows, drawn at random, is held out"


def _text(value: pa.Scalar) -> str:
    return str(value.cast(pa.string()).as_py())


def _last(paths: Sequence[DataFile], rows: dict[DataFile, int], wanted: float) -> list[DataFile]:
    """The fewest last files, one at least, that have so many rows."""
    found: list[DataFile] = []
    for path in reversed(paths):
        if found and sum(rows[one] for one in found) >= wanted:
            break
        found.insert(0, path)
    return found
