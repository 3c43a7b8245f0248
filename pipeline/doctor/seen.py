"""Sample of the rows of all splits, column by column: what the doctor's pass saw.

N rows    U distinct values of a column    T labels    V values of all lists of a column
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.features.derived import inputs_of
from pipeline.features.settings import AnyFeature
from pipeline.files.find import DataFile
from pipeline.records import F32, I32, I64, U64

F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]
SHOWN_CHARACTERS = 40
MAX_JUDGED, MAX_COUNTED = 20_000, 200_000


@dataclass(frozen=True, slots=True)
class SeenFile:
    path: DataFile
    split: str
    schema: pa.Schema
    num_rows: int
    num_bytes: int
    """Bytes of its values."""
    num_seen: int = 0
    """Number of rows in the sample."""


@dataclass(frozen=True, slots=True)
class SeenColumn:
    """One column of the sample."""

    name: str
    use: str
    """Setting that names the column, such as "data.numbers"; "" for one that the workflow does not use."""
    codes_N: I32
    """Number of each row's value among the column's distinct values. All nulls (and NaNs) are one value."""
    keys_U: U64
    """Hash of each distinct value; equal values of any two columns have equal hashes. 0 for null."""
    firsts_U: I64
    """First row that has the value."""
    null_N: Mask
    raw_N: F64 | None = None
    """Values of a column of numbers as the file has them, NaN for null."""
    input_N: F32 | None = None
    """The same values in the model's form: filled, shifted, and with log1p if the workflow says so."""
    refused: str = ""
    """Message of training about values that it refuses; then `input_N` is None."""
    lists: tuple[I64, I32] | None = None
    """End of each row's values [N], and numbers of the values [V]; only of a column of lists."""

    @property
    def num_values(self) -> int:
        return len(self.keys_U)

    @property
    def is_number(self) -> bool:
        return self.use == "data.numbers"


@dataclass(frozen=True, slots=True)
class SeenRows:
    """Sample of the rows of all files, file after file, each file's rows in its order."""

    files: tuple[SeenFile, ...]
    total_rows: int
    """Rows of all files of the workflow, those that were not opened included (estimated from the others)."""
    features: Mapping[str, SeenColumn]
    """Numbers and categories, in the order of the workflow."""
    others: Mapping[str, SeenColumn]
    """Columns that the workflow does not use and whose name or type is that of a time."""
    labels_NT: F32
    label_names: tuple[str, ...]
    file_N: I32
    """Number of each row's file in `files`."""
    row_N: I64
    """Number of each row within its file."""
    table: pa.Table
    """The sample as it was read: columns of the workflow, and those of the data that features make them of."""

    @property
    def num_rows(self) -> int:
        return len(self.file_N)

    def rows_of(self, split: str) -> Mask:
        """[N] True for the rows of a split."""
        is_of_F = np.array([file.split == split for file in self.files], bool)
        return is_of_F[self.file_N] if len(self.files) else np.zeros(0, bool)

    def counted_rows(self) -> I64:
        """Rows in which pairs of columns are counted: all, or MAX_COUNTED of them, drawn at random."""
        rows = np.arange(self.num_rows)
        return rows if len(rows) <= MAX_COUNTED else np.sort(np.random.default_rng(0).choice(rows, MAX_COUNTED, False))

    def share_of(self, split: str) -> float:
        """Share of the rows of a split's files that were looked at; 0 if it has none."""
        files = [file for file in self.files if file.split == split]
        return sum(file.num_seen for file in files) / max(1, sum(file.num_rows for file in files))

    def shown(self, column: SeenColumn, code: int) -> str:
        """Text of a value for a message."""
        value: Any = self.table.column(column.name)[int(column.firsts_U[code])].as_py()
        text = "null" if column.keys_U[code] == 0 else repr(value)
        return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."

    def place(self, row: int) -> str:
        """File and row number of a row of the sample, for a message."""
        return f"row {int(self.row_N[row]):,} of {self.files[int(self.file_N[row])].path.name}"


@dataclass(frozen=True, slots=True)
class JudgedRows:
    """Rows that the model is judged on: a sample of test, or else of validation."""

    split: str
    rows: I64
    """Numbers of the rows in the sample."""
    table: pa.Table
    labels_N: F32
    """Labels of the first name."""
    label: str
    features: Sequence[str]
    """Numbers and categories, or the columns of the data that they are made of."""

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    def has_both_labels(self, part: I64) -> bool:
        return 0 < float(self.labels_N[part].sum()) < len(part)


def judged_rows(seen: SeenRows, features: Sequence[AnyFeature] = ()) -> JudgedRows | None:
    """At most MAX_JUDGED rows of the test split, in an order drawn at random; None if there is no split but train.
    `features`: `data.features`, whose columns are left out, since a run makes them of the others."""
    made = {name for feature in features for name in feature.makes}
    table = seen.table.select([name for name in seen.table.column_names if name not in made])
    for split in ("test", "validation"):
        rows = np.flatnonzero(seen.rows_of(split))
        if len(rows):
            rows = np.random.default_rng(0).permutation(rows)[:MAX_JUDGED]
            labels_N = seen.labels_NT[rows, 0]
            # Lists of a sequence have one length in an example, so that none can be given to another row alone.
            names = [name for name, column in seen.features.items() if column.use != "data.sequences.items"]
            read = inputs_of(features, names)
            return JudgedRows(split, rows, table.take(rows), labels_N, seen.label_names[0], read)
    return None
