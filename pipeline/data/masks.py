"""Labels that only some examples have: those of `data.tasks`. A missing label is NaN."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.data.files import InputColumn
from pipeline.records import F32


def mask_labels(labels: Sequence[F32], columns: Sequence[InputColumn], where: str, first_row: int) -> None:
    """Set labels to NaN in the examples that lack them. `labels`: values [N] of each column, in the order of
    data.labels. `where` and `first_row` are used in messages.

    Raises ValueError if a label is null in an example that must have it."""
    values = dict(zip((column.name for column in columns), labels, strict=True))
    for column in columns:
        if not (task := column.task) or not task.where:
            continue
        labels_N, has_N = values[column.name], values[task.where] == 1
        labels_N[~has_N] = np.nan
        if not task.nulls and (is_null_N := has_N & np.isnan(labels_N)).any():
            rows = np.flatnonzero(is_null_N)
            raise ValueError(
                f"{where}, column {column.name!r} (data.labels): {len(rows):,} nulls where {task.where!r} is 1, the "
                f"first at row {first_row + int(rows[0])}; correct the data, or leave such examples out of this label: "
                f"nulls=True in its task of data.tasks"
            )
