"""What one worker holds in the memory of a GPU besides the slab, and which event each use of it comes after.

| memory | filled by | on the stream | used again after |
| --- | --- | --- | --- |
| read buffer, index | `dedup` | unique | the last step of the block that had it: an event of `train` |
| read buffer, among several workers | `upload` | up | the same |
| arriving buffer | `upload` | up | the swap or last score of the block that had it: its `write_back` has waited |
| leaving buffer | `train` | train | its copy to the host: the same `write_back` has waited |

That `write_back` is done before this block's `prefetch` begins (`schedule.edges`).
"""

from __future__ import annotations

import numpy as np

from pipeline.data.buffer import ReadBuffer
from pipeline.device.device import Device
from pipeline.preflight.sizes import Sizes
from pipeline.records import DONE, U32, Event, Examples, Layout, Plan, Refusal, Staged, Unique, United
from pipeline.stages.dedup_on_gpu import GpuBuffer, GpuWorkspace, Pending, dedup_on_gpu
from pipeline.stages.upload import upload, upload_part


class OnGpu:
    """Rings are picked by block number, as those on the host."""

    def __init__(self, layout: Layout, sizes: Sizes, device: Device, alone: bool = True) -> None:
        """`alone`: without other workers, `dedup` runs here. Else what its workspace would take is for what others
        ask."""
        self._device, self._layout, self._alone = device, layout, alone
        words = sizes.row_bytes // 4
        self.arriving: U32 = device.empty((sizes.staging_rows, words), np.uint32)
        self.leaving: U32 = device.empty((sizes.outgoing_rows, words), np.uint32)
        self._work: GpuWorkspace | None = None

    def start(self, num_buffers: int, buffer_bytes: int) -> None:
        """Divide the memory of the read ring anew; nothing is under way."""
        self._read_ring: list[GpuBuffer] = []
        self._work = None
        self._device.give_back()
        self._read_ring = [GpuBuffer(buffer_bytes, self._device, self._alone) for _ in range(num_buffers)]
        if self._alone:
            self._work = GpuWorkspace(self._layout, buffer_bytes, self._device)
        self._trained: list[Event] = [DONE] * num_buffers

    def dedup(self, i: int, examples: Examples | Refusal, buffer: ReadBuffer) -> Pending | Refusal:
        assert self._work
        slot = i % len(self._read_ring)
        self._device.unique.after(self._trained[slot])
        return dedup_on_gpu(examples, buffer, self._read_ring[slot], self._work)

    def upload(self, plan: Plan, staged: Staged, arriving_RW: U32) -> Staged:
        return upload(plan, staged, arriving_RW, self._device)

    def upload_part(
        self, i: int, examples: Examples, unique: Unique, united: United, buffer: ReadBuffer
    ) -> tuple[Unique, United, object]:
        slot = i % len(self._read_ring)
        self._device.up.after(self._trained[slot])
        return upload_part(examples, unique, united, buffer, self._read_ring[slot], self._device)

    def trained(self, i: int) -> None:
        """All steps of block i have been given to the stream."""
        self._trained[i % len(self._trained)] = self._device.train.record()
