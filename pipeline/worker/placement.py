"""The placement of deduplication and training: on the host, or on a GPU with copies of the buffers.

| memory of a GPU outside the slab | filled by | on the stream | reused after |
| --- | --- | --- | --- |
| read buffer, index | `dedup` | unique | the last step of the last block that used it: an event of `train` |
| read buffer, several workers | `upload` | up | same as above |
| arriving buffer | `upload` | up | the swap or last score of that block, for which its `write_back` waits |
| leaving buffer | `train` | train | its copy to the host, for which the same `write_back` waits |

That `write_back` ends before the `prefetch` of the block that reuses the buffer starts (`schedule.edges`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeline.data.buffer import ReadBuffer
from pipeline.device.device import Device
from pipeline.preflight.sizes import Sizes
from pipeline.records import DONE, U32, Event, Examples, FieldLayout, OwnedKeys, Plan, Refusal, Staged, Unique
from pipeline.stages.dedup import Workspace, dedup
from pipeline.stages.dedup_on_gpu import GpuBuffer, GpuWorkspace, Pending, dedup_on_gpu
from pipeline.stages.upload import upload, upload_part
from pipeline.worker.flight import Flight, expect


class OnHost:
    idle = frozenset({"upload"})
    """Stages with nothing to do."""
    # Metrics are computed on the thread of `write_back`, while `train` continues with the next block.
    reported_by = "write_back", 0
    """(stage, lag): the result of block i is available after this stage of block i + lag."""

    def __init__(self, outgoing_RW: U32, work: Workspace) -> None:
        self.leaving, self._work = outgoing_RW, work
        """`leaving`: ring of buffers into which `train` copies victims from the slab."""

    def start(self, num_buffers: int, buffer_bytes: int) -> None:
        """Allocate memory for `num_buffers` read buffers. Nothing may be in flight. Raises MemoryError if it does not
        fit."""

    def dedup(self, i: int, examples: Examples | Refusal, buffer: ReadBuffer) -> Unique | Pending | Refusal:
        """Find the working set of block i. Its examples are in `buffer`."""
        return dedup(examples, self._work)

    def upload(self, i: int, flight: Flight, buffer: ReadBuffer, slots: slice) -> None:
        """Copy the arrivals of the block to rows `slots` of the arriving ring, and any other data that `train`
        needs."""

    def trained(self, i: int) -> None:
        """Called after all steps of block i were submitted to the device."""

    def close(self) -> None:
        self.leaving = self.leaving[:0].copy()


class OnGpu:
    """Deduplicates and trains on the GPU. Attributes and methods as in `OnHost`. Rings are indexed by block number, as
    on the host."""

    idle: frozenset[str] = frozenset()
    # `write_back` of block i + 1 waits for that block's swap, which its stream runs after all steps of block i.
    reported_by = "write_back", 1

    def __init__(self, layout: FieldLayout, sizes: Sizes, device: Device, work: Workspace | None = None) -> None:
        """`work`: given if there are several workers. Their `dedup` runs on the host, and the GPU memory of `dedup`
        then holds the uploaded indices."""
        self._device, self._layout, self._on_host = device, layout, work
        words = sizes.row_bytes // 4
        self._arriving: U32 = device.empty((sizes.staging_rows, words), np.uint32)
        self.leaving: U32 = device.empty((sizes.outgoing_rows, words), np.uint32)
        self._work: GpuWorkspace | None = None
        self._read_ring: list[GpuBuffer] = []

    def start(self, num_buffers: int, buffer_bytes: int) -> None:
        self._read_ring = []
        self._work = None
        self._device.release_memory()
        indexed = self._on_host is None
        self._read_ring = [GpuBuffer(buffer_bytes, self._device, indexed) for _ in range(num_buffers)]
        if indexed:
            self._work = GpuWorkspace(self._layout, buffer_bytes, self._device)
        self._trained: list[Event] = [DONE] * num_buffers

    def dedup(self, i: int, examples: Examples | Refusal, buffer: ReadBuffer) -> Unique | Pending | Refusal:
        if self._on_host:
            return dedup(examples, self._on_host)
        assert self._work
        slot = i % len(self._read_ring)
        self._device.unique.after(self._trained[slot])
        return dedup_on_gpu(examples, buffer, self._read_ring[slot], self._work)

    def upload(self, i: int, flight: Flight, buffer: ReadBuffer, slots: slice) -> None:
        source: object = None
        if self._on_host:
            slot = i % len(self._read_ring)
            self._device.up.after(self._trained[slot])
            flight.unique, flight.owned_keys, source = upload_part(
                expect(Examples, flight.examples), expect(Unique, flight.unique), expect(OwnedKeys, flight.owned_keys),
                buffer, self._read_ring[slot], self._device,
            )  # fmt: skip
        staged = upload(expect(Plan, flight.plan), expect(Staged, flight.staged), self._arriving[slots], self._device)
        flight.staged = replace(staged, source=(staged.source, source))

    def trained(self, i: int) -> None:
        self._trained[i % len(self._trained)] = self._device.train.record()

    def close(self) -> None:
        self._read_ring, self._work = [], None
        self._arriving = self.leaving = np.empty((0, 0), np.uint32)
