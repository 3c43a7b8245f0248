"""Counts by field of a block, for those who watch a run: of its first batch alone, which is enough for shares. They are
made of the records of the stages, before their buffers are used again."""

from __future__ import annotations

import numpy as np

from pipeline.records import I32, U64, Array, Examples, FieldCounts, FieldLayout, OwnedKeys, Plan, Unique
from pipeline.worker.flight import Flight, expect

EVERY = 64
"""Blocks from one that is counted to the next."""


def field_counts(flight: Flight, layout: FieldLayout, index_on_host: bool) -> FieldCounts:
    """Count the first batch of a block whose rows are staged. `index_on_host`: False if `dedup` ran on a GPU."""
    planned, examples = expect(Plan, flight.plan), expect(Examples, flight.examples)
    bags_MB = examples.bags[0]
    values_F = np.full(layout.num_fields, bags_MB.shape[1] - 1)
    values_F[list(layout.multi_M)] = bags_MB[:, -1] - bags_MB[:, 0]
    if index_on_host:
        keys_P, field_P = _of_index(expect(Unique, flight.unique), layout)
    else:
        # The host's buffer still has the keys, which a `dedup` there overwrites.
        keys_P, field_P = _of_values(examples, values_F[[*layout.single_S, *layout.multi_M]], layout)
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


def _of_index(unique: Unique, layout: FieldLayout) -> tuple[U64, I32]:
    """Unique keys of the first batch, and the field of an occurrence of each."""
    index = unique.batches[0]
    field_P: I32 = index.source_V[index.starts_P[:-1]] % layout.num_fields
    return unique.keys_U[index.unique_P], field_P


def _of_values(examples: Examples, values_in_order_F: Array, layout: FieldLayout) -> tuple[U64, I32]:
    """The same from the keys of all values, which are in the order of single-valued fields, then multi-hot ones."""
    keys_P, first_P = np.unique(examples.keys_V[: examples.batch_starts[1]], return_index=True)
    fields_F = np.array([*layout.single_S, *layout.multi_M], np.int32)
    field_P: I32 = fields_F[np.searchsorted(np.cumsum(values_in_order_F), first_P, side="right")]
    return keys_P, field_P
