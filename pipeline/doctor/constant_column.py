"""Constant columns: one value in all rows, in one file, in a stretch of rows, or in rows drawn at random."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from pipeline.doctor.dependence import Coarse, dependence
from pipeline.doctor.finding import Finding
from pipeline.doctor.seen import SeenColumn, SeenRows

ONE = 0.999
"""Share of the rows of one value from which on a file counts as constant."""
FILE_ROWS = 50
STRETCH, STRETCH_ROWS = 0.01, 100
"""Share of a file's rows, and number of rows, from which on a stretch of one value is reported."""
UNLIKELY_NATS = 30.0
"""Negative logarithm of the chance of so many rows of one value, if each had it as often as elsewhere: 1e-13."""
UNUSUAL = 10
"""Times that the longest stretch must be as long as the longest one of any other value."""
FREQUENT = (0.005, 0.5)
"""Shares of the rows of a value that is compared with the other columns: one in place of others is not most of all."""
ALONE, TOGETHER = 6.0, 60.0
"""Standard deviations of dependence on another column: below the first a value goes with nothing (of 40 columns and 31
values one would exceed 6 by chance once in a million times); from the second, ten times that, values go together."""


def find_constant_columns(seen: SeenRows, coarse: Mapping[str, Coarse]) -> list[Finding]:
    """Find constant columns; the first reason of each."""
    found = []
    for column in seen.features.values():
        reasons = (*_everywhere(seen, column), *_in_files(seen, column), *_in_stretches(seen, column))
        found += list(reasons or _at_random(seen, column, coarse))[:1]
    return found


def _everywhere(seen: SeenRows, column: SeenColumn) -> Iterator[Finding]:
    counts_U = np.bincount(column.codes_N)
    if counts_U.max() >= ONE * seen.num_rows:
        rest = seen.num_rows - int(counts_U.max())
        value = seen.shown(column, int(counts_U.argmax()))
        but = f"all but {rest:,} of the {seen.num_rows:,}" if rest else f"all {seen.num_rows:,}"
        yield Finding(
            "constant_column", "remark" if rest else "fault", (column.name,),
            f"{column.name} is {value} in {but} rows: nothing can be learned from it; correct the files, or take it "
            "out of the workflow",
        )  # fmt: skip


def _in_files(seen: SeenRows, column: SeenColumn) -> Iterator[Finding]:
    """Files with one value, if the other files have several each. (A date may be one value a file in all of them.)"""
    num_files = len(seen.files)
    tops: list[tuple[int, float]] = []
    train, judged = seen.rows_of("train"), ~seen.rows_of("train")
    for number in range(num_files):
        counts_U = np.bincount(column.codes_N[seen.file_N == number], minlength=column.num_values)
        tops.append((int(counts_U.argmax()), float(counts_U.max() / max(1, counts_U.sum()))))
    if num_files > 1 and all(share >= ONE for _, share in tops) and judged.any():
        if not np.isin(column.codes_N[judged], column.codes_N[train]).any():
            yield Finding(
                "constant_column", "fault", (column.name,),
                f"{column.name} is one value in each file ({seen.shown(column, tops[0][0])} in "
                f"{seen.files[0].path.name}), and validation and test have none of train's: what is learned of it "
                "is of no use; take it out of the workflow",
            )  # fmt: skip
        return
    for number, (code, share) in enumerate(tops):
        num_seen = seen.files[number].num_seen
        varied = [other for n, (_, other) in enumerate(tops) if n != number and other < ONE]
        elsewhere_N = column.codes_N[seen.file_N != number]
        if share < ONE or num_seen < FILE_ROWS or 2 * len(varied) < num_files - 1 or not len(elsewhere_N):
            continue
        rate = float((elsewhere_N == code).mean())
        if rate == 0 or -num_seen * np.log(rate) > UNLIKELY_NATS:
            yield Finding(
                "constant_column", "fault", (column.name,),
                f"{column.name} is {seen.shown(column, code)} in {share:.1%} of the rows of "
                f"{seen.files[number].path.name}, and in {rate:.1%} elsewhere: was the file made in another way? "
                "Correct it, or leave it out",
            )  # fmt: skip


def _in_stretches(seen: SeenRows, column: SeenColumn) -> Iterator[Finding]:
    """Stretches of consecutive rows of one value, in a file in which all other stretches are far shorter."""
    ends = np.cumsum([file.num_seen for file in seen.files]).tolist()
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        codes_N = column.codes_N[begin:end]
        begins = np.concatenate(([0], np.flatnonzero(np.diff(codes_N)) + 1))
        lengths = np.diff(np.concatenate((begins, [len(codes_N)])))
        longest = int(lengths.argmax())
        length, code = int(lengths[longest]), int(codes_N[begins[longest]])
        others = lengths[codes_N[begins] != code]
        # A file that is sorted by the column has about one stretch for each of its values.
        grouped = len(lengths) < 2 * len(np.unique(codes_N))
        if length < max(STRETCH_ROWS, STRETCH * len(codes_N)) or grouped or not len(others):
            continue
        rate = (int((codes_N == code).sum()) - length) / (len(codes_N) - length)
        unlikely = rate == 0 or -length * np.log(rate) > UNLIKELY_NATS
        if length >= UNUSUAL * int(others.max()) and unlikely:
            yield Finding(
                "constant_column", "fault", (column.name,),
                f"{column.name} is {seen.shown(column, code)} in {length:,} rows one after another, from "
                f"{seen.place(begin + int(begins[longest]))} on ({length / len(codes_N):.1%} of the file), and in "
                f"{rate:.1%} of the file's others: was it lost there? Correct the rows, or leave them out",
            )  # fmt: skip
            return


def _at_random(seen: SeenRows, column: SeenColumn, coarse: Mapping[str, Coarse]) -> Iterator[Finding]:
    """A frequent value that goes with no other column, though the column's other values do."""
    mine = coarse[column.name]
    if column.num_values < 3:
        return
    others = [other for name, other in coarse.items() if name != column.name]
    if not others or not len(mine.tops):
        return
    strength_K = np.max([dependence(mine, other) for other in others], axis=0)
    for k in np.flatnonzero((mine.shares_K >= FREQUENT[0]) & (mine.shares_K <= FREQUENT[1]) & (strength_K < ALONE)):
        rest = np.delete(strength_K, k)
        if len(rest) and float(np.median(rest)) >= TOGETHER:
            yield Finding(
                "constant_column", "fault", (column.name,),
                f"{column.name} is {seen.shown(column, int(mine.tops[k]))} in {mine.shares_K[k]:.1%} of the rows, in "
                "which it goes with no other column, though its other values do: it looks as if the value had been put "
                "in the place of others. Correct the rows, or make it null",
            )  # fmt: skip
