"""The device tier and the host tier: one array of rows each."""

from __future__ import annotations

import numpy as np

from pipeline.device.device import RAM, Device
from pipeline.kernels.launch import on_host
from pipeline.kernels.rows import gather_rows, scatter_rows
from pipeline.machine.threads import Threads, Whole
from pipeline.records import F32, I32, I64, U32


class Slab:
    """`num_rows` slots for rows of `num_words`. The only writer of the device slab is `train`; that of the host slab is
    `write_back`."""

    def __init__(
        self,
        num_rows: int,
        num_words: int,
        threads: Threads | Whole | None = None,
        name: str = "device",
        device: Device = RAM,
    ) -> None:
        """`threads`: threads of the only stage that uses the slab, if it may use all of them to move rows. `device`:
        device whose memory holds the slab."""
        self._name = name
        self._threads = threads or Whole()
        self._device = device
        self.words_SW = self._device.empty((num_rows, num_words), np.uint32)

    @property
    def floats_SW(self) -> F32:
        return self.words_SW.view(np.float32)

    def gather(self, at_U: I32 | I64, out_UW: U32) -> None:
        """Copy the rows at `at_U` into `out_UW`. Both arrays are in the slab's memory, or both on the host. If the slab
        is on a GPU and they are on the host, this waits for the GPU."""
        if on_host(out_UW) and not on_host(self.words_SW):
            self._fetch(at_U, out_UW)
        else:
            self._threads.split(len(at_U), lambda a, b: gather_rows(self.words_SW, at_U[a:b], out_UW[a:b]))

    def scatter(self, at_U: I32 | I64, rows_UW: U32) -> None:
        self._threads.split(len(at_U), lambda a, b: scatter_rows(self.words_SW, at_U[a:b], rows_UW[a:b]))

    def _fetch(self, at_U: I32 | I64, out_UW: U32) -> None:
        """Copy rows from the GPU to the host for a commit, which writes them to disk. The pipeline is then drained, so
        this may wait. No ring has room for these rows."""
        stream, device_U = self._device.train, self._device.to_device(at_U)
        rows_UW, pinned_UW = (empty(out_UW.shape, np.uint32) for empty in (self._device.empty, self._device.pinned))
        stream.run(gather_rows, self.words_SW, device_U, rows_UW)
        stream.copy(rows_UW, pinned_UW)
        stream.record().wait()
        out_UW[:] = pinned_UW

    def where(self, at: int) -> str:
        return f"{self._name} slot {at}"

    def close(self) -> None:
        self.words_SW = self._device.empty((0, self.words_SW.shape[1]), np.uint32)
