"""Per-field counts of a block, for monitoring: of its first batch only, which is enough for shares. They are computed
from the records of the stages, before their buffers are reused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.records import I32, I64, U64, Array, Examples, FieldCounts, FieldLayout, OwnedKeys, Plan, Unique
from pipeline.worker.flight import Flight, expect

EVERY = 64
"""Interval, in blocks, between counted blocks."""


def field_counts(flight: Flight, layout: FieldLayout, index_on_host: bool) -> FieldCounts:
    """Count the first batch of a block with staged rows. `index_on_host`: False if `dedup` ran on a GPU."""
    planned, examples = expect(Plan, flight.plan), expect(Examples, flight.examples)
    bags_MB = examples.bags[0]
    # In the order of the values: single-valued fields, multi-hot fields, item lists.
    values = [bags_MB.shape[1] - 1] * len(layout.single_S) + (bags_MB[:, -1] - bags_MB[:, 0]).tolist()
    fields = [*layout.single_S, *layout.multi_M, *layout.candidates_L]
    values_F = np.bincount(fields, values, layout.num_fields).astype(np.int64)
    if index_on_host:
        of_fields = layout.num_fields * (bags_MB.shape[1] - 1)
        ends = of_fields + np.cumsum([0, *values[layout.num_fields :]])
        keys_P, field_P = _of_index(expect(Unique, flight.unique), layout, ends)
    else:
        # The host buffer still contains the keys, since only a `dedup` on the host overwrites them.
        keys_P, field_P = _of_values(examples, values, fields)
    if isinstance(flight.owned_keys, OwnedKeys):
        mine_P = np.isin(keys_P, flight.owned_keys.keys_U)
        keys_P, field_P = keys_P[mine_P], field_P[mine_P]
    new_A, host_A, disk_A = np.split(
        planned.arrival_keys_A, [planned.num_new, planned.num_new + len(planned.arrival_host_slots)]
    )

    def count(field_N: Array) -> tuple[int, ...]:
        return tuple(np.bincount(field_N, minlength=layout.num_fields).tolist())

    host_F, disk_F, new_F = (count(field_P[np.isin(keys_P, keys_A)]) for keys_A in (host_A, disk_A, new_A))
    return FieldCounts(tuple(values_F.tolist()), count(field_P), host_F, disk_F, new_F)


def _of_index(unique: Unique, layout: FieldLayout, ends: I64) -> tuple[U64, I32]:
    """Unique keys of the first batch, and the field of one occurrence of each; for a value of a sequence, the field of
    its candidate. `ends`: end of the occurrences of fields, then of each item list."""
    index = unique.batches[0]
    source_P = index.source_V[index.starts_P[:-1]]
    field_P: I32 = source_P % layout.num_fields
    if layout.num_lists:
        # Number 0 denotes the occurrences of fields.
        list_P = np.searchsorted(ends, source_P, side="right")
        field_P = np.where(list_P > 0, np.array([0, *layout.candidates_L], np.int32)[list_P], field_P)
    return unique.keys_U[index.unique_P], field_P


def _of_values(examples: Examples, values: Sequence[int], fields: Sequence[int]) -> tuple[U64, I32]:
    """Same as `_of_index`, from the keys of all values: each of these fields has this many consecutive values."""
    keys_P, first_P = np.unique(examples.keys_V[: examples.batch_starts[1]], return_index=True)
    field_P: I32 = np.array(fields, np.int32)[np.searchsorted(np.cumsum(values), first_P, side="right")]
    return keys_P, field_P
