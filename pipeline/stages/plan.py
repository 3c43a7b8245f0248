"""plan: sources of a block's arrivals, victims and their destinations. All decisions are made here, in block order, on
metadata.

No row is evicted (moved to a slower tier) while any block of the look-ahead window needs it. So a key that this block
shares with a later block of the window stays on the device until then, and a key that leaves with this block is next
needed by a block whose `prefetch` waits for this block's `write_back` or a later one.

A row that has not changed since a commit has a copy in the log (`Slots.copies_S`). A block that trains on the row makes
the copy stale; a victim that still has a copy goes to disk without being written.

Everything is checked before anything is changed: a refused block leaves the state as it was after the block before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.tiers import sort_by_tier
from pipeline.messages.sizes import format_size_down, format_size_up
from pipeline.records import I32, I64, Block, Moves, OwnedKeys, Plan, Refusal, Unique
from pipeline.stages.to_disk import Going, send_to_disk
from pipeline.storage.key_map import DEVICE, HOST, place, row_of
from pipeline.storage.places import NO_COPY, Places
from pipeline.storage.policies import Uses


@dataclass(frozen=True, slots=True)
class RingRows:
    """Number of rows that one buffer of each ring holds."""

    staging_rows: int
    outgoing_rows: int


@dataclass(frozen=True, slots=True)
class _Found:
    """Current places of the working set, and the positions in it of the keys found in each tier. Arrivals, all keys
    that are not on the device, are in the order of staging: new, from the host, from the disk."""

    unique: Unique | OwnedKeys
    places_U: I64
    rows_U: I32
    """Slots of the keys on device and host."""
    arrivals_A: I64
    new_U: I64
    host_U: I64
    disk_U: I64
    device_slots: I32
    host_slots: I32

    def disk_at(self, places: Places) -> I64:
        """Positions in the log of the keys found there."""
        return places.chunks.positions_of(self.places_U[self.disk_U])

    def stale_at(self, places: Places) -> I64:
        """Positions in the log of the working set's unchanged rows, which become stale when the block trains."""
        copies_U = np.concatenate([
            places.device.copies_S[self.device_slots], places.host.copies_S[self.host_slots],
        ])  # fmt: skip
        return np.concatenate([self.disk_at(places), copies_U[copies_U != NO_COPY]])

    @property
    def moves(self) -> Moves:
        """Counts of where the working set was found, without any moves."""
        return Moves(
            keys=len(self.places_U),
            device_hits=len(self.device_slots),
            host_hits=len(self.host_U),
            disk_hits=len(self.disk_U),
            new=len(self.new_U),
            arrives=False,
        )


def plan(window: Sequence[Unique | OwnedKeys | Refusal], places: Places, room: RingRows) -> Plan | Refusal:
    """Plan the first block of `window`, which holds its working set and those of the next L blocks."""
    refusals = [unique for unique in window if isinstance(unique, Refusal)]
    if refusals:
        # Without the keys of every block of the window it is unknown which rows may leave.
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
    places_U = places.window.find(unique.keys_U)
    order_U, ends_4 = np.empty(len(places_U), np.int64), np.empty(4, np.int64)
    sort_by_tier(places_U, order_U, ends_4)
    device, new, host, _ = ends_4.tolist()
    rows_U, host_U = row_of(places_U).astype(np.int32), order_U[new:host]
    return _Found(
        unique, places_U, rows_U, order_U[device:], order_U[device:new], host_U, order_U[host:],
        rows_U[order_U[:device]], rows_U[host_U],
    )  # fmt: skip


def _plan_evaluation(found: _Found, places: Places) -> Plan:
    """Plan a block that evaluates: rows that are not on the device are read into staging and used from there. No row
    moves, and no metadata changes but the next uses of known keys."""
    rows_U = found.rows_U
    rows_U[found.arrivals_A] = -1 - np.arange(len(found.arrivals_A), dtype=np.int32)
    none = np.empty(0, np.int32)
    places.next_uses.use_up(found.unique.block)
    return Plan(
        block=found.unique.block, rows_U=rows_U, arrival_keys_A=found.unique.keys_U[found.arrivals_A],
        num_new=len(found.new_U), arrival_host_slots=found.host_slots,
        arrival_disk_at=found.disk_at(places), arrival_slots=none, victim_slots_E=none, host_into=none,
        host_victim_slots=none, disk_writes=(), moves=found.moves,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Leaving:
    """Numbers of victims. The device's victims take the host's free slots, then the slots of the host's victims; the
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
        # Rows that the window needs stay, and the block's arrivals must fit next to them.
        needed = victims - evictable + len(places.device.keys_S)
        return _refuse(found, "the device slab", needed, len(places.device.keys_S), "device_rows")
    leaving = _count_leaving(victims, len(found.host_U), host_evictable, places)
    stale_at = found.stale_at(places)
    exceeded = _exceeded(found, leaving, stale_at, places)
    return exceeded or _apply(found, leaving, stale_at, device_S, host_S, places)


def _count_leaving(victims: int, host_arrivals: int, host_evictable: int, places: Places) -> _Leaving:
    host_free = places.host.num_free + host_arrivals
    host_victims = min(host_evictable, max(0, victims - host_free))
    return _Leaving(victims, host_victims, min(victims, host_free + host_victims))


def _exceeded(found: _Found, leaving: _Leaving, stale_at: I64, places: Places) -> Refusal | None:
    """Return a refusal if a commit is due first, or if the block would exceed the cap of the disk (the reserve for a
    whole commit included) or of the map."""
    chunks = places.chunks
    written = chunks.maximum(leaving.to_disk)
    growth = chunks.growth + written + chunks.merged(stale_at)
    if growth > chunks.allowance:
        return _refuse(found, "the log's growth", growth, chunks.allowance, "", "commit", "chunks")
    disk = chunks.present + written + places.commit_chunks
    if disk > places.caps.disk_chunks:
        with_reserve = "the disk, with its reserve for a whole commit,"
        return _refuse(found, with_reserve, disk, places.caps.disk_chunks, "disk_chunks", "disk", "chunks")
    map_bytes = places.map.bytes_with(found.unique.keys_U[found.new_U])
    if map_bytes > places.caps.map_bytes:
        return _refuse(found, "the key map", map_bytes, places.caps.map_bytes, "map_bytes", "map", "bytes")
    return None


def _apply(
    found: _Found,
    leaving: _Leaving,
    stale_at: I64,
    device_S: NDArray[np.uint8],
    host_S: NDArray[np.uint8],
    places: Places,
) -> Plan:
    """Choose the victims, change the metadata, and return the plan. All checks have passed before."""
    device, host = places.device, places.host
    arrival_disk_at = found.disk_at(places)
    places.chunks.forget(stale_at)
    device.copies_S[found.device_slots] = NO_COPY
    victims_E = device.policy.choose(leaving.device_victims, device_S)
    to_host_E, to_disk_E = victims_E[: leaving.to_host], victims_E[leaving.to_host :]
    going = send_to_disk(to_disk_E, leaving.host_victims, host_S, places)
    host_slots = found.host_slots
    arriving = Uses.none(len(found.arrivals_A))
    arriving.set(np.arange(len(host_slots), dtype=np.int32) + len(found.new_U), host.uses.of(host_slots))
    host.release(host_slots)
    host_into = host.take(device.keys_S[to_host_E], device.uses.of(to_host_E))
    host.copies_S[host_into] = device.copies_S[to_host_E]
    host_keys = device.keys_S[to_host_E]
    device.release(victims_E)
    arrival_keys_A = found.unique.keys_U[found.arrivals_A]
    arrival_slots = device.take(arrival_keys_A, arriving)

    rows_U = found.rows_U
    rows_U[found.arrivals_A] = arrival_slots
    places.use(rows_U)
    num_new = len(found.new_U)
    places.map.insert(arrival_keys_A[:num_new], place(DEVICE, arrival_slots[:num_new]))
    to_disk_at = np.concatenate([*(shard.at_N for shard in going.disk_writes), going.copies])
    places.map.move(
        np.concatenate([arrival_keys_A[num_new:], host_keys, going.keys, going.copied_keys]),
        np.concatenate(
            [place(DEVICE, arrival_slots[num_new:]), place(HOST, host_into), places.chunks.places_of(to_disk_at)]
        ),
    )
    places.window.arrive(found.unique.keys_U, rows_U)
    places.next_uses.use_up(found.unique.block, (found.unique.keys_U, rows_U))
    return Plan(
        block=found.unique.block, rows_U=rows_U, arrival_keys_A=arrival_keys_A, num_new=num_new,
        arrival_host_slots=host_slots, arrival_disk_at=arrival_disk_at,
        arrival_slots=arrival_slots, victim_slots_E=np.concatenate([to_host_E, going.device_slots]),
        host_into=host_into, host_victim_slots=going.host_slots, disk_writes=going.disk_writes,
        moves=_moves(found, leaving, going, places.chunks.rows),
    )  # fmt: skip


def _moves(found: _Found, leaving: _Leaving, going: Going, chunk_rows: int) -> Moves:
    """Counts of what was found and what moves."""
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
