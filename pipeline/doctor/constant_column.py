"""Constant columns: one value in all rows, or in all rows of one file."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipeline.doctor.finding import Finding
from pipeline.doctor.seen import SeenColumn, SeenRows

ONE = 0.999
"""Minimum fraction of rows with one value for a file to count as constant."""
FILE_ROWS = 50
UNLIKELY_NATS = 30.0
"""Negative logarithm of the probability that all rows of a file have one value, if its frequency is the same as
elsewhere: 1e-13."""


def find_constant_columns(seen: SeenRows) -> list[Finding]:
    """Find constant columns, and report the first reason for each."""
    return [
        found
        for column in seen.features.values()
        for found in [*_everywhere(seen, column), *_in_files(seen, column)][:1]
    ]


def _everywhere(seen: SeenRows, column: SeenColumn) -> Iterator[Finding]:
    counts_U = np.bincount(column.codes_N)
    if counts_U.max() >= ONE * seen.num_rows:
        rest = seen.num_rows - int(counts_U.max())
        value = seen.shown(column, int(counts_U.argmax()))
        but = f"all but {rest:,} of the {seen.num_rows:,}" if rest else f"all {seen.num_rows:,}"
        yield Finding(
            "constant_column", "remark" if rest else "fault", (column.name,),
            f"{column.name} is {value} in {but} rows: nothing can be learned from it; correct the files, or "
            "remove it from the workflow",
        )  # fmt: skip


def _in_files(seen: SeenRows, column: SeenColumn) -> Iterator[Finding]:
    """Files with one value, if most other files have several. (A date may have one value per file in all of them.)"""
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
                f"{column.name} has a single value in each file ({seen.shown(column, tops[0][0])} in "
                f"{seen.files[0].path.name}), and validation and test have none of train's values: what is learned "
                "from it is useless there; remove it from the workflow",
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
                f"{seen.files[number].path.name}, and in {rate:.1%} elsewhere: was the file made differently? "
                "Correct it, or leave it out",
            )  # fmt: skip
