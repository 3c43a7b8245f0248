"""Sample of the rows of all splits, column by column: the result of the doctor's pass.

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
    """Size of its values in bytes."""
    num_seen: int = 0
    """Number of rows in the sample."""


@dataclass(frozen=True, slots=True)
class SeenColumn:
    """One column of the sample."""

    name: str
    use: str
    """Setting that names the column, such as "data.numbers"; "" for a column that the workflow does not use."""
    codes_N: I32
    """Index of each row's value among the column's distinct values. All nulls (and NaNs) are one value."""
    keys_U: U64
    """Hash of each distinct value; equal values of any two columns have equal hashes. 0 for null."""
    firsts_U: I64
    """First row with each value."""
    null_N: Mask
    raw_N: F64 | None = None
    """Values of a number column as stored in the file, NaN for null."""
    input_N: F32 | None = None
    """The same values as the model's input: filled, shifted, and with log1p if the workflow says so."""
    refused: str = ""
    """Error message of training if it rejects some values; `input_N` is then None."""
    lists: tuple[I64, I32] | None = None
    """End of each row's values [N], and codes of the values [V]; only for a column of lists."""

    @property
    def num_values(self) -> int:
        return len(self.keys_U)

    @property
    def is_number(self) -> bool:
        return self.use == "data.numbers"


@dataclass(frozen=True, slots=True)
class SeenRows:
    """Sample of the rows of all files, file by file, in each file's order."""

    files: tuple[SeenFile, ...]
    total_rows: int
    """Number of rows in all files of the workflow, including unopened ones (estimated from the others)."""
    features: Mapping[str, SeenColumn]
    """Numbers and categories, in workflow order."""
    others: Mapping[str, SeenColumn]
    """Columns that the workflow does not use and that look like times by name or type."""
    labels_NT: F32
    label_names: tuple[str, ...]
    file_N: I32
    """Index of each row's file in `files`."""
    row_N: I64
    """Row number of each row within its file."""
    table: pa.Table
    """The sample as read: the workflow's columns, and the data columns from which features derive them."""

    @property
    def num_rows(self) -> int:
        return len(self.file_N)

    def rows_of(self, split: str) -> Mask:
        """[N] True for the rows of a split."""
        is_of_F = np.array([file.split == split for file in self.files], bool)
        return is_of_F[self.file_N] if len(self.files) else np.zeros(0, bool)

    def counted_rows(self) -> I64:
        """Rows used for counting pairs of columns: all, or MAX_COUNTED of them, drawn at random."""
        rows = np.arange(self.num_rows)
        return rows if len(rows) <= MAX_COUNTED else np.sort(np.random.default_rng(0).choice(rows, MAX_COUNTED, False))

    def share_of(self, split: str) -> float:
        """Fraction of the rows in a split's opened files that are in the sample; 0 if the split has none."""
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
    """Rows on which the model is judged: a sample of test, or otherwise of validation."""

    split: str
    rows: I64
    """Row numbers within the sample."""
    table: pa.Table
    labels_N: F32
    """Values of the first label."""
    label: str
    features: Sequence[str]
    """Numbers and categories, or the data columns from which they are derived."""

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    def has_both_labels(self, part: I64) -> bool:
        return 0 < float(self.labels_N[part].sum()) < len(part)


def judged_rows(seen: SeenRows, features: Sequence[AnyFeature] = ()) -> JudgedRows | None:
    """At most MAX_JUDGED rows of the test split (otherwise validation), in random order; None if train is the only
    split. `features`: `data.features`, whose columns are omitted, since a run derives them from the others."""
    made = {name for feature in features for name in feature.makes}
    table = seen.table.select([name for name in seen.table.column_names if name not in made])
    for split in ("test", "validation"):
        rows = np.flatnonzero(seen.rows_of(split))
        if len(rows):
            rows = np.random.default_rng(0).permutation(rows)[:MAX_JUDGED]
            labels_N = seen.labels_NT[rows, 0]
            # Lists of a sequence have the same length within an example, so none can be moved to another row on its
            # own.
            names = [name for name, column in seen.features.items() if column.use != "data.sequences.items"]
            read = inputs_of(features, names)
            return JudgedRows(split, rows, table.take(rows), labels_N, seen.label_names[0], read)
    return None
