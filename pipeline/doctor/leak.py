"""Leaks: columns that reveal the label, in all rows or for some values, or that count it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pipeline.doctor.finding import Finding, listed
from pipeline.doctor.measures import auc_error, binned_known, held_out_rates, rank_auc, total_variation
from pipeline.doctor.seen import Mask, SeenColumn, SeenRows
from pipeline.records import F32, I32

LEAK_AREA = 0.95
"""Minimum AUC of a single column to count as a leak."""
BEATS_BY = 4.0
"""Minimum number of standard errors by which a single column must beat the model."""
PURE_ROWS = 100
"""Minimum number of rows with one value that all have the same label. For the rarer label, this is a fault: certainty
of the other label is often sound (children, for example, earn nothing)."""
COUNTED, CLOSER = 0.1, 4.0
"""Minimum total variation distance between a column's values with the label and those without, and the factor by which
it must shrink after 1 is subtracted from the former: the values then count the label."""
SURPRISE_NATS = 30.0
"""Negative logarithm of the probability that rows with the mean label rate all have one label: 1e-13, less than 1 /
(number of values tried)."""
WAY = "if it is known only after the label, remove it from the workflow; else find out how it was computed"


def find_leaks(seen: SeenRows, model_auc: Mapping[str, tuple[float, str]]) -> list[Finding]:
    """Find leaks. `model_auc`: by label, the model's AUC on the test split (otherwise validation) and the name of the
    split; empty without a run."""
    found = []
    half_N = np.random.default_rng(0).random(seen.num_rows) < 0.5
    for label, name in enumerate(seen.label_names):
        labels_N = np.ascontiguousarray(seen.labels_NT[:, label])
        if 0 < labels_N.mean() < 1:
            common = float(labels_N.mean() >= 0.5)
            certain: dict[str, str] = {}
            for column in seen.features.values():
                if fault := _of_column(seen, column, labels_N, name, half_N, model_auc.get(name)):
                    found.append(fault)
                elif pure := _pure(seen, column, labels_N == common):
                    certain[column.name] = pure[0]
            found += [_remark(name, certain, labels_N == common, common)] if certain else []
    return found


def _remark(label: str, certain: Mapping[str, str], common_N: Mask, common: float) -> Finding:
    said = listed([f"{name} in {what}" for name, what in certain.items()], "other columns")
    text = (
        f"{label} is {common:g} in {float(common_N.mean()):.2%} of the rows, and without exception with some values: "
        f"{said}. That is sound if these rows can have no other, and a leak if the value is known only afterwards"
    )
    return Finding("leak", "remark", tuple(certain), text)


def _of_column(
    seen: SeenRows, column: SeenColumn, labels_N: F32, label: str, half_N: Mask, model: tuple[float, str] | None
) -> Finding | None:
    alone = rank_auc(held_out_rates(_codes(column), labels_N, half_N), labels_N > 0)
    num_positive = int(labels_N.sum())
    error = auc_error(alone, num_positive, len(labels_N) - num_positive)
    rare = float(labels_N.mean() < 0.5)
    text = ""
    if alone >= LEAK_AREA:
        text = (
            f"{column.name} alone predicts {label}: the label rates of its values have AUC {alone:.4f} on "
            f"held-out rows; {WAY}"
        )
    elif model and alone > model[0] + BEATS_BY * error:
        text = (
            f"{column.name} alone beats the model on {label}: the label rates of its values have AUC {alone:.4f} "
            f"(+- {error:.4f}), the model {model[0]:.4f} ({model[1]}); {WAY}, or, if it is sound, train better: the "
            "model does not use it"
        )
    elif pure := _pure(seen, column, labels_N == rare):
        text = (
            f"{column.name} reveals {label} in {pure[1] / len(labels_N):.2%} of the rows: it is {rare:g} in {pure[0]}, "
            f"and in {float((labels_N == rare).mean()):.2%} of all; {WAY}"
        )
    elif counted := _counted(column, labels_N):
        text = f"{column.name} seems to count {label} of the row itself: {counted}. Count only what came before the row"
    return Finding("leak", "fault", (column.name,), text) if text else None


def _counted(column: SeenColumn, labels_N: F32) -> str:
    """Evidence that whole numbers follow the distribution of the other rows, plus 1 where the label is 1; empty if
    there is none. A sound count has a distribution of another shape where the label is 1, not the same one shifted by
    1."""
    if column.raw_N is None:
        return ""
    known_N = ~column.null_N
    values, positive_N = column.raw_N[known_N], labels_N[known_N] > 0
    if not len(values) or (values != np.floor(values)).any() or not 0 < positive_N.mean() < 1:
        return ""
    low, lowest = float(values[positive_N].min()), float(values[~positive_N].min())
    if low != lowest + 1 or len(np.unique(values[~positive_N])) < 3:
        return ""
    apart = total_variation(values[positive_N], values[~positive_N])
    moved = total_variation(values[positive_N] - 1, values[~positive_N])
    if apart < COUNTED or apart < CLOSER * moved:
        return ""
    return (
        f"where it is 1, no value is less than {low:g}, and elsewhere {lowest:g} is in "
        f"{float((values[~positive_N] == lowest).mean()):.2%} of the rows; with 1 taken off, the values with the label "
        f"are distributed as the others (total variation {moved:.3f}, else {apart:.3f})"
    )


def _codes(column: SeenColumn) -> I32:
    """[N] codes of the values; for numbers, bins of the known ones, and one for null."""
    if column.raw_N is None or not column.is_number:
        return column.codes_N
    return binned_known(column.raw_N, ~column.null_N)


def _pure(seen: SeenRows, column: SeenColumn, outcome_N: Mask) -> tuple[str, int] | None:
    """Describe the values whose (many) rows all have the outcome, and count these rows; or do so for all values except
    the most frequent one, each of which may be rare; None if there are none."""
    codes_N = _codes(column)
    top = int(np.bincount(column.codes_N).argmax())
    chance = float(outcome_N.mean())
    for units_N in (codes_N, (column.codes_N != top).astype(np.int32)):
        counts_U, hits_U = np.bincount(units_N), np.bincount(units_N, outcome_N)
        pure_U = (hits_U == counts_U) & (counts_U >= PURE_ROWS) & (-counts_U * np.log(chance) >= SURPRISE_NATS)
        if pure_U.any():
            largest = int(np.argmax(np.where(pure_U, counts_U, 0)))
            value = _shown(seen, column, codes_N, largest)
            if units_N is not codes_N:
                value = f"{'any value but ' * largest}{seen.shown(column, top)}"
            num_rows = int(counts_U[pure_U].sum())
            others = int(pure_U.sum()) - 1
            return f"all {num_rows:,} rows with {value}" + (f" or {others} others" if others else ""), num_rows
    return None


def _shown(seen: SeenRows, column: SeenColumn, codes_N: I32, code: int) -> str:
    some_N = np.flatnonzero(codes_N == code)
    first = seen.shown(column, int(column.codes_N[some_N[0]]))
    if column.raw_N is None or not column.is_number or column.null_N[some_N[0]]:
        return f"the value {first} (the first is {seen.place(int(some_N[0]))})"
    raw = column.raw_N[some_N]
    low, high = float(raw.min()), float(raw.max())
    return f"the value {low:g}" if low == high else f"values from {low:g} to {high:g}"
