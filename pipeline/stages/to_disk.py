"""Rows that leave for disk, a part of `plan`: chooses the host's victims and assigns positions in the log."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pipeline.records import I32, I64, U64, DiskWrite
from pipeline.storage.places import NO_COPY, Places
from pipeline.storage.shards import shard_of

FILL_SHARE = 8
"""Divisor of the number of host slots: at most 1/8 of the slots, or one chunk if that is more, is emptied to fill last
chunks."""


@dataclass(frozen=True, slots=True)
class Going:
    """Rows that leave for disk: rows to write, shard by shard, and rows that have an unchanged copy on disk."""

    host_slots: I32
    device_slots: I32
    keys: U64
    """Keys of the rows to write: for each shard those from the host, then those from the device."""
    disk_writes: tuple[DiskWrite, ...]
    copied_keys: U64
    copies: I64


def send_to_disk(device_E: I32, host_victims: int, host_S: NDArray[np.uint8], places: Places) -> Going:
    """Choose the host's victims, free their slots, and assign log positions. `device_E`: slots of the device's victims
    that go to disk. `host_S`: 1 for each host slot that may be freed."""
    device, host, num = places.device, places.host, places.chunks.shards.num
    host_E = host.policy.choose(host_victims, host_S)
    host_S[host_E] = 0
    host_E = np.concatenate([host_E, _fill(host_E, device_E, host_S, places)])
    keys_N = np.concatenate([host.keys_S[host_E], device.keys_S[device_E]])
    copies_N = np.concatenate([host.copies_S[host_E], device.copies_S[device_E]])
    shard_N = shard_of(keys_N, num)
    # NumPy uses radix sort for 16-bit integers.
    order_N = np.argsort(shard_N.astype(np.uint16), kind="stable")
    changed_N = copies_N[order_N] == NO_COPY
    written_N, copied_N = order_N[changed_N], order_N[~changed_N]
    from_host = written_N < len(host_E)
    slots_N = np.concatenate([host_E, device_E])
    host.release(host_E)
    return Going(
        host_slots=slots_N[written_N[from_host]],
        device_slots=slots_N[written_N[~from_host]],
        keys=keys_N[written_N],
        disk_writes=_disk_write(shard_N[written_N[from_host]], shard_N[written_N[~from_host]], places),
        copied_keys=keys_N[copied_N],
        copies=copies_N[copied_N],
    )


def _fill(host_E: I32, device_E: I32, host_S: NDArray[np.uint8], places: Places) -> I32:
    """Choose additional host victims. A chunk contains the rows of only one block, so the last chunk of each shard is
    filled with rows of that shard from the host's next victims."""
    host, chunks = places.host, places.chunks
    keys = [slab.keys_S[at[slab.copies_S[at] == NO_COPY]] for slab, at in ((host, host_E), (places.device, device_E))]
    room_S = -np.bincount(shard_of(np.concatenate(keys), chunks.shards.num), minlength=chunks.shards.num) % chunks.rows
    maximum = max(chunks.rows, len(host.keys_S) // FILL_SHARE)
    next_E = host.policy.choose(min(int(room_S.sum()), maximum, int(host_S.sum())), host_S)
    shard_E = shard_of(host.keys_S[next_E], chunks.shards.num)
    next_E = next_E[np.argsort(shard_E, kind="stable")]
    ends = np.cumsum([0, *np.bincount(shard_E, minlength=chunks.shards.num)]).tolist()
    return np.concatenate([next_E[a : min(b, a + room)] for (a, b), room in zip(pairwise(ends), room_S, strict=True)])


def _disk_write(host_shards: I64, device_shards: I64, places: Places) -> tuple[DiskWrite, ...]:
    """Assign log positions. `host_shards`, `device_shards`: the shard of each row to write from the host and from the
    device."""
    num = places.chunks.shards.num
    counts = (np.bincount(shards, minlength=num).tolist() for shards in (host_shards, device_shards))
    return tuple(
        DiskWrite(num_host, num_device, places.chunks.add(num_host + num_device, shard))
        for shard, (num_host, num_device) in enumerate(zip(*counts, strict=True))
        if num_host + num_device
    )
