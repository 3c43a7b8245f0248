"""Protocol of a tier (storage of rows addressed by number), conversion of stored rows to those on which kernels
compute, and the tier in memory."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pipeline.device.device import RAM, Device
from pipeline.kernels.init_rows import init_rows
from pipeline.kernels.launch import on_host
from pipeline.kernels.narrow_rows import narrow_rows, widen_rows
from pipeline.kernels.rows import gather_rows, scatter_rows
from pipeline.machine.threads import Threads, Whole
from pipeline.records import F32, I32, I64, U32, U64
from pipeline.storage.files import Damaged
from pipeline.storage.layout import RowLayout, row_keys

FIRST_ROWS_AT_ONCE = 1024
"""Maximum number of wide rows in memory while initial rows are made, since no cap covers them."""


def widened(layout: RowLayout, rows_UW: U32) -> U32:
    """[U, X] the rows [U, W] with all values as float32; the same array if they are stored that way."""
    if not layout.formats:
        return rows_UW
    wide_UX = np.zeros((len(rows_UW), layout.wide.num_words), np.uint32)
    widen_rows(rows_UW, rows_UW[:0], np.arange(len(rows_UW), dtype=np.int32), layout.widening(), wide_UX)
    return wide_UX


def write_first_rows(layout: RowLayout, seed: int, init_std: float, keys_U: U64, out_UW: U32) -> None:
    """Write the initial rows [U, W] of keys: random embedding weights, and zeros in all other words."""
    if not layout.formats:
        init_rows(keys_U, np.uint64(seed), init_std, layout.embedding_dim, out_UW)
        return
    out_UW[:] = 0
    parts_N4, at_T = layout.widening(), np.arange(FIRST_ROWS_AT_ONCE, dtype=np.int32)
    wide_TX = np.empty((min(len(keys_U), FIRST_ROWS_AT_ONCE), layout.wide.num_words), np.uint32)
    for first in range(0, len(keys_U), FIRST_ROWS_AT_ONCE):
        keys_T, out_TW = keys_U[first : first + FIRST_ROWS_AT_ONCE], out_UW[first : first + FIRST_ROWS_AT_ONCE]
        init_rows(keys_T, np.uint64(seed), init_std, layout.embedding_dim, wide_TX[: len(keys_T)])
        narrow_rows(wide_TX, at_T[: len(keys_T)], parts_N4, seed, 0, out_TW)


class Tier(Protocol):
    """A tier moves rows and decides nothing. The caller owns the buffers. Numbers within one call are distinct."""

    def gather(self, at_U: I32 | I64, out_UW: U32) -> None:
        """Copy the rows at `at_U` into `out_UW`, in that order."""

    def scatter(self, at_U: I32 | I64, rows_UW: U32) -> None:
        """Store rows at `at_U`. The disk tier appends: its `at_U` covers chunks one by one, each from its first row."""

    def where(self, at: int) -> str:
        """Describe a row's location in words, for error messages."""

    def close(self) -> None:
        """Release the tier's resources. May be called twice."""


class KeyedTier(Tier, Protocol):
    """The disk tier, which also stores the keys of its rows separately."""

    chunk_rows: int

    def keys(self, chunk: int) -> U64:
        """[R] key of each row of a chunk; RESERVED for padding."""


def check_keys(tier: Tier, at_U: I32 | I64, rows_UW: U32, keys_U: U64) -> None:
    """Raise Damaged if a row that was read does not have the expected key."""
    got_U = row_keys(rows_UW)
    wrong = np.flatnonzero(got_U != keys_U)
    if len(wrong):
        first = int(wrong[0])
        raise Damaged(
            f"{len(wrong)} of {len(keys_U)} rows are not the requested ones; the first: {tier.where(int(at_U[first]))} "
            f"holds key {got_U[first]:#018x} instead of {keys_U[first]:#018x}. None of them was used; "
            "`pipeline verify RUN` says what else is wrong"
        )


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
