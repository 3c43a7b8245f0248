"""Counts of the numbers in scored files that are outside the domain of their column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipeline.data.decode import fill_floats, plain
from pipeline.data.files import InputColumn
from pipeline.data.outside import Outside
from pipeline.files.flat import FlatFile
from pipeline.files.types import has_no_values, value_of
from pipeline.records import F32, I64
from pipeline.serving.column_reader import ColumnReader


class BadNumbers:
    """Reader of the number columns that may contain bad numbers, according to the file's statistics. The scoring stages
    cannot count: they read blocks in several processes, and some blocks twice."""

    def __init__(self, file: FlatFile, numbers: Sequence[InputColumn], outside: Outside, name: str) -> None:
        """`name`: name of the file, for messages."""
        self._columns, self._outside, self._name = [c for c in numbers if may_have(file, c)], outside, name
        self._reader = ColumnReader(name, file, [column.name for column in self._columns])
        self._row = 0

    def take(self, num_rows: int) -> I64:
        """Rows without a score among the next `num_rows`, relative to the first of them."""
        read = self._reader.take(num_rows) if self._columns else []
        for column, chunks in zip(self._columns, read, strict=True):
            row = self._row
            for array in plain(chunks, column, None, self._name).chunks:
                out_N: F32 = np.empty(len(array), np.float32)
                fill_floats(array, column, self._name, row, out_N, self._outside)
                row += len(array)
        rows = self._outside.take_rows() - self._row
        self._row += num_rows
        return rows


def may_have(file: FlatFile, column: InputColumn) -> bool:
    """False if the minimum and maximum of each row group, and null, are in the domain of the column."""
    metadata, place = file.metadata, file.leaf(column.name)
    if column.name not in file.schema_arrow.names:
        return False
    found = value_of(file.schema_arrow.field(column.name).type)
    if place is None or has_no_values(found):
        return place is None
    ends = []
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(place).statistics
        if statistics is None or not statistics.has_min_max or pa.types.is_float16(found):
            return True
        ends += [statistics.min, statistics.max]
    if not all(isinstance(end, int | float) for end in ends):
        return True
    trial = Outside("clip")
    out: F32 = np.empty(len(ends) + 1, np.float32)
    fill_floats(pa.array([*ends, None], found), column, "", 0, out, trial)
    return bool(trial.counts) or any(end != end for end in ends)
