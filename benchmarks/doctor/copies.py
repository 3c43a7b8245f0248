"""Copies of a data set: its rows, their files, and the workflow for both.

N rows of all files: train, validation, test
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.data.files import resolve
from pipeline.records import I64
from pipeline.settings import SPLITS
from pipeline.workflow import Category, Number, Workflow

GROUP_ROWS = 1 << 15


class Trace(NamedTuple):
    """Extent of a fault: the changed columns, and the number of changed and of all rows (or whatever the variant
    counts)."""

    columns: tuple[str, ...]
    affected: int
    of: int


@dataclass
class Copy:
    """A data set in memory. A fault changes the table, the rows of a file, or the columns that the workflow names."""

    workflow: Workflow
    table: pa.Table
    """All rows [N]."""
    files: dict[str, I64]
    """Numbers of the rows of each file, in its order; names are relative to `data.root`."""
    splits: dict[str, tuple[str, ...]]
    """Names of the files of each split."""

    @property
    def label(self) -> str:
        return self.workflow.data.labels[0]

    def twin(self) -> Copy:
        """Return a duplicate of this copy."""
        return Copy(self.workflow, self.table, dict(self.files), dict(self.splits))

    def labels(self) -> NDArray[np.int8]:
        return self.table[self.label].to_numpy().astype(np.int8)

    def everything(self) -> I64:
        return np.arange(len(self.table))

    def rows(self, *splits: str) -> I64:
        return np.concatenate([self.files[name] for split in splits for name in self.splits[split]])

    def fields(self) -> list[str]:
        """Names of the categorical columns that are null in no row, those with the most values first."""
        names = [category.name for category in self.workflow.data.categories]
        whole = [name for name in names if name not in TIMES and self.table[name].null_count == 0]
        return sorted(whole, key=lambda name: -pc.count_distinct(self.table[name]).as_py())

    def numbers(self) -> list[Number]:
        """Columns of numbers that the workflow names, those with the most values first."""
        return sorted(
            self.workflow.data.numbers, key=lambda number: -pc.count_distinct(self.table[number.name]).as_py()
        )

    def add(self, column: Number | Category | str, values: pa.Array) -> None:
        """Append a column [N] to the table and, unless only its name is given, to the columns of the workflow."""
        name = column if isinstance(column, str) else column.name
        self.table = self.table.append_column(name, values)
        data = self.workflow.data
        if isinstance(column, Number):
            self.change(numbers=(*data.numbers, column))
        elif isinstance(column, Category):
            self.change(categories=(*data.categories, column))

    def put(self, name: str, values: pa.Array, rows: I64) -> None:
        """Replace the values of a column in the given rows; `values` [rows] has the column's type."""
        old = self.table[name].combine_chunks()
        at_N = self.everything()
        at_N[rows] = len(self.table) + np.arange(len(rows))
        new = pa.concat_arrays([old, values.cast(old.type)]).take(pa.array(at_N))
        self.table = self.table.set_column(self.table.column_names.index(name), self.table.schema.field(name), new)

    def repeat(self, rows: I64, others: I64, but: Sequence[str] = ()) -> None:
        """Replace rows by other rows, except in some columns."""
        for name in self.table.column_names:
            if name not in but:
                self.put(name, self.table[name].combine_chunks().take(pa.array(others)), rows)

    def change(self, **settings: Any) -> None:
        """Change settings of `data`."""
        self.workflow = self.workflow.model_copy(update={"data": self.workflow.data.model_copy(update=settings)})


TIMES = ("hour", "timestamp", "event_time")
"""Names of columns of times, each with a different form; see `times`."""


def load(workflow: Workflow) -> Copy:
    """Read the files of a workflow."""
    root, start = workflow.data.root.expanduser(), 0
    tables: list[pa.Table] = []
    files: dict[str, I64] = {}
    splits: dict[str, tuple[str, ...]] = {}
    for split in SPLITS:
        paths = [Path(str(file)) for file in resolve(workflow.data, split, {})]
        splits[split] = tuple(str(path.relative_to(root)) for path in paths)
        for name, path in zip(splits[split], paths, strict=True):
            tables.append(pq.ParquetFile(path).read())
            files[name] = np.arange(start, start + len(tables[-1]))
            start += len(tables[-1])
    return Copy(workflow, pa.concat_tables(tables).combine_chunks(), files, splits)


def write(copy: Copy, out: Path, source: Copy) -> Workflow:
    """Write the files below `out` and return their workflow. A file that is unchanged from `source` is copied byte for
    byte."""
    for name, rows in copy.files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = copy.table.take(pa.array(rows))
        if name in source.files and content.equals(source.table.take(pa.array(source.files[name]))):
            shutil.copyfile(source.workflow.data.root.expanduser() / name, path)
        else:
            pq.write_table(content, path, row_group_size=GROUP_ROWS)
    copy.change(root=out)
    return copy.workflow


def pick(rng: np.random.Generator, among: I64, share: float) -> I64:
    """Draw a share of the rows, at least one unless the share is 0; sorted."""
    count = max(1, round(share * len(among))) if share else 0
    return np.sort(rng.choice(among, count, replace=False))
