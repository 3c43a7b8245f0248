"""Rows that the model is judged on: a sample of test, or else of validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline.doctor.seen import SeenRows
from pipeline.records import F32, I64

MAX_JUDGED = 20_000


@dataclass(frozen=True, slots=True)
class JudgedRows:
    split: str
    rows: I64
    """Numbers of the rows in the sample."""
    table: pa.Table
    labels_N: F32
    """Labels of the first name."""
    label: str
    features: Sequence[str]

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    def has_both_labels(self, part: I64) -> bool:
        return 0 < float(self.labels_N[part].sum()) < len(part)


def judged_rows(seen: SeenRows) -> JudgedRows | None:
    """At most MAX_JUDGED rows of the test split, in an order drawn at random; None if there is no split but train."""
    for split in ("test", "validation"):
        rows = np.flatnonzero(seen.rows_of(split))
        if len(rows):
            rows = np.random.default_rng(0).permutation(rows)[:MAX_JUDGED]
            labels_N = seen.labels_NT[rows, 0]
            return JudgedRows(split, rows, seen.table.take(rows), labels_N, seen.label_names[0], list(seen.features))
    return None
