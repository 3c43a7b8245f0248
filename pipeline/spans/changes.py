"""What differs in a span to which the guard objects from the spans before it. Only then are their files read: a sample
of the rows, one column at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.files.find import DataFile
from pipeline.files.flat import open_file
from pipeline.files.types import concatenated, is_list

Rows = tuple[DataFile, int, range]
"""Rows of a row group of a file: the number of the group, and those of the rows in it."""
MOST_ROWS, MOST_GROUPS = 1 << 16, 16
"""Maximum number of rows in the sample of a span, and of row groups from which they are taken."""
MOST_NAMED, LEAST = 3, 0.01
"""Maximum number of columns that are named, and the least change of a share for which one is."""


def changes_of(label: str, columns: Sequence[str], spans: Sequence[Sequence[Rows]]) -> str:
    """Sentences with the mean of a label, and the columns whose share of nulls, or of values that the span before does
    not have, changed most. `columns`: names of the columns to compare. `spans`: rows of the span, of the one before it,
    and so on. If a file cannot be read, this is what is said."""
    try:
        with ExitStack() as stack:
            samples = [_Sample(rows, stack) for rows in spans if rows]
            means = [pc.mean(one.read(label).cast(pa.float64())).as_py() for one in samples[:2]]
            changes = [_largest_change(name, samples) for name in samples[0].inputs(columns)]
    except (ValueError, OSError, pa.ArrowException) as error:
        return f" Its columns were not compared with those of the spans before: {error}."
    is_label, *was = [f"{math.nan if mean is None else mean:.4f}" for mean in means]
    rates = "".join(f" (before: {mean})" for mean in was)
    most = sorted(changes, key=lambda change: -change[0])[:MOST_NAMED]
    named = "; ".join(text for change, text in most if change >= LEAST) or "none"
    return f" Its mean label is {is_label}{rates}. Columns that changed most: {named}."


class _Sample:
    """Rows of a span at equal distances."""

    def __init__(self, rows: Sequence[Rows], stack: ExitStack) -> None:
        """`stack`: closes the files."""
        some = rows[:: -(-len(rows) // MOST_GROUPS)]
        every = -(-sum(len(of) for *_, of in some) // MOST_ROWS)
        self._parts = [(stack.enter_context(open_file(file)), group, of[::every]) for file, group, of in some]

    def inputs(self, columns: Sequence[str]) -> list[str]:
        """Columns of the files from which these columns are made."""
        return self._parts[0][0].inputs(columns)

    def read(self, name: str) -> pa.ChunkedArray:
        tables = [file.read_row_group(group, [name]).take(pa.array(of)) for file, group, of in self._parts]
        return concatenated(tables).column(0)


def _largest_change(name: str, samples: Sequence[_Sample]) -> tuple[float, str]:
    """The larger change of a column's two shares, and its description. `samples`: as the `spans` of `changes_of`."""
    columns = [sample.read(name) for sample in samples]
    nulls = [column.null_count / len(column) for column in columns]
    unseen = [_unseen(of, before) for of, before in pairwise(map(_values, columns))]
    found = [(0.0, "")] + [
        (abs(shares[0] - shares[1]), f"{name!r}, {shares[0]:.1%} {what} (before: {shares[1]:.1%})")
        for what, shares in (("null", nulls), ("unseen values", unseen))
        if len(shares) > 1
    ]
    return max(found)


def _values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values of a column, and of its lists, without nulls."""
    while is_list(column.type):
        column = pc.list_flatten(column)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.drop_null()


def _unseen(values: pa.ChunkedArray, before: pa.ChunkedArray) -> float:
    """Share of values that are not among those before."""
    if not len(values):
        return 0.0
    return 1 - float(pc.mean(pc.is_in(values, value_set=before.cast(values.type).unique())).as_py())
