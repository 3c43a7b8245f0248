"""Keys of test that do not occur in train: their embedding rows still have their initial values and carry no
information."""

from __future__ import annotations

import numpy as np

from pipeline.doctor.finding import Finding, listed
from pipeline.doctor.seen import Mask, SeenColumn, SeenRows

LEAST_UNSEEN = 0.01
"""Minimum fraction of rows (for a column of lists, of values) to report."""


def find_unseen_keys(seen: SeenRows) -> list[Finding]:
    """Compare test (otherwise validation) with train, field by field."""
    split = next((split for split in ("test", "validation") if seen.rows_of(split).any()), None)
    if split is None:
        return []
    train_N, split_N = seen.rows_of("train"), seen.rows_of(split)
    shares = {
        column.name: found
        for column in seen.features.values()
        if not column.is_number and (found := _unseen(column, train_N, split_N))[0] >= LEAST_UNSEEN
    }
    if not shares:
        return []
    ordered = sorted(shares, key=lambda name: -shares[name][0])
    said = listed([f"{name} {shares[name][0]:.1%} ({shares[name][1]:.1%})" for name in ordered])
    part = seen.share_of("train")
    limit = "" if part == 1 else f"; these are upper bounds, since only {part:.1%} of train was read"
    text = (
        f"share of the rows of {split} whose key was never in train (in parentheses: share of its different keys): "
        f"{said}{limit}. For such rows, a model can use only the other fields; `prepare --minimum` gives all rare "
        "values one key, which is learned"
    )
    return [Finding("unseen_keys", "remark", tuple(ordered), text)]


def _unseen(column: SeenColumn, train_N: Mask, split_N: Mask) -> tuple[float, float]:
    """Fraction of the rows, or of the list values, whose value is not in train, and fraction of the distinct values."""
    codes_V = column.codes_N
    if column.lists:
        ends_N, codes_V = column.lists
        sizes_N = np.diff(ends_N, prepend=0)
        train_N, split_N = np.repeat(train_N, sizes_N), np.repeat(split_N, sizes_N)
    if not split_N.any():
        return 0.0, 0.0
    known_U = np.zeros(int(codes_V.max()) + 1, bool)
    known_U[codes_V[train_N]] = True
    codes = codes_V[split_N]
    return float((~known_U[codes]).mean()), float((~known_U[np.unique(codes)]).mean())
