"""Who leaves for the disk, for `plan`: the host's victims are chosen here, and positions of the log are given out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pipeline.records import I32, I64, U64, DiskWrite
from pipeline.storage.places import NO_COPY, Places
from pipeline.storage.shards import shard_of

FILL_SHARE = 8
"""At most this part of the host's slots is emptied to fill the last chunks of several shards."""


@dataclass(frozen=True, slots=True)
class Going:
    """Rows that are written to disk, shard by shard, and rows that lie there already."""

    host_slots: I32
    device_slots: I32
    keys: U64
    """Of the rows that are written: of each shard the host's, then the device's."""
    disk_writes: tuple[DiskWrite, ...]
    copied_keys: U64
    copies: I64


def send_to_disk(device_E: I32, host_victims: int, host_S: NDArray[np.uint8], places: Places) -> Going:
    """Choose the host's victims and free their slots; those of the device are `device_E`."""
    device, host, num = places.device, places.host, places.chunks.shards.num
    host_E = host.policy.choose(host_victims, host_S)
    host_S[host_E] = 0
    host_E = np.concatenate([host_E, _fill(host_E, device_E, host_S, places)])
    keys_N = np.concatenate([host.keys_S[host_E], device.keys_S[device_E]])
    copies_N = np.concatenate([host.copies_S[host_E], device.copies_S[device_E]])
    shard_N = shard_of(keys_N, num)
    # Of 16 bits, which NumPy sorts by radix.
    order_N = np.argsort(shard_N.astype(np.uint16), kind="stable")
    written_N = order_N[copies_N[order_N] == NO_COPY]
    copied_N = order_N[copies_N[order_N] != NO_COPY]
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
    """Further victims of the host. A chunk holds rows of one block only, so the last one of each shard that has to be
    written is filled with what the host has of that shard among those that it would let go next."""
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
    """Give out positions for rows of the host and of the device that belong to these shards."""
    num = places.chunks.shards.num
    counts = (np.bincount(shards, minlength=num).tolist() for shards in (host_shards, device_shards))
    return tuple(
        DiskWrite(num_host, num_device, places.chunks.add(num_host + num_device, shard))
        for shard, (num_host, num_device) in enumerate(zip(*counts, strict=True))
        if num_host + num_device
    )
