"""plan: decide the sources of a block's arrivals, its victims and their destinations. All decisions are made here, in
block order, on metadata.

No row is evicted (moved to a slower tier) while any block of the look-ahead window needs it. So a key that this block
shares with a later block of the window stays on the device until that block, and a key that leaves with this block is
next needed by a block whose `prefetch` waits for the `write_back` of this block or a later one.

A row that has not changed since a commit has a copy in the log (`Slots.copies_S`). A block that trains on the row makes
the copy stale. A victim that still has a copy goes to disk without being written.

All checks precede all changes, so a refused block leaves the state as it was after the previous block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.slots import PART, count_tiers, list_arrivals
from pipeline.messages.sizes import format_size_down, format_size_up
from pipeline.records import I32, I64, U64, Block, DiskWrite, Moves, OwnedKeys, Plan, Refusal, Unique
from pipeline.storage.key_map import DEVICE, HOST, place
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


NO_SLOT: I64 = np.full(1, NO_COPY, np.int64)
"""Copies of a slab without slots, in the form that kernels take."""


@dataclass(frozen=True, slots=True)
class RingRows:
    """Number of rows per buffer of each ring."""

    staging_rows: int
    outgoing_rows: int


@dataclass(frozen=True, slots=True)
class _Found:
    """Current places of the working set, and the arrivals: all keys that are not on the device, in staging order. The
    first `new` arrivals are new keys, the next `host` come from the host, and the rest from disk."""

    unique: Unique | OwnedKeys
    places_U: I64
    rows_U: I32
    """Slots of the keys that are on device or host."""
    arrivals_A: I64
    keys_A: U64
    new: int
    host: int
    disk: int
    host_slots: I32
    disk_at: I64
    """Log positions of the keys that are on disk."""
    stale_at: I64
    """Log positions of the working set's unchanged rows, which become stale when the block trains."""

    @property
    def moves(self) -> Moves:
        """Counts of where the working set was found, with no moves."""
        return Moves(
            keys=len(self.places_U),
            device_hits=len(self.places_U) - len(self.arrivals_A),
            host_hits=self.host,
            disk_hits=self.disk,
            new=self.new,
            arrives=False,
        )


def plan(window: Sequence[Unique | OwnedKeys | Refusal], places: Places, room: RingRows) -> Plan | Refusal:
    """Plan the first block of `window`, which contains its working set and those of the next L blocks."""
    refusals = [unique for unique in window if isinstance(unique, Refusal)]
    if refusals:
        # The rows that may leave depend on the keys of every block of the window.
        return replace(refusals[0], block=window[0].block)
    needed = cast("list[Unique | OwnedKeys]", list(window))
    found = _find(needed[0], places)
    num_arrivals = len(found.arrivals_A)
    if num_arrivals > room.staging_rows:
        return _refuse(found, "a staging buffer", num_arrivals, room.staging_rows, "staging_rows")
    if not needed[0].block.trains:
        return _plan_evaluation(found, places)
    return _plan_training(found, needed, places, room)


def _find(unique: Unique | OwnedKeys, places: Places) -> _Found:
    places_U, slabs, split = places.window.find(unique.keys_U), (places.device, places.host), places.threads.split
    num_parts, copies = (
        -(-len(places_U) // PART),
        [slots.copies_S if len(slots.copies_S) else NO_SLOT for slots in slabs],
    )
    rows_U, counts_P4 = np.empty(len(places_U), np.int32), np.empty((num_parts, 4), np.int64)
    split(num_parts, lambda a, b: count_tiers(places_U, a, b, *copies, rows_U, counts_P4), 1)
    num_copies, host, disk, new = counts_P4.sum(axis=0).tolist()
    begins_P4 = np.cumsum(counts_P4, axis=0) - counts_P4 + np.array([0, new, new + host, 0])
    arrivals_A, keys_A = np.empty(new + host + disk, np.int64), np.empty(new + host + disk, np.uint64)
    copies_C = np.empty(num_copies, np.int64)
    into = (*copies, arrivals_A, keys_A, copies_C)
    split(num_parts, lambda a, b: list_arrivals(places_U, unique.keys_U, a, b, begins_P4, *into), 1)
    disk_at = places.chunks.positions_of(places_U[arrivals_A[new + host :]])
    return _Found(
        unique, places_U, rows_U, arrivals_A, keys_A, new, host, disk,
        rows_U[arrivals_A[new : new + host]], disk_at, np.concatenate([disk_at, copies_C]),
    )  # fmt: skip


def _plan_evaluation(found: _Found, places: Places) -> Plan:
    """Plan a block that evaluates: rows that are not on the device are read into staging and used from there. No row
    moves, and no metadata changes except the next uses of known keys."""
    rows_U = found.rows_U
    rows_U[found.arrivals_A] = -1 - np.arange(len(found.arrivals_A), dtype=np.int32)
    none = np.empty(0, np.int32)
    places.next_uses.use_up(found.unique.block)
    return Plan(
        block=found.unique.block, rows_U=rows_U, arrival_keys_A=found.keys_A,
        num_new=found.new, arrival_host_slots=found.host_slots,
        arrival_disk_at=found.disk_at, arrival_slots=none, victim_slots_E=none, host_into=none,
        host_victim_slots=none, disk_writes=(), moves=found.moves,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Leaving:
    """Numbers of victims. Victims of the device take the host's free slots, then the slots of the host's victims; the
    rest go to disk."""

    device_victims: int
    host_victims: int
    to_host: int

    @property
    def to_disk(self) -> int:
        return self.host_victims + self.device_victims - self.to_host


def _plan_training(found: _Found, window: list[Unique | OwnedKeys], places: Places, room: RingRows) -> Plan | Refusal:
    victims = max(0, len(found.arrivals_A) - places.device.num_free)
    device_S = host_S = np.empty(0, np.uint8)
    if victims:
        device_S, host_S = places.evictable([unique.keys_U for unique in window], found.places_U)
    if victims > room.outgoing_rows:
        return _refuse(found, "an outgoing buffer", victims, room.outgoing_rows, "outgoing_rows")
    evictable, host_evictable = (int(np.count_nonzero(slots_S.view(np.bool_))) for slots_S in (device_S, host_S))
    if victims > evictable:
        # Rows that the window needs stay, and the block's arrivals must also fit.
        needed = victims - evictable + len(places.device.keys_S)
        return _refuse(found, "the device slab", needed, len(places.device.keys_S), "device_rows")
    leaving = _count_leaving(victims, found.host, host_evictable, places)
    return _exceeded(found, leaving, places) or _apply(found, leaving, device_S, host_S, places)


def _count_leaving(victims: int, host_arrivals: int, host_evictable: int, places: Places) -> _Leaving:
    host_free = places.host.num_free + host_arrivals
    host_victims = min(host_evictable, max(0, victims - host_free))
    return _Leaving(victims, host_victims, min(victims, host_free + host_victims))


def _exceeded(found: _Found, leaving: _Leaving, places: Places) -> Refusal | None:
    """Return a refusal if a commit is due first, or if the block would exceed the cap of the disk (including the
    reserve for a whole commit) or of the map."""
    chunks = places.chunks
    written = chunks.maximum(leaving.to_disk)
    growth = chunks.growth + written + chunks.merged(found.stale_at)
    if growth > chunks.allowance:
        return _refuse(found, "the log's growth", growth, chunks.allowance, "", "commit", "chunks")
    disk = chunks.present + written + places.commit_chunks
    if disk > places.caps.disk_chunks:
        with_reserve = "the disk, with its reserve for a whole commit,"
        return _refuse(found, with_reserve, disk, places.caps.disk_chunks, "disk_chunks", "disk", "chunks")
    map_bytes = places.map.bytes_with(found.keys_A[: found.new])
    if map_bytes > places.caps.map_bytes:
        return _refuse(found, "the key map", map_bytes, places.caps.map_bytes, "map_bytes", "map", "bytes")
    return None


def _apply(
    found: _Found, leaving: _Leaving, device_S: NDArray[np.uint8], host_S: NDArray[np.uint8], places: Places
) -> Plan:
    """Choose the victims, change the metadata, and return the plan. All checks have already passed."""
    device, host, new, keys_A = places.device, places.host, found.new, found.keys_A
    places.chunks.forget(found.stale_at)
    victims_E = device.policy.choose(leaving.device_victims, device_S)
    to_host_E, to_disk_E = victims_E[: leaving.to_host], victims_E[leaving.to_host :]
    going = send_to_disk(to_disk_E, leaving.host_victims, host_S, places)
    arriving = host.uses.of(found.host_slots, new, found.disk)
    host.release(found.host_slots)
    host_keys = device.keys_S[to_host_E]
    host_into = host.take(host_keys, device.uses.of(to_host_E), device.copies_S[to_host_E])
    device.release(victims_E)
    arrival_slots = device.take(keys_A, arriving)

    rows_U = found.rows_U
    rows_U[found.arrivals_A] = arrival_slots
    places.use(rows_U)
    places.map.insert(keys_A[:new], place(DEVICE, arrival_slots[:new]))
    places.map.move(keys_A[new:], place(DEVICE, arrival_slots[new:]))
    places.map.move(host_keys, place(HOST, host_into))
    to_disk_at = np.concatenate([*(shard.at_N for shard in going.disk_writes), going.copies])
    places.map.move(np.concatenate([going.keys, going.copied_keys]), places.chunks.places_of(to_disk_at))
    places.window.leave(found.unique.keys_U, keys_A)
    places.next_uses.use_up(found.unique.block, (found.unique.keys_U, rows_U))
    return Plan(
        block=found.unique.block, rows_U=rows_U, arrival_keys_A=keys_A, num_new=new,
        arrival_host_slots=found.host_slots, arrival_disk_at=found.disk_at,
        arrival_slots=arrival_slots, victim_slots_E=np.concatenate([to_host_E, going.device_slots]),
        host_into=host_into, host_victim_slots=going.host_slots, disk_writes=going.disk_writes,
        moves=_moves(found, leaving, going, places.chunks.rows),
    )  # fmt: skip


def _moves(found: _Found, leaving: _Leaving, going: Going, chunk_rows: int) -> Moves:
    """Counts of rows found and rows moved."""
    device_to_disk = leaving.device_victims - leaving.to_host
    return replace(
        found.moves,
        device_to_host=leaving.to_host,
        device_to_disk=device_to_disk,
        host_to_disk=len(going.keys) + len(going.copies) - device_to_disk,
        unchanged=len(going.copies),
        padding=sum(-len(shard.at_N) % chunk_rows for shard in going.disk_writes),
        arrives=True,
    )


def _refuse(
    found: _Found, where: str, needed: int, there_is: int, cap: str, what: str = "window", unit: str = "rows"
) -> Refusal:
    block: Block = found.unique.block
    lacks = f"{needed:,} {unit} and has {there_is:,}"
    if unit == "bytes":
        lacks = f"{format_size_up(needed)} and has {format_size_down(there_is)}"
    return Refusal(
        block,
        what,
        f"block {block.number} ({block.num_batches} batches, {len(found.places_U):,} keys): {where} would need {lacks}",
        max(needed, len(found.places_U)) if unit == "rows" else needed,
        cap,
    )
