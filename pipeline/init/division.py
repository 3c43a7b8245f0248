"""Split of rows into training, validation and test: by names of folders or files, by time, or at random."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.files.find import DataFile
from pipeline.files.flat import open_file
from pipeline.files.plausible import MAX_OUTSIDE, UNITS, are_outside
from pipeline.files.types import concatenated, kind_of, value_of
from pipeline.init.choice import Choice, label_of_rows, of_role
from pipeline.init.columns import Column, Look
from pipeline.init.values import EPOCH, F8, clock_in
from pipeline.prepare.main import aligned
from pipeline.prepare.schema import DAY, DAYS, forms_of, micros_of
from pipeline.records import I64
from pipeline.settings import SPLITS

SPLIT_WORDS = {
    "train": re.compile(r"(^|[^a-z])train(ing)?([^a-z]|$)", re.IGNORECASE),
    "validation": re.compile(r"(^|[^a-z])(val|valid|validation|dev)([^a-z]|$)", re.IGNORECASE),
    "test": re.compile(r"(^|[^a-z])(test|eval|holdout)([^a-z]|$)", re.IGNORECASE),
}
HELD_OUT, MORE_HELD_OUT, FEW_POSITIVES = 0.1, 0.2, 3000
"""Share of the rows for validation and for test, each; and the larger share for logs with fewer positive rows."""
LEAST, MOST = 1 / 3, 0.25
"""Minimum share of validation and of test, relative to the wanted one, if they are whole units; and their maximum
share, so that at least half of the rows are for training."""
SIZES = {"month": 0, "week": 7 * DAY, "day": DAY, "hour": DAY // 24, "": 1}
"""Units of time -> microseconds, the coarsest first. Months have no fixed length; the last unit is a single time."""
MIN_UNITS = 5
"""Minimum number of units for holding out whole ones."""
MONDAY = 4 * DAY
"""Begin of the first week of 1970 in microseconds."""
DATE = re.compile(
    r"(?<![0-9])(20[0-9]{2})[-_/.]?(?:month=)?(1[0-2]|0?[1-9])(?:[-_/.]?(?:day=)?(3[01]|[12][0-9]|0?[1-9])"
    r"(?:(?:[-_T ]?|/(?:hour=|hr=|h=)?(?=[^/]*/))([01][0-9]|2[0-3]))?)?(?![0-9])",
    re.IGNORECASE,
)
"""Pattern of year, month, day and hour in a path, in one name or in nested folders."""
NUMBERED = re.compile(r"(?<![a-z])(day|week)[-_= ]?([0-9]{1,9})(?![0-9])", re.IGNORECASE)
"""Pattern of numbered days or weeks in a path."""

Division = dict[str, tuple[DataFile, ...]]


@dataclass(frozen=True, slots=True)
class Divided:
    """Split of the rows, and the reason."""

    why: str
    files: Division | None = None
    """Files of each split; None if the rows within files must be split."""
    option: str = ""
    """Value of prepare's --split; empty if `files` alone determine the split."""
    shares: tuple[float, float] = (HELD_OUT, HELD_OUT)
    """Shares of validation and test."""
    held_N: NDArray[np.bool_] | None = None
    """[N] True for rows of the sample that a time column holds out; None if `files` determine that, or chance."""

    def differences(self, rows: Mapping[str, int]) -> Iterator[str]:
        """Yield a warning for each split whose share of the rows differs from the announced one."""
        for split, share in zip(SPLITS[1:], self.shares, strict=True):
            found = rows[split] / sum(rows.values())
            if abs(found - share) > HELD_OUT / 2:
                said = f"{split} has {found:.1%} of the rows, where the sample had {share:.1%}"
                yield f"warning: {said}; divide them by another --split of `pipeline prepare`, which is shown above\n"


class Cut(NamedTuple):
    """Times at which validation and test begin, and their shares of the rows."""

    unit: str
    """Unit of time, of which whole ones are held out; empty for single times."""
    begins: tuple[int, int]
    shares: tuple[float, float]

    def said(self, where: str, begins: Sequence[object]) -> str:
        """Description of the split. `begins`: `self.begins` as text."""
        whole = f", by whole {self.unit}s" if self.unit else ""
        held = zip(SPLITS[1:], begins, self.shares, strict=True)
        return f"by the time in {where}{whole}: " + ", ".join(f"{n} from {b} ({s:.1%} of the rows)" for n, b, s in held)


def divide(look: Look, choices: Sequence[Choice]) -> Divided:
    """Divide the rows: by the splits that folders or files are named after; else by the dates in the paths; else by the
    first time column that can divide them; else by days or weeks that the paths number; else at random."""
    if named := _by_names(look.paths):
        return named
    # The metrics of a few clicks would be noise.
    positives = round(sum(look.rows) * min(label_of_rows(look, label).mean() for label in of_role(choices, "label")))
    share = HELD_OUT if positives >= FEW_POSITIVES else MORE_HELD_OUT
    few = f"; about {share:.0%} for each, since only {positives:,} rows are positive" if share > HELD_OUT else ""
    found, unfit = _by_paths(look, DATE, share), ""
    for choice in of_role(choices, "time"):
        found, reason = (found, "") if found else _by_column(look, choice.column, share)
        unfit += reason
    if not (found := found or _by_paths(look, NUMBERED, share)):
        why = f"{2 * share:.0%} of the rows, drawn at random, are held out{unfit}"
        found = Divided(why, None, f"ratio:validation={share},test={share},seed=0", (share, share))
    return replace(found, why=found.why + few)


def _by_names(paths: Sequence[DataFile]) -> Divided | None:
    """Split by folders or files named after splits; None unless training and another split are named."""
    top, by_name = _top(paths), dict[str, list[DataFile]]({split: [] for split in SPLITS})
    for path in paths:
        folders = [name.rpartition("=")[2] for name in str(path)[top:].split("/")[:-1]]
        named = [split for folder in folders for split, word in SPLIT_WORDS.items() if word.fullmatch(folder)]
        named += [split for split, word in SPLIT_WORDS.items() if word.search(path.stem)]
        if named:
            by_name[named[0]].append(path)
    if not by_name["train"] or not (by_name["validation"] or by_name["test"]):
        return None
    found = {split: tuple(of) for split, of in by_name.items() if of}
    left = len(paths) - sum(map(len, found.values()))
    more = f"; {left} other files are left out" if left else ""
    return Divided(f"by the names of the folders or files{more}", found)


def _top(paths: Sequence[DataFile]) -> int:
    """Length of the path of the folder that contains all files."""
    return len(os.path.commonpath([os.path.dirname(str(path)) for path in paths]))


def _by_paths(look: Look, pattern: re.Pattern[str], share: float) -> Divided | None:
    """Split by the times in the paths of the files, below the folder that contains all, or in the whole paths; None if
    they have none that can divide the rows. Files without a time are for training: those of a null partition, and those
    with other names, such as day=1970-01-01, if they have at most MAX_OUTSIDE of the rows."""
    rows_F = np.array(look.rows)
    for top in (_top(look.paths), 0):
        in_names = ["".join(f"{name}={value}/" for name, value in path.partitions) for path in look.paths]
        found = [pattern.search(text + str(path)[top:]) for text, path in zip(in_names, look.paths, strict=True)]
        moments = [_moment(one) if one else None for one in found]
        are_whole = [all(value for _, value in path.partitions) for path in look.paths]
        outside_F = np.array([moment is None for moment in moments]) & are_whole
        if rows_F[outside_F].sum() > MAX_OUTSIDE * rows_F.sum():
            continue
        oldest = min((moment for moment in moments if moment is not None), default=0)
        moments_F = np.array([oldest if moment is None else moment for moment in moments])
        units = SIZES if pattern is DATE else {next((one[1] for one in found if one), "").lower(): 1}
        if cut := _cut(moments_F, rows_F, share, {unit: size for unit, size in units.items() if unit}):
            begins = [_shown_begin(begin) for begin in cut.begins] if pattern is DATE else cut.begins
            files = _whole_files(look, moments_F[:, None], cut)
            why = cut.said("the paths of the files", begins)
            if outside_F.any():
                such = f"files without such a time, such as {look.paths[int(outside_F.argmax())]}"
                why += f"; {rows_F[outside_F].sum():,} rows of {such}, are for training"
            return Divided(why, files, "", cut.shares)
    return None


def _moment(found: re.Match[str]) -> int:
    """Number of a numbered day or week, or microseconds since 1970 of a date."""
    if found.re is NUMBERED:
        return int(found[2])
    year, month, day, hour = found.groups("0")
    days = int(np.datetime64(f"{year}-{month:0>2}", "D").astype(np.int64)) + max(1, int(day)) - 1
    return days * DAY + int(hour) * SIZES["hour"]


def _by_column(look: Look, column: Column, share: float) -> tuple[Divided | None, str]:
    """Split by a time column, or the reason why it cannot divide the rows, as the end of a sentence."""
    name, form, is_text = column.name, column.types.get("time", ""), look.delimiter is not None
    times = look.sample.column(name) if is_text else column_of(look.paths, name)
    found = moments_of(times, form)
    if found is None:
        return None, f"; {name} is not in every row, or not in one form"
    moments_N, outside_N = found
    if outside_N.mean() > MAX_OUTSIDE:
        return None, f"; {name} has times outside 1990 to 2100"
    different_M, first_M, counts_M = np.unique(moments_N, return_index=True, return_counts=True)
    cut = _cut(different_M, counts_M, share, SIZES)
    if cut is None:
        at = f"{counts_M.max() / counts_M.sum():.0%} of the rows have the time {times[int(first_M[counts_M.argmax()])]}"
        return None, f"; {name} cannot divide them: {len(different_M):,} different times, and {at}"
    firsts = [times[int(first_M[np.searchsorted(different_M, begin)])] for begin in cut.begins]
    ends = [str(first.cast(pa.string())) for first in firsts]
    shown = [_shown_begin(begin) for begin in cut.begins] if cut.unit else [*map(shown_time, firsts)]
    if cut.unit and is_text:
        # The sample may lack the first times of a unit.
        scale = UNITS.get(clock_in(times), 0)
        ends = shown if form == "iso" else [str(begin * scale // 10**6) for begin in cut.begins] if scale else ends
    files = None if is_text else _whole_files(look, np.split(moments_N, np.cumsum(look.rows)[:-1]), cut)
    if not files and not is_text and kind_of(times.type) == "text" and micros_of(times[:1], "iso").null_count:
        return None, f"; {name} is text in another form than 2026-11-24 10:30:00"
    option = f"time:{name},validation_from={ends[0]},test_from={ends[1]}"
    sample = look.sample.column(name)
    of_sample = moments_of(sample.cast(value_of(sample.type)), form)
    held_N = None if of_sample is None else of_sample[0] >= cut.begins[0]
    why = cut.said(name, shown)
    if outside_N.any():
        such = f"such as {shown_time(times[int(outside_N.argmax())])}, which is outside 1990 to 2100"
        why += f"; {outside_N.sum():,} {'sampled ' * is_text}rows have a {name} {such}, and are for training"
    return Divided(why, files, option, cut.shares, held_N), ""


def _cut(moments_M: I64, rows_M: I64, share: float, units: Mapping[str, int]) -> Cut | None:
    """Begins of validation and test, in the coarsest of the units of which enough have about the wanted share of the
    rows. `rows_M`: rows of each time."""
    for unit, size in units.items():
        if size:
            begins_M = (moments_M - MONDAY) // size * size + MONDAY
        else:
            begins_M = moments_M.astype("M8[us]").astype("M8[M]").astype("M8[us]").astype(np.int64)
        begins_U, unit_M = np.unique(begins_M, return_inverse=True)
        before_U = np.cumsum(np.bincount(unit_M, rows_M)) / rows_M.sum()
        if len(begins_U) < (MIN_UNITS if unit else len(SPLITS)):
            continue
        least = share * LEAST if unit else 0.0
        test = _nearest(1 - before_U[1:-1], share, least)
        validation = None if test is None else _nearest(before_U[test + 1] - before_U[: test + 1], share, least)
        if test is not None and validation is not None:
            held = float(before_U[test + 1] - before_U[validation]), float(1 - before_U[test + 1])
            return Cut(unit, (int(begins_U[validation + 1]), int(begins_U[test + 2])), held)
    return None


def _nearest(shares: F8, wanted: float, least: float) -> int | None:
    """Index of the share nearest to the wanted one, from `least` to MOST; None if there is none."""
    distances = np.where((shares >= least) & (shares <= MOST + 1e-9), np.abs(shares - wanted), np.inf)
    return int(distances.argmin()) if np.isfinite(distances).any() else None


def _whole_files(look: Look, moments_F: Sequence[I64] | I64, cut: Cut) -> Division | None:
    """Files of each split; None if a file has rows of several. `moments_F`: times of each file's rows."""
    of_split: dict[str, list[DataFile]] = {split: [] for split in SPLITS}
    for path, moments in zip(look.paths, moments_F, strict=True):
        numbers = np.unique(np.searchsorted(cut.begins, moments, "right"))
        if len(numbers) > 1:
            return None
        of_split[SPLITS[int(numbers[0]) if len(numbers) else 0]].append(path)
    return {split: tuple(paths) for split, paths in of_split.items()}


def column_of(paths: Sequence[DataFile], name: str) -> pa.ChunkedArray:
    """Column of all rows of Parquet files."""
    tables = []
    for path in paths:
        with open_file(path) as file:
            tables.append(file.read_row_groups(range(file.metadata.num_row_groups), [name], use_threads=False))
    column = concatenated(tables).column(0)
    return column.cast(value_of(column.type))


def moments_of(times: pa.ChunkedArray, form: str) -> tuple[I64, NDArray[np.bool_]] | None:
    """[N] integers in the order of the times: microseconds since 1970; other integers as they are; and [N] True for
    those outside 1990 to 2100, which get the least of the others, since they are for training. `form`: form of texts;
    any that is unknown is detected. None if a time is missing, or the form is unknown."""
    is_raw = not (clock := clock_in(times)) and pa.types.is_integer(times.type)
    if pa.types.is_string(times.type) or pa.types.is_large_string(times.type):
        form = form if form in DAYS else next(iter(forms_of(times)), "")
        times = pa.chunked_array([micros_of(times, form)]) if form else times
    elif pa.types.is_temporal(times.type):
        times = times.cast(pa.timestamp("us", getattr(times.type, "tz", None)), safe=False)
    elif "%" in clock and pa.types.is_integer(times.type):
        times = pc.strptime(times.cast(pa.string()), clock, "s").cast(pa.timestamp("us"))
    elif scale := UNITS.get(clock):
        times = pc.multiply(times, 10**6 // scale) if scale <= 10**6 else pc.divide(times, scale // 10**6)
        times = times.cast(pa.int64(), safe=False)
    if times.null_count or not (pa.types.is_temporal(times.type) or pa.types.is_integer(times.type)):
        return None
    moments_N = np.asarray(times.cast(pa.int64()))
    outside_N = are_outside(pa.array(moments_N, None if is_raw else pa.timestamp("us")))
    return np.where(outside_N, moments_N.min(initial=moments_N.max(initial=0), where=~outside_N), moments_N), outside_N


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
    found = moments_of(times, column.types.get("time", ""))
    if found is None or not len(moments_N := found[0]):
        return " .. ".join(shown_time(end) for end in pc.min_max(times).values())
    return f"{shown_time(times[int(moments_N.argmin())])} .. {shown_time(times[int(moments_N.argmax())])}"


def shown_time(time: pa.Scalar) -> str:
    """Human-readable time, also for integers in seconds to nanoseconds since 1970."""
    for unit, scale in UNITS.items():
        if pa.types.is_integer(time.type) and EPOCH[0] * scale <= (time.as_py() or 0) <= EPOCH[1] * scale:
            time = pa.scalar(time.as_py(), pa.timestamp(unit))
    return str(time.cast(pa.string()))[:19]


def _shown_begin(begin: int) -> str:
    """Begin of a unit of time, without the hour if that is midnight."""
    return shown_time(pa.scalar(begin, pa.timestamp("us"))).removesuffix(" 00:00:00")
