"""Lists of a log that a model reads value by value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.init.choice import Choice, as_option, of_role
from pipeline.init.columns import Look
from pipeline.init.roles import shared_table
from pipeline.prepare.draft import DraftedSequence

ATTRIBUTE = 0.95
"""Least share of the lists that hold their own row's value of the candidate in a list of the candidate's attributes."""


def sequences_of(choices: Sequence[Choice], look: Look) -> list[DraftedSequence]:
    """Sequences of the columns of lists that hold values of a category, unless the user gives their role. Columns whose
    lists have the same length in each row are one sequence. In none is a column with a null within a list, which
    training refuses in a sequence, and one whose lists hold their own row's value: it is an attribute of the candidate.
    """
    of_lengths: dict[bytes, dict[str, str]] = {}
    for choice in of_role(choices, "category"):
        candidate = None if choice.given else shared_table(choice, choices, look)
        values = look.sample.column(choice.column.name)
        if not candidate or any(pc.list_flatten(chunk).null_count for chunk in values.chunks):
            continue
        if share_with_own_value(values, look.sample.column(candidate)) < ATTRIBUTE:
            lengths_N = pc.fill_null(pc.list_value_length(values), 0).to_numpy().astype(np.int64)
            of_lengths.setdefault(lengths_N.tobytes(), {})[choice.column.name] = candidate
    return [
        DraftedSequence(f"history_{number}" if number > 1 else "history", items)
        for number, items in enumerate(of_lengths.values(), 1)
    ]


def share_with_own_value(lists: pa.ChunkedArray, own: pa.ChunkedArray) -> float:
    """Share of the lists with values that hold their row's value of another column."""
    row_V = pc.list_parent_indices(lists)
    holds_V = pc.equal(pc.list_flatten(lists), own.take(row_V).cast(lists.type.value_type, safe=False))
    return len(pc.unique(row_V.filter(holds_V))) / max(1, len(pc.unique(row_V)))


def note_of(sequence: DraftedSequence, choices: Sequence[Choice]) -> str:
    """Description of a sequence, with the options that have its lists pooled instead."""
    options = [as_option(choice.column, "list") for choice in choices if choice.column.name in sequence.items]
    return (
        f"a model can read {', '.join(sequence.items)} value by value, and compare the values with "
        f"{', '.join(sequence.items.values())}; for their mean alone, {' '.join(options)}"
    )
