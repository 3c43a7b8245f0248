"""Count of the numbers in scored files that are outside the domain of their column, file by file and row by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.data.decode import fill_floats
from pipeline.data.files import InputColumn, has_no_values, leaves
from pipeline.data.outside import Outside
from pipeline.records import F32, I64
from pipeline.serving.column_reader import ColumnReader


class BadNumbers:
    """Reader of those number columns of a file that have bad numbers, by the file's statistics, or may have some. The
    stages that score read blocks in several processes, and some twice, so that they cannot count."""

    def __init__(self, file: pq.ParquetFile, numbers: Sequence[InputColumn], outside: Outside, name: str) -> None:
        """`name`: the file's, for messages."""
        self._columns, self._outside, self._name = [c for c in numbers if may_have(file, c)], outside, name
        self._reader = ColumnReader(name, file, [column.name for column in self._columns])
        self._row = 0

    def take(self, num_rows: int) -> I64:
        """Rows without a score among the next `num_rows`, counted from the first of these."""
        read = self._reader.take(num_rows) if self._columns else []
        for column, chunks in zip(self._columns, read, strict=True):
            row = self._row
            for array in chunks.chunks:
                out_N: F32 = np.empty(len(array), np.float32)
                fill_floats(array, column, self._name, row, out_N, self._outside)
                row += len(array)
        rows = self._outside.take_rows() - self._row
        self._row += num_rows
        return rows


def may_have(file: pq.ParquetFile, column: InputColumn) -> bool:
    """False if the least and the largest value of each row group, and null, are in the domain of the column."""
    metadata, found = file.metadata, file.schema_arrow.field(column.name).type
    if has_no_values(found):
        return False
    places = [place for _, place in leaves(file.schema_arrow, metadata, [column])]
    if not places:
        return True
    (place,) = places
    ends = []
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(place).statistics
        if statistics is None or not statistics.has_min_max or pa.types.is_float16(found):
            return True
        ends += [statistics.min, statistics.max]
    trial = Outside("clip")
    out: F32 = np.empty(len(ends) + 1, np.float32)
    fill_floats(pa.array([*ends, None], found), column, "", 0, out, trial)
    return bool(trial.counts) or any(end != end for end in ends)
