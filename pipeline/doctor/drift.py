"""Drift: fields whose values have another distribution in the last file than in the first one."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from pipeline.doctor.dependence import Coarse, coarse_flag, counted_rows, dependence
from pipeline.doctor.finding import Finding, listed
from pipeline.doctor.seen import F64, SeenRows

DRIFT_ERRORS = 6.0
LEAST_DRIFT = 0.01
"""Share of the rows, beyond what chance gives, from which on it is reported."""


def find_drift(seen: SeenRows, coarse: Mapping[str, Coarse]) -> list[Finding]:
    """Compare the first file of train with the last file of all, by the total variation distance of each field: the
    share of the rows that would have to have another value."""
    files_N = seen.file_N[counted_rows(seen)]
    first_N, last_N = files_N == 0, files_N == len(seen.files) - 1
    if len(seen.files) < 2 or not first_N.any() or not last_N.any():
        return []
    both_N = first_N | last_N
    flag = coarse_flag(last_N[both_N])
    moved: dict[str, tuple[float, float]] = {}
    for name, column in coarse.items():
        codes = column.codes_N
        size = int(codes.max()) + 1
        first, last = (np.bincount(codes[some_N], minlength=size).astype(float) for some_N in (first_N, last_N))
        distance, chance = _distance(first, last)
        errors = float(dependence(flag, Coarse(codes[both_N], column.tops, column.shares_K)).max())
        if errors >= DRIFT_ERRORS and distance - chance >= LEAST_DRIFT:
            moved[name] = distance, chance
    if not moved:
        return []
    ordered = sorted(moved, key=lambda name: moved[name][1] - moved[name][0])
    said = listed([f"{name} {moved[name][0]:.1%} ({moved[name][1]:.1%})" for name in ordered])
    text = (
        f"from {seen.files[0].path.name} to {seen.files[-1].path.name} the values of these fields have moved; the "
        "share of the rows that would have to have another value (in parentheses: what chance gives): "
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
