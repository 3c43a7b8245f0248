"""dedup on a GPU: copies the block's examples to the GPU unchanged and indexes them there.

`dedup_on_gpu` does not wait. `plan` needs the keys and their number, so `Pending.get` waits for them. After that, the
GPU no longer reads the block's host buffer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from pipeline.data.buffer import ReadBuffer
from pipeline.device.device import Device
from pipeline.kernels.dedup_cuda import index_batch_cuda, unique_keys_cuda
from pipeline.records import I32, U64, BatchIndex, Block, Event, Examples, FieldLayout, Refusal, Unique

BYTES_PER_KEY = 16
"""Bytes of a buffer of the read ring per unique key that dedup's table has room for."""


class GpuBuffer:
    """GPU memory for a block: its examples, laid out as in the read ring, its unique keys, and its index."""

    def __init__(self, limit_bytes: int, device: Device, indexed: bool = True) -> None:
        """`indexed`: True if the block is deduplicated on the GPU. Otherwise keys and index need no memory."""
        self.arena = device.empty(limit_bytes, np.uint8)
        limit_bytes = limit_bytes if indexed else 0
        # Room for half as many unique keys as there may be values. The index needs P numbers for `unique_P` and P + 1
        # for `starts_P` per batch. The extra number fits, since each batch has eight bytes of the arena in addition to
        # its values.
        self.keys_U = device.empty(limit_of(limit_bytes), np.uint64)
        self.index = device.empty(2 * (limit_bytes // 8), np.int32)

    def examples(self, examples: Examples, buffer: ReadBuffer) -> Examples:
        """Return the same examples, with arrays in this buffer."""

        def mirrored(array: Any) -> Any:
            return self.mirror(array, buffer)

        return replace(
            examples,
            labels_NT=mirrored(examples.labels_NT),
            weights_N=None if examples.weights_N is None else mirrored(examples.weights_N),
            numbers_NX=mirrored(examples.numbers_NX),
            keys_V=mirrored(examples.keys_V),
            bags=tuple(map(mirrored, examples.bags)),
            list_numbers=tuple(tuple(map(mirrored, of_batch)) for of_batch in examples.list_numbers),
        )

    def mirror(self, array: Any, buffer: ReadBuffer) -> Any:
        """Return the array in this buffer that corresponds to `array` in the host's `buffer`."""
        begin = buffer.at(array)
        return self.arena[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)


class GpuWorkspace:
    """GPU memory for the intermediate results of deduplicating a block."""

    def __init__(self, layout: FieldLayout, limit_bytes: int, device: Device) -> None:
        self.device = device
        limit = limit_of(limit_bytes)
        slots = 1 << (2 * limit - 1).bit_length()
        self.table_C, self.first_C = device.empty(slots, np.uint64), device.empty(slots, np.int32)
        self.position_V = device.empty(limit_bytes // 8, np.int32)
        self.first_U = device.empty(limit, np.int32)
        self.single_S, self.multi_M = (
            device.to_device(np.array(fields, np.int32)) for fields in (layout.single_S, layout.multi_M)
        )


def limit_of(limit_bytes: int) -> int:
    """Maximum number of unique keys of a block whose buffer of the read ring has `limit_bytes` bytes."""
    return max(1, limit_bytes // BYTES_PER_KEY)


@dataclass(frozen=True, slots=True)
class Pending:
    """A block that a GPU is deduplicating."""

    block: Block
    examples: Examples
    starts: tuple[int, ...]
    """[K + 1] start of each batch's values."""
    there: GpuBuffer
    device: Device
    counts: I32
    """[1 + K] number of unique keys of the block and of each batch, in host memory; valid after the event `done`."""
    counts_there: I32
    """The same counts in GPU memory. The reference keeps them allocated until they are copied."""
    done: Event

    def get(self) -> Unique | Refusal:
        """Wait for the GPU, and copy the unique keys to the host. Refuses a block with more unique keys than fit."""
        self.done.wait()
        num_unique, limit = int(self.counts[0]), len(self.there.keys_U)
        if num_unique > limit:
            return Refusal(
                self.block,
                "window",
                f"block {self.block.number} ({self.block.num_batches} batches): more unique keys than the "
                f"{limit:,} that dedup's table on the GPU has room for",
                BYTES_PER_KEY * num_unique,
                "read_ring_bytes",
            )
        keys_U: U64 = self.device.pinned(num_unique, np.uint64)
        # Not on the stream `unique`, where later blocks wait for training.
        self.device.keys.copy(self.there.keys_U[:num_unique], keys_U)
        self.device.keys.record().wait()
        batches = tuple(
            BatchIndex(unique_P[:count], starts_P[: count + 1], inverse_V, source_V, lists_LB=lists_LB)
            for count, lists_LB, (unique_P, starts_P, inverse_V, source_V) in zip(
                self.counts[1:].tolist(), self._lists(), _slots(self.examples, self.starts, self.there), strict=True
            )
        )
        return Unique(self.block, keys_U, batches, self.examples)

    def _lists(self) -> list[I32 | None]:
        """Starts of the item lists of each batch."""
        lists = self.examples.lists or [()] * len(self.examples.bags)
        return [
            bags_MB[len(bags_MB) - len(firsts) + 1 :] if firsts else None
            for bags_MB, firsts in zip(self.examples.bags, lists, strict=True)
        ]


def dedup_on_gpu(
    examples: Examples | Refusal, buffer: ReadBuffer, there: GpuBuffer, work: GpuWorkspace
) -> Pending | Refusal:
    """Start copying and indexing a block, which is in `buffer`, on the stream `unique`."""
    if isinstance(examples, Refusal):
        return examples
    device, starts = work.device, tuple(examples.batch_starts.tolist())
    mirrored = there.examples(examples, buffer)
    counts_there, counts = (empty(len(starts), np.int32) for empty in (device.empty, device.pinned))
    with device.timed("dedup", examples.block.number, device.unique):
        device.unique.copy(buffer.taken(examples), there.arena[: examples.nbytes])
        device.unique.run(_index, mirrored, starts, there, work, counts_there)
        device.unique.copy(counts_there, counts)
    done = device.unique.record()
    return Pending(examples.block, mirrored, starts, there, device, counts, counts_there, done)


def _index(examples: Examples, starts: tuple[int, ...], there: GpuBuffer, work: GpuWorkspace, counts: I32) -> None:
    position_V = work.position_V[: starts[-1]]
    unique_keys_cuda(
        examples.keys_V, work.table_C, work.first_C, position_V, len(there.keys_U), there.keys_U, counts[:1]
    )
    slots = _slots(examples, starts, there)
    for batch, (begin, end) in enumerate(pairwise(starts)):
        index_batch_cuda(
            position_V[begin:end], examples.bags[batch], work.single_S, work.multi_M, work.first_U,
            *slots[batch], counts[batch + 1 : batch + 2],
        )  # fmt: skip


def _slots(examples: Examples, starts: tuple[int, ...], there: GpuBuffer) -> list[tuple[I32, I32, I32, I32]]:
    """Memory of each batch's index: unique_P and starts_P in `there.index`, inverse_V and source_V in the bytes of the
    keys."""
    words, total = examples.keys_V.view(np.int32), starts[-1]
    return [
        (
            there.index[a:b],
            there.index[total + a + batch : total + b + batch + 1],
            words[2 * a : a + b],
            words[a + b : 2 * b],
        )
        for batch, (a, b) in enumerate(pairwise(starts))
    ]
