"""Drift: fields whose values have another distribution in the last file than in the first one."""

from __future__ import annotations

import math

import numpy as np

from pipeline.doctor.dependence import CELLS, coarse_codes, count_difference, counted_rows
from pipeline.doctor.finding import Finding, listed
from pipeline.doctor.seen import F64, SeenRows

DRIFT_ERRORS = 6.0
LEAST_DRIFT = 0.01
"""Share of the rows, beyond what chance gives, from which on it is reported."""


def find_drift(seen: SeenRows) -> list[Finding]:
    """Compare the first file of train with the last file of all, by the total variation distance of each field: the
    share of the rows that would have to have another value."""
    rows = counted_rows(seen)
    files_N = seen.file_N[rows]
    first_N, last_N = files_N == 0, files_N == len(seen.files) - 1
    if len(seen.files) < 2 or not first_N.any() or not last_N.any():
        return []
    moved: dict[str, tuple[float, float]] = {}
    for name, column in seen.features.items():
        codes_N = coarse_codes(column, rows)
        first_C, last_C = (np.bincount(codes_N[some_N], minlength=CELLS) for some_N in (first_N, last_N))
        distance, chance = _distance(first_C.astype(float), last_C.astype(float))
        errors = max(count_difference(first_C, last_C), count_difference(last_C, first_C))
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
    """Total variation distance of two counts, and the one that two samples of one distribution have on average."""
    sizes = float(first.sum()), float(last.sum())
    shares = (first + last) / sum(sizes)
    spread = np.sqrt(shares * (1 - shares) * (1 / sizes[0] + 1 / sizes[1]))
    distance = 0.5 * float(np.abs(first / sizes[0] - last / sizes[1]).sum())
    return distance, 0.5 * math.sqrt(2 / math.pi) * float(spread.sum())
