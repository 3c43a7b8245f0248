"""Split of rows into training, validation and test: by file name, by file order, or by `prepare`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.files.find import DataFile, natural_order
from pipeline.files.flat import open_file
from pipeline.files.types import concatenated, value_of
from pipeline.init.choice import Choice
from pipeline.init.columns import Column, Look
from pipeline.init.values import CLOCKS, EPOCH
from pipeline.prepare.report import aligned
from pipeline.prepare.times import DAYS, forms_of, micros_of
from pipeline.settings import SPLITS

SPLIT_WORDS = {
    "train": re.compile(r"(^|[^a-z])train(ing)?([^a-z]|$)", re.IGNORECASE),
    "validation": re.compile(r"(^|[^a-z])(val|valid|validation|dev)([^a-z]|$)", re.IGNORECASE),
    "test": re.compile(r"(^|[^a-z])(test|eval|holdout)([^a-z]|$)", re.IGNORECASE),
}
HELD_OUT = 0.1
"""Share of the rows for validation and for test, each."""
MIN_FILES = 5
"""Minimum number of files for holding out whole files."""

Division = dict[str, tuple[DataFile, ...]]


def divide(look: Look) -> tuple[Division, str] | None:
    """Files of each split, and the reason; None if rows within files must be split."""
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
    # The folder of rows without a date would sort last, but their age is unknown, so they are for training.
    dated = {path: all(value is not None for _, value in path.partitions) for path in look.paths}
    ordered = sorted(look.paths, key=lambda path: (dated[path], natural_order(path)))
    test = _last(ordered, rows, HELD_OUT * sum(look.rows))
    validation = _last(ordered[: -len(test)], rows, HELD_OUT * sum(look.rows))
    train = ordered[: -len(test) - len(validation)]
    found = {"train": tuple(train), "validation": tuple(validation), "test": tuple(test)}
    return found, "the last files, in the order of their names, are held out"


@dataclass(frozen=True, slots=True)
class ByPrepare:
    """Value of prepare's --split, the reason, and the resulting shares of validation and test."""

    option: str
    why: str
    shares: tuple[float, float] = (HELD_OUT, HELD_OUT)

    def differences(self, rows: Mapping[str, int]) -> Iterator[str]:
        """Yield a warning for each split whose share of the rows differs from the announced one."""
        for split, share in zip(SPLITS[1:], self.shares, strict=True):
            found = rows[split] / sum(rows.values())
            if abs(found - share) > HELD_OUT / 2:
                said = f"{split} has {found:.1%} of the rows, where the sample had {share:.1%}"
                yield f"warning: {said}; divide them by another --split of `pipeline prepare`, which is shown above\n"


def by_prepare(look: Look, choices: Sequence[Choice]) -> ByPrepare:
    """Split of the rows of the files: by the first time column that can split them, else at random."""
    unfit = ""
    for column in (choice.column for choice in choices if choice.role == "time"):
        name = column.name
        times = column_of(look.paths, name) if look.delimiter is None else look.sample.column(name)
        moments_N = moments_of(times, column.types.get("time", ""))
        if moments_N is None:
            unfit += f"; {name} is not in every row, or not in one form"
            continue
        different, first, counts = np.unique(moments_N, return_index=True, return_counts=True)
        borders = _borders(counts)
        if not borders:
            at = f"{counts.max() / counts.sum():.0%} of the rows have the time {times[int(first[counts.argmax()])]}"
            unfit += f"; {name} cannot divide them: {len(different):,} different times, and {at}"
            continue
        held = tuple(counts[at:].sum() / counts.sum() for at in borders)
        ends = [str(times[int(first[at])].cast(pa.string())) for at in borders]
        share = "fifth" if abs(held[0] - 2 * HELD_OUT) < 0.01 else f"{held[0]:.0%}"
        why = f"the last {share} of the time in {name} is held out"
        option = f"time:{name},validation_from={ends[0]},test_from={ends[1]}"
        return ByPrepare(option, why, (held[0] - held[1], held[1]))
    option = f"ratio:validation={HELD_OUT},test={HELD_OUT},seed=0"
    return ByPrepare(option, f"a fifth of the rows, drawn at random, is held out{unfit}")


def _borders(counts: NDArray[np.int64]) -> tuple[int, int] | None:
    """Indices of the distinct times at which validation and test start, so that each gets about HELD_OUT of the rows.
    `counts`: rows of each time, which stay together. None if training would get less than half of the rows."""
    ends = np.cumsum(counts) / counts.sum()
    if len(counts) < 3:
        return None
    test = 2 + int(np.abs(1 - ends[1:-1] - HELD_OUT).argmin())
    validation = 1 + int(np.abs(ends[test - 1] - ends[: test - 1] - HELD_OUT).argmin())
    return (validation, test) if ends[validation - 1] >= 0.5 else None


def column_of(paths: Sequence[DataFile], name: str) -> pa.ChunkedArray:
    """Column of all rows of Parquet files."""
    tables = []
    for path in paths:
        with open_file(path) as file:
            tables.append(file.read_row_groups(range(file.metadata.num_row_groups), [name], use_threads=False))
    column = concatenated(tables).column(0)
    return column.cast(value_of(column.type))


def moments_of(times: pa.ChunkedArray, form: str) -> NDArray[np.int64] | None:
    """[N] integers in the order of the times: integers as they are; floats by their ranks; timestamps and texts, in
    this form or else in one that all match, as microseconds since 1970. None if a time is missing, or the texts' form
    is unknown."""
    if pa.types.is_string(times.type) or pa.types.is_large_string(times.type):
        form = form if form in DAYS else next(iter(forms_of(times)), "")
        times = pa.chunked_array([micros_of(times, form)]) if form else times
    elif pa.types.is_temporal(times.type):
        times = times.cast(pa.timestamp("us", getattr(times.type, "tz", None)), safe=False)
    if pa.types.is_floating(times.type) and not np.isnan(floats_N := times.to_numpy()).any():
        return np.unique(floats_N, return_inverse=True)[1]
    if times.null_count or not (pa.types.is_temporal(times.type) or pa.types.is_integer(times.type)):
        return None
    return np.asarray(times.cast(pa.int64()))


def split_table(division: Division, choices: Sequence[Choice]) -> str:
    """Table of the splits: rows, positive rates of the labels, and the range of the first time column."""
    labels = [choice.column.name for choice in choices if choice.role == "label"]
    time = next((choice.column for choice in choices if choice.role == "time"), None)
    lines = [
        ["split", "rows", *(f"positive: {name}" for name in labels), *([f"{time.name} from .. to"] if time else [])]
    ]
    for split, paths in division.items():
        values = [column_of(paths, name) for name in labels]
        lines.append([split, f"{len(values[0]):,}", *(f"{_mean(column):.2%}" for column in values)])
        lines[-1] += [_span(paths, time)] if time else []
    return "\n".join(aligned(lines))


def rate_of(paths: Sequence[DataFile], label: str) -> float:
    """Positive rate of a label in the files."""
    return _mean(column_of(paths, label))


def _mean(values: pa.ChunkedArray) -> float:
    return float(pc.sum(values.cast(pa.float64()), min_count=0).as_py()) / max(1, len(values))


def _span(paths: Sequence[DataFile], column: Column) -> str:
    """First and last time in the files."""
    times = column_of(paths, column.name)
    moments_N = moments_of(times, column.types.get("time", ""))
    if moments_N is None or not len(moments_N):
        return " .. ".join(shown_time(end) for end in pc.min_max(times).values())
    return f"{shown_time(times[int(moments_N.argmin())])} .. {shown_time(times[int(moments_N.argmax())])}"


def shown_time(time: pa.Scalar) -> str:
    """Human-readable time, also for integers in seconds to nanoseconds since 1970."""
    for scale, unit in zip(CLOCKS, ("s", "ms", "us", "ns"), strict=True):
        if pa.types.is_integer(time.type) and EPOCH[0] * scale <= (time.as_py() or 0) <= EPOCH[1] * scale:
            time = pa.scalar(time.as_py(), pa.timestamp(unit))
    return str(time.cast(pa.string()))[:19]


def _last(paths: Sequence[DataFile], rows: dict[DataFile, int], wanted: float) -> list[DataFile]:
    """Smallest number of trailing files, at least one, that together have `wanted` rows."""
    found: list[DataFile] = []
    for path in reversed(paths):
        if found and sum(rows[one] for one in found) >= wanted:
            break
        found.insert(0, path)
    return found
