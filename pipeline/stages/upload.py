"""upload: copy a block's arrivals and indices to the GPU. Submitted only if the device has separate memory.

With a single worker, the examples are already on the GPU (see `dedup_on_gpu`). Several workers deduplicate on the host
because keys are exchanged between hosts; `upload` then also copies the worker's examples and all indices of its
batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from pipeline.data.buffer import ReadBuffer
from pipeline.device.device import Device
from pipeline.records import I32, U32, BatchIndex, Examples, OwnedKeys, Plan, RowRequests, Staged, Unique
from pipeline.stages.dedup_on_gpu import GpuBuffer


def upload(plan: Plan, staged: Staged, arriving_RW: U32, device: Device) -> Staged:
    """Start copying the rows to `arriving_RW` on the device, and the plan's arrays that `train` needs."""
    rows_AW = arriving_RW[: len(staged.rows_AW)]
    with device.timed("upload", plan.block.number, device.up):
        device.up.copy(staged.rows_AW, rows_AW)
        indices, source = _copied([plan.rows_U, plan.arrival_slots, plan.victim_slots_E], device)
    rows_U, arrival_slots, victim_slots_E = indices
    plan_there = replace(plan, rows_U=rows_U, arrival_slots=arrival_slots, victim_slots_E=victim_slots_E)
    return Staged(plan.block, rows_AW, plan_there, device.up.record(), source)


def upload_part(
    examples: Examples, unique: Unique, owned_keys: OwnedKeys, buffer: ReadBuffer, on_gpu: GpuBuffer, device: Device
) -> tuple[Unique, OwnedKeys, object]:
    """Start copying the worker's part of a block from `buffer` to `on_gpu`, and the requests for its rows. `upload`
    must follow. Returns both records with their arrays on the device, and the host memory that the copies read."""
    parts = [part for index in unique.batches for part in (index.unique_P, index.starts_P)]
    parts += [part for row_requests in owned_keys.row_requests for part in _indices(row_requests)]
    with device.timed("upload", examples.block.number, device.up):
        device.up.copy(buffer.taken(examples), on_gpu.arena[: examples.nbytes])
        copied, source = _copied(parts, device)
    taken = iter(copied)
    batches = tuple(
        BatchIndex(
            next(taken),
            next(taken),
            # These two are among the examples, in the bytes of the keys.
            on_gpu.mirror(index.inverse_V, buffer),
            on_gpu.mirror(index.source_V, buffer),
            index.parts_W,
        )
        for index in unique.batches
    )
    all_requests = tuple(_with_indices(row_requests, taken) for row_requests in owned_keys.row_requests)
    examples = on_gpu.examples(examples, buffer)
    return replace(unique, batches=batches, examples=examples), replace(owned_keys, row_requests=all_requests), source


def _indices(row_requests: RowRequests) -> tuple[I32, ...]:
    index = row_requests.index
    return (
        index.unique_P,
        index.starts_P,
        index.inverse_V,
        index.source_V,
        row_requests.starts_P,
        row_requests.examples_with_key_P,
    )


def _with_indices(row_requests: RowRequests, taken: Iterator[I32]) -> RowRequests:
    """The same requests with the next arrays of `taken`, in the order of `_indices`."""
    index = BatchIndex(next(taken), next(taken), next(taken), next(taken))
    return RowRequests(index, row_requests.parts_W, next(taken), next(taken))


def _copied(parts: list[I32], device: Device) -> tuple[list[I32], object]:
    """Start copying arrays to the device, all at once. Returns the device arrays and the host memory that the copy
    reads."""
    ends = np.cumsum([0, *map(len, parts)]).tolist()
    indices, there = device.pinned(ends[-1], np.int32), device.empty(ends[-1], np.int32)
    np.concatenate(parts, out=indices)
    device.up.copy(indices, there)
    return [there[a:b] for a, b in pairwise(ends)], indices
