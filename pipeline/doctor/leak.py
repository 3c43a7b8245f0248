"""Leaks: columns that tell the label by themselves, in all rows or in some."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from pipeline.doctor.finding import Finding
from pipeline.doctor.measures import auc_error, binned, held_out_rates, rank_auc
from pipeline.doctor.seen import Mask, SeenColumn, SeenRows
from pipeline.records import F32, I32

LEAK_AREA = 0.95
"""AUC of a column by itself from which on it is taken for a leak; `pipeline init` leaves such a column out."""
BEATS_BY = 4.0
"""Standard errors by which a column alone must beat the model."""
PURE_ROWS = 100
"""Rows that must have one value and one label, without exception."""
SURPRISE_NATS = 30.0
"""Negative logarithm of the chance that rows of the mean label rate all have one label: 1e-13, less than one in the
number of values that are tried."""
WAY = "if it is known only after the label is, take it out of the workflow; else ask how it was made"


def find_leaks(seen: SeenRows, model_auc: Mapping[str, tuple[float, str]]) -> list[Finding]:
    """Find leaks. `model_auc`: the model's AUC on the test split (or else validation) and what it is, by label; empty
    without a run."""
    found = []
    half_N = np.random.default_rng(0).random(seen.num_rows) < 0.5
    for label, name in enumerate(seen.label_names):
        labels_N = np.ascontiguousarray(seen.labels_NT[:, label])
        if 0 < labels_N.mean() < 1:
            for column in seen.features.values():
                found += list(_of_column(seen, column, labels_N, name, half_N, model_auc.get(name)))
    return found


def _of_column(
    seen: SeenRows, column: SeenColumn, labels_N: F32, label: str, half_N: Mask, model: tuple[float, str] | None
) -> Iterator[Finding]:
    codes_N = column.codes_N if column.raw_N is None or not column.is_number else _bins(column)
    alone = rank_auc(held_out_rates(codes_N, labels_N, half_N), labels_N > 0)
    num_positive = int(labels_N.sum())
    error = auc_error(alone, num_positive, len(labels_N) - num_positive)
    if alone >= LEAK_AREA:
        yield Finding(
            "leak", "fault", (column.name,),
            f"{column.name} alone tells {label}: the label rates of its values have AUC {alone:.4f} on rows that they "
            f"were not counted on; {WAY}",
        )  # fmt: skip
    elif model and alone > model[0] + BEATS_BY * error:
        yield Finding(
            "leak", "fault", (column.name,),
            f"{column.name} alone beats the model on {label}: the label rates of its values have AUC {alone:.4f} "
            f"(+- {error:.4f}), the model {model[0]:.4f} ({model[1]}); {WAY}, or, if it is sound, train better: the "
            "model does not use it",
        )  # fmt: skip
    else:
        yield from _pure(seen, column, codes_N, labels_N, label)


def _bins(column: SeenColumn) -> I32:
    """[N] bins of the known numbers, and one for null."""
    assert column.raw_N is not None
    codes_N = np.zeros(len(column.raw_N), np.int32)
    known_N = ~column.null_N
    if known_N.any():
        codes_N[known_N] = 1 + binned(column.raw_N[known_N])
    return codes_N


def _pure(seen: SeenRows, column: SeenColumn, codes_N: I32, labels_N: F32, label: str) -> Iterator[Finding]:
    """The values all of whose many rows have one label; or all values that are not null, of which each may be rare."""
    said, rows = _told(labels_N, codes_N, lambda code: _shown(seen, column, codes_N, code))
    if not said and column.null_N.any():
        known_N = (~column.null_N).astype(np.int32)
        said, rows = _told(labels_N, known_N, lambda code: "a value that is not null" if code else "null")
    if said:
        where = "; ".join(f"{label} is {one}" for one in said)
        yield Finding(
            "leak", "fault", (column.name,),
            f"{column.name} tells {label} in {rows / len(labels_N):.2%} of the rows: {where}, and "
            f"{float(labels_N.mean()):.4f} on average; {WAY}",
        )  # fmt: skip


def _told(labels_N: F32, codes_N: I32, shown: Callable[[int], str]) -> tuple[list[str], int]:
    """Describe what pure values tell, and count their rows."""
    said, rows = list[str](), 0
    mean = float(labels_N.mean())
    counts_U, positive_U = np.bincount(codes_N), np.bincount(codes_N, labels_N)
    for outcome, chance, hits_U in ((1, mean, positive_U), (0, 1 - mean, counts_U - positive_U)):
        pure_U = (hits_U == counts_U) & (counts_U >= PURE_ROWS) & (-counts_U * np.log(chance) >= SURPRISE_NATS)
        if pure_U.any():
            num_rows = int(counts_U[pure_U].sum())
            said.append(
                f"{outcome} in all {num_rows:,} rows with {shown(int(np.argmax(np.where(pure_U, counts_U, 0))))}"
            )
            rows += num_rows
    return said, rows


def _shown(seen: SeenRows, column: SeenColumn, codes_N: I32, code: int) -> str:
    some_N = np.flatnonzero(codes_N == code)
    first = seen.shown(column, int(column.codes_N[some_N[0]]))
    if column.raw_N is None or not column.is_number or column.null_N[some_N[0]]:
        return f"the value {first} (the first is {seen.place(int(some_N[0]))})"
    raw = column.raw_N[some_N]
    low, high = float(raw.min()), float(raw.max())
    return f"the value {low:g}" if low == high else f"values from {low:g} to {high:g}"
