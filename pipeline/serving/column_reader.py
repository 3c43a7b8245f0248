"""Reader of some columns of a Parquet file, in parts of given numbers of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.files.find import DataFile

SCORED_GROUP = 1 << 17
"""Number of rows per row group of a scored file, and per read."""


class ColumnReader:
    """Reader of some columns of a Parquet file, from front to back."""

    def __init__(self, path: DataFile | Path | str, file: pq.ParquetFile, columns: Sequence[str]) -> None:
        self._path, self._columns = path, list(columns)
        self._batches: Iterator[pa.RecordBatch] = file.iter_batches(
            SCORED_GROUP, columns=self._columns, use_threads=False
        )
        self._rest: list[pa.RecordBatch] = []

    def take(self, num_rows: int) -> list[pa.ChunkedArray]:
        """Next `num_rows` rows, column by column."""
        taken: list[pa.RecordBatch] = []
        while num_rows:
            batch = self._rest.pop() if self._rest else next(self._batches, None)
            if batch is None:
                raise ValueError(
                    f"{self._path} has fewer rows than when the scoring began, {num_rows:,} at least; score it again"
                )
            if len(batch) > num_rows:
                self._rest.append(batch.slice(num_rows))
                batch = batch.slice(0, num_rows)
            taken.append(batch)
            num_rows -= len(batch)
        return list(pa.Table.from_batches(taken).select(self._columns).columns)
