"""Importance of each field: the drop in AUC if its values are shuffled among the rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipeline.doctor.finding import Finding, listed
from pipeline.doctor.seen import JudgedRows
from pipeline.workflow import Sequence as ListsOfExamples

if TYPE_CHECKING:
    from pipeline.serving.opened import OpenRun

JUDGED_PARTS = 10
"""Number of parts of the rows, evaluated separately: the spread of their differences gives the error."""
CLEAR = 3.0
"""Minimum number of standard errors for a difference to count as clear: with ten parts, one in 130 fields without
effect exceeds it."""


def find_importance(judged: JudgedRows, run: OpenRun, sequences: Sequence[ListsOfExamples] = ()) -> list[Finding]:
    """Permute each field in turn within each part, and evaluate: each row is scored fields + 1 times (Breiman, Random
    Forests, Machine Learning 45, 2001, permutes likewise). A sequence counts as one field: all its lists of an example
    move to the same other row."""
    columns: dict[str, Sequence[str]] = {name: [name] for name in judged.features}
    columns |= {f"sequence {sequence.name}": sequence.columns for sequence in sequences}
    parts = [part for part in np.array_split(np.arange(judged.num_rows), JUDGED_PARTS) if judged.has_both_labels(part)]
    if len(parts) < 2:
        return []
    rng = np.random.default_rng(0)
    tables = [judged.table.take(part) for part in parts]
    whole = [run.evaluate(table)["auc"] for table in tables]
    falls: dict[str, tuple[float, float]] = {}
    for name in columns:
        differences = [
            auc - run.evaluate(_permuted(table, columns[name], rng))["auc"]
            for auc, table in zip(whole, tables, strict=True)
        ]
        falls[name] = float(np.mean(differences)), float(np.std(differences, ddof=1)) / math.sqrt(len(differences))
    ordered = sorted(falls, key=lambda name: -falls[name][0])
    clear = [name for name in ordered if falls[name][0] > CLEAR * falls[name][1]]
    rest = [name for name in ordered if name not in clear]
    said = listed([f"{name} {falls[name][0]:.4f} +- {falls[name][1]:.4f}" for name in clear])
    text = (
        f"the AUC, {np.mean(whole):.4f} on {sum(map(len, parts)):,} rows of {judged.split}, falls by this much if "
        f"the values of a field are shuffled among the rows: {said or 'no clear effect'} "
        f"({len(parts)} parts, each with {len(falls) + 1} evaluations)"
    )
    if rest:
        text += f".\nNo clear effect (too few rows, or a useless field): {', '.join(rest)}"
    return [Finding("importance", "remark", tuple(ordered), text)]


def _permuted(table: pa.Table, names: Sequence[str], rng: np.random.Generator) -> pa.Table:
    order_N = rng.permutation(table.num_rows)
    for at in map(table.schema.get_field_index, names):
        table = table.set_column(at, table.schema.field(at), table.column(at).take(order_N))
    return table
