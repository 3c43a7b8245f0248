"""Drift: fields whose distribution of values differs between the first and the last file.

C cells: frequent values, and groups of the other values
"""

from __future__ import annotations

import math

import numpy as np

from pipeline.doctor.finding import Finding, listed
from pipeline.doctor.seen import F64, SeenColumn, SeenRows
from pipeline.records import I32, I64

FREQUENT_VALUES, GROUPS = 31, 32
"""Number of values counted individually, and number of groups for all other values of a column."""
CELLS = FREQUENT_VALUES + GROUPS
DRIFT_ERRORS = 6.0
LEAST_DRIFT = 0.01
"""Minimum fraction of rows, beyond that expected by chance, to report."""


def find_drift(seen: SeenRows) -> list[Finding]:
    """Compare the first file of train with the very last file, by the total variation distance of each field: the
    fraction of rows whose value would have to change."""
    rows = seen.counted_rows()
    files_N = seen.file_N[rows]
    first_N, last_N = files_N == 0, files_N == len(seen.files) - 1
    if len(seen.files) < 2 or not first_N.any() or not last_N.any():
        return []
    moved: dict[str, tuple[float, float]] = {}
    for name, column in seen.features.items():
        codes_N = _coarse_codes(column, rows)
        first_C, last_C = (np.bincount(codes_N[some_N], minlength=CELLS) for some_N in (first_N, last_N))
        distance, chance = _distance(first_C.astype(float), last_C.astype(float))
        errors = max(_count_difference(first_C, last_C), _count_difference(last_C, first_C))
        if errors >= DRIFT_ERRORS and distance - chance >= LEAST_DRIFT:
            moved[name] = distance, chance
    if not moved:
        return []
    ordered = sorted(moved, key=lambda name: moved[name][1] - moved[name][0])
    said = listed([f"{name} {moved[name][0]:.1%} ({moved[name][1]:.1%})" for name in ordered])
    text = (
        f"the values of these fields have changed from {seen.files[0].path.name} to {seen.files[-1].path.name}; share "
        "of the rows whose value would have to change (in parentheses: by chance alone): "
        f"{said}. Where values come and go, train on the latest files, and retrain often"
    )
    return [Finding("drift", "remark", tuple(ordered), text)]


def _distance(first: F64, last: F64) -> tuple[float, float]:
    """Total variation distance of two counts, and its mean for two samples of the same distribution."""
    sizes = float(first.sum()), float(last.sum())
    shares = (first + last) / sum(sizes)
    spread = np.sqrt(shares * (1 - shares) * (1 / sizes[0] + 1 / sizes[1]))
    distance = 0.5 * float(np.abs(first / sizes[0] - last / sizes[1]).sum())
    return distance, 0.5 * math.sqrt(2 / math.pi) * float(spread.sum())


def _coarse_codes(column: SeenColumn, rows: I64) -> I32:
    """[N] cell of each of these rows: one of the column's frequent values, or a group of other values."""
    counts_U = np.bincount(column.codes_N, minlength=column.num_values)
    tops = np.argsort(-counts_U, kind="stable")[:FREQUENT_VALUES]
    group_U = FREQUENT_VALUES + (column.keys_U >> np.uint64(59)).astype(np.int32)
    if column.raw_N is not None and column.is_number:
        # Group numbers by size instead of hash, with about the same number of rows per group.
        order_U = np.argsort(column.raw_N[column.firsts_U])
        ends_U = np.cumsum(counts_U[order_U])
        group_U[order_U] = FREQUENT_VALUES + ((ends_U - 1) * GROUPS // ends_U[-1]).astype(np.int32)
    group_U[tops] = np.arange(len(tops))
    codes_N: I32 = group_U[column.codes_N[rows]]
    return codes_N


def _count_difference(some_C: I64, others_C: I64) -> float:
    """Standard deviations by which two counts of the same cells differ beyond chance (chi-square); 0 if there is
    nothing to compare."""
    num_some, total = int(some_C.sum()), int(some_C.sum() + others_C.sum())
    if not 0 < num_some < total:
        return 0.0
    share = num_some / total
    totals_C = (some_C + others_C).astype(np.float64)
    # Cells with fewer than one expected row would make the statistic erratic, so they are merged.
    large = share * totals_C >= 1
    observed = np.append(some_C[large], some_C[~large].sum())
    expected = share * np.append(totals_C[large], totals_C[~large].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    chi_square, freedom = float((np.square(observed - expected) / expected).sum()) / (1 - share), len(expected) - 1
    return (chi_square - freedom) / math.sqrt(2 * freedom) if freedom > 0 else 0.0
