"""Calibration by slice: the field values for which predictions and labels differ most."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipeline.doctor.finding import Finding
from pipeline.doctor.measures import binned
from pipeline.doctor.seen import F64, JudgedRows, Mask, SeenColumn, SeenRows

if TYPE_CHECKING:
    from pipeline.serving.opened import OpenRun

SLICE_ERRORS = 5.0
"""Minimum number of standard errors for a slice to be off: by chance, one of ten thousand slices exceeds it in one of
200 runs."""
LEAST_ROWS, LEAST_LABELS = 100, 10.0
SHOWN_SLICES = 10
NUMBER_BINS = 10


class Slice(NamedTuple):
    """Rows with one value of a field."""

    name: str
    what: str
    num_rows: int
    predicted: float
    labels: float
    errors: float


def find_calibration(seen: SeenRows, judged: JudgedRows, run: OpenRun) -> list[Finding]:
    """Compare predictions with labels: over all rows and then, with odds scaled so that these agree, for each slice
    with enough rows and labels."""
    scores = run.predict(judged.table).column(f"{judged.label}.probability")
    predicted_N = np.asarray(scores, np.float64)
    predicted, observed = float(predicted_N.sum()), float(judged.labels_N.sum())
    errors = abs(observed - predicted) / _spread(predicted_N)
    shifted_N = _shifted(predicted_N, observed)
    slices = [found for column in seen.features.values() for found in _slices(seen, column, judged, shifted_N)]
    off = sorted((one for one in slices if one.errors >= SLICE_ERRORS), key=lambda one: -one.errors)
    lines = []
    if errors >= SLICE_ERRORS:
        lines.append(
            f"on {judged.num_rows:,} rows of {judged.split} the mean prediction is {predicted / judged.num_rows:.4f}, "
            f"the mean label {observed / judged.num_rows:.4f} ({errors:.0f} standard errors): the label rate of "
            f"{judged.split} differs, or the model overfits; scale the predictions if probabilities matter"
        )
    if off:
        said = "; ".join(
            f"{one.name}={one.what}: {one.predicted / one.num_rows:.4f} predicted, {one.labels / one.num_rows:.4f} "
            f"observed ({one.num_rows:,} rows, {one.errors:.0f} errors)"
            for one in off[:SHOWN_SLICES]
        )
        lines.append(
            f"{len(off)} of {len(slices)} slices are off, after odds were scaled to agree on all rows: {said}. The "
            "model lacks what distinguishes these values"
        )
    columns = tuple(dict.fromkeys(one.name for one in off))
    return [Finding("calibration", "remark", columns, "\n".join(lines))] if lines else []


def _spread(predicted_N: F64) -> float:
    """Standard deviation of the number of labels if the predictions are right, at least 1: where predictions are almost
    certain, a single label is not an error of many deviations."""
    return math.sqrt(float((predicted_N * (1 - predicted_N)).sum()) + 1)


def _shifted(predicted_N: F64, observed: float) -> F64:
    """Predictions with odds scaled by one factor, so that their sum equals the observed one."""
    if not 0 < observed < len(predicted_N):
        return predicted_N
    low, high = 1e-6, 1e6
    for _ in range(60):
        factor = math.sqrt(low * high)
        shifted_N = predicted_N * factor / (1 + predicted_N * (factor - 1))
        low, high = (factor, high) if float(shifted_N.sum()) < observed else (low, factor)
    return shifted_N


def _slices(seen: SeenRows, column: SeenColumn, judged: JudgedRows, predicted_N: F64) -> Iterator[Slice]:
    codes_N = column.codes_N[judged.rows]
    if column.is_number and column.input_N is not None:
        codes_N = binned(column.input_N[judged.rows], NUMBER_BINS)
    counts = np.bincount(codes_N)
    sums, hits = np.bincount(codes_N, predicted_N), np.bincount(codes_N, judged.labels_N)
    spread = np.sqrt(np.bincount(codes_N, predicted_N * (1 - predicted_N)) + 1)
    for code in np.flatnonzero((counts >= LEAST_ROWS) & (np.maximum(sums, hits) >= LEAST_LABELS)):
        what = seen.shown(column, int(code)) if not column.is_number else _reach(column, judged, codes_N == code)
        errors = abs(float(hits[code] - sums[code])) / float(spread[code])
        yield Slice(column.name, what, int(counts[code]), float(sums[code]), float(hits[code]), errors)


def _reach(column: SeenColumn, judged: JudgedRows, some_N: Mask) -> str:
    assert column.raw_N is not None
    raw = column.raw_N[judged.rows][some_N]
    if np.isnan(raw).all():
        return "null"
    low, high = float(np.nanmin(raw)), float(np.nanmax(raw))
    return f"{low:g}" if low == high else f"{low:g}..{high:g}"
