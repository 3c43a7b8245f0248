"""Replay of plans and commits on dictionaries, to check where each row is, and that no row leaves while the window
needs it."""

from dataclasses import dataclass, field

import numpy as np
from support.runs.sharded_tables import in_shards

from pipeline.commits.flush import flush
from pipeline.records import RESERVED, Block, Plan, Refusal, Unique
from pipeline.stages.plan import plan
from pipeline.storage.chunks import Chunks
from pipeline.storage.key_map import DEVICE, DISK, HOST, row_of, tier_of
from pipeline.storage.layout import row_keys
from pipeline.storage.places import NO_COPY, Caps, Places
from pipeline.storage.plan_threads import PlanThreads
from pipeline.storage.shards import ONE_SHARD, shard_of

CHUNK = 4
PLENTY = 1 << 30
CLOCKS = ("clock", "clock")


def make_unique(number, keys, split="train"):
    block = Block(
        number=number, split=split, epoch=0, first_batch=number, num_batches=1, first_example=number, num_examples=1,
        batch_size=1, first_step=number, closes_split=False,
    )  # fmt: skip
    return Unique(block, np.array(keys, np.uint64), ())


def make_places(
    device_rows,
    host_rows,
    disk_chunks=PLENTY,
    map_bytes=PLENTY,
    multiple=2.0,
    growth=1e6,
    shards=ONE_SHARD,
    policies=CLOCKS,
):
    chunks = Chunks(CHUNK, multiple, growth, shards)
    return Places(device_rows, host_rows, policies, Caps(disk_chunks, map_bytes), chunks)


def state_of(places):
    """All state that a plan may change, by attribute, with arrays as bytes."""
    return {name: contents(getattr(places, name)) for name in ("map", "chunks", "device", "host", "trained")}


def contents(value):
    """Contents of an object, whether its attributes are in __slots__ or __dict__."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, list | tuple):
        return [contents(one) for one in value]
    if isinstance(value, PlanThreads):
        return None
    names = getattr(value, "__slots__", None) or getattr(value, "__dict__", ())
    return {name: contents(getattr(value, name)) for name in names} or value


@dataclass
class Tiers:
    """Contents of the tiers after the stages have followed the plans: slot or position -> key."""

    device: dict = field(default_factory=dict)
    host: dict = field(default_factory=dict)
    log: dict = field(default_factory=dict)
    live: dict = field(default_factory=dict)
    """key -> (tier, row)"""
    moved_by: dict = field(default_factory=dict)
    """key -> block whose `write_back` moved the row to its current place"""
    copies: dict = field(default_factory=dict)
    """key -> log position of an unchanged copy of a row that is in a slab"""
    since: int = 0
    """Number of chunks at the last commit."""
    deleted: set = field(default_factory=set)

    def tier_keys(self, tier):
        return {key for key, (its_tier, _) in self.live.items() if its_tier == tier}

    def live_in_chunks(self, without=()):
        """chunk -> number of its live rows, excluding the keys in `without`"""
        count = dict.fromkeys(sorted(self.chunks), 0)
        for key, (tier, row) in self.live.items():
            position = row if tier == DISK else self.copies.get(key)
            if position is not None and key not in without:
                count[position // CHUNK] += 1
        return count

    @property
    def chunks(self):
        return {position // CHUNK for position in self.log}

    @property
    def num_chunks(self):
        return len(self.chunks)


def check_plan(p, window, tiers, places, room):
    """Replay the plan of one training block, in the order of the stages, and check every promise."""
    keys = window[0].keys_U.tolist()
    needed = {key for unique in window for key in unique.keys_U.tolist()}
    host_before = tiers.tier_keys(HOST)
    arrivals = check_arrivals(p, window[0], tiers, len(window) - 1)
    assert len(arrivals) <= room.staging_rows
    num_victims = max(0, len(arrivals) - (len(places.device.keys_S) - len(tiers.device)))
    assert len(p.victim_slots_E) <= num_victims <= room.outgoing_rows
    # The block trains on its rows, so copies of them in the log become stale.
    tiers.copies = {key: position for key, position in tiers.copies.items() if key not in keys}

    # train: victims leave, arrivals take slots.
    victims = [tiers.device.pop(slot) for slot in p.victim_slots_E.tolist()]
    dropped = [tiers.device.pop(slot) for slot in p.arrival_slots.tolist() if slot in tiers.device]
    assert len(victims) + len(dropped) == num_victims
    assert not needed & {*victims, *dropped}, "the window needs a row that leaves the device"
    tiers.device |= dict(zip(p.arrival_slots.tolist(), arrivals, strict=True))
    assert [tiers.device[slot] for slot in p.rows_U.tolist()] == keys
    assert len(set(p.rows_U.tolist())) == len(keys)

    # write_back: the host's victims and the device's last victims go to the log, the others to the host.
    for slot in p.arrival_host_slots.tolist():
        del tiers.host[slot]
    host_victims = [tiers.host.pop(slot) for slot in p.host_victim_slots.tolist()]
    to_host, to_disk = victims[: len(p.host_into)], shard_by_shard(p, host_victims, victims[len(p.host_into) :])
    host_dropped = check_dropped(dropped, tiers, places)
    gone = {*host_victims, *host_dropped}
    assert not needed & gone, "the window needs a row that leaves the host"
    assert not tiers.copies.keys() & set(to_disk), "a row is written that the log has as it is"
    assert p.num_to_disk == len(to_disk)
    for slot, key in zip(p.host_into.tolist(), to_host, strict=True):
        assert 0 <= slot < len(places.host.keys_S)
        assert slot not in tiers.host
        tiers.host[slot] = key
    at = check_log_positions(p, to_disk, tiers, places)

    tiers.live |= {key: (DEVICE, slot) for slot, key in zip(p.arrival_slots.tolist(), arrivals, strict=True)}
    tiers.live |= {key: (HOST, slot) for slot, key in zip(p.host_into.tolist(), to_host, strict=True)}
    tiers.live |= {key: (DISK, position) for position, key in zip(at, to_disk, strict=True)}
    tiers.live |= {key: (DISK, tiers.copies.pop(key)) for key in [*dropped, *host_dropped]}
    tiers.moved_by |= dict.fromkeys([*victims, *dropped, *gone], window[0].block.number)
    check_moves(p, keys, arrivals, [*victims, *dropped], to_host, host_victims, host_dropped)
    if p.moves.padding > len(host_dropped) and places.chunks.shards.num == 1:
        assert host_before - needed <= gone, "a chunk is padded though the host had more rows to give"
    if len(to_host) < num_victims:
        assert not host_before - needed - gone, "a row of the device goes to disk though one of the host could"


def shard_by_shard(p, host_victims, device_victims):
    """Victims in the order in which they are written: shard by shard, the host's before the device's."""
    written = []
    for write in p.disk_writes:
        written += host_victims[: write.num_host] + device_victims[: write.num_device]
        host_victims, device_victims = host_victims[write.num_host :], device_victims[write.num_device :]
    assert host_victims == device_victims == []
    return written


def check_dropped(dropped, tiers, places):
    """Check that victims with an unchanged copy on disk are not written. Returns those of the host; `dropped`: those of
    the device."""
    keys = np.array(list(tiers.host.values()), np.uint64)
    on_disk = tier_of(places.map.find(keys)) == DISK
    left = [slot for slot, is_left in zip(tiers.host, on_disk.tolist(), strict=True) if is_left]
    host_dropped = [tiers.host.pop(slot) for slot in left]
    assert {*dropped, *host_dropped} <= tiers.copies.keys(), "a row that changed is not written"
    return host_dropped


def check_arrivals(p, unique, tiers, look_ahead):
    """Check that each key that is not on the device arrives once, from the right place: new, host, or disk."""
    arrivals = p.arrival_keys_A.tolist()
    num_new, num_host = p.num_new, len(p.arrival_host_slots)
    new, host, disk = arrivals[:num_new], arrivals[num_new : num_new + num_host], arrivals[num_new + num_host :]
    assert sorted(arrivals) == sorted(set(unique.keys_U.tolist()) - tiers.tier_keys(DEVICE))
    assert not set(new) & tiers.live.keys()
    assert [tiers.host[slot] for slot in p.arrival_host_slots.tolist()] == host
    assert [tiers.live[key] for key in host] == [(HOST, slot) for slot in p.arrival_host_slots.tolist()]
    assert [tiers.live[key] for key in disk] == [(DISK, position) for position in p.arrival_disk_at.tolist()]
    for key in host + disk:
        # `prefetch` waits for the write_back of block i - L - 1 and no later one.
        assert unique.block.number > tiers.moved_by[key] + look_ahead
    return arrivals


def check_log_positions(p, to_disk, tiers, places):
    """Check that positions are used once, from the end of each shard's arrays, in chunks without rows of other
    blocks."""
    at = [position for write in p.disk_writes for position in write.at_N.tolist()]
    assert not {position // CHUNK for position in at} & tiers.chunks
    num = places.chunks.shards.num
    shards = shard_of(np.array(to_disk, np.uint64), num).tolist()
    assert shards == sorted(shards)
    assert [position // CHUNK % num for position in at] == shards, "a row lies in another shard than its key's"
    for write in p.disk_writes:
        assert len(write.at_N) == write.num_host + write.num_device > 0
        own = [position // CHUNK // num * CHUNK + position % CHUNK for position in write.at_N.tolist()]
        assert own[0] % CHUNK == 0
        assert own == list(range(own[0], own[0] + len(own)))
        assert places.chunks.tails[write.at_N[0] // CHUNK % num] == (own[-1] // CHUNK + 1) * CHUNK
    tiers.log |= dict(zip(at, to_disk, strict=True))
    return at


def check_moves(p, keys, arrivals, victims, to_host, host_victims, host_dropped):
    m = p.moves
    assert m.arrives
    assert m.keys == len(keys)
    assert m.new + m.host_hits + m.disk_hits == len(arrivals)
    assert m.device_hits == len(keys) - len(arrivals)
    assert (m.new, m.host_hits) == (p.num_new, len(p.arrival_host_slots))
    assert m.device_to_host == len(to_host)
    assert m.device_to_disk == len(victims) - len(to_host)
    assert m.host_to_disk == len(host_victims) + len(host_dropped)
    assert m.unchanged == m.device_to_disk + m.host_to_disk - p.num_to_disk
    assert m.padding == sum(-len(write.at_N) % CHUNK for write in p.disk_writes)


def check_places(places, tiers):
    """Check that map, slots and the log's end agree with the replayed tiers, and that the caps are respected."""
    known = [*tiers.live]
    found = places.map.find(np.array(known, np.uint64))
    rows, on_disk = row_of(found), tier_of(found) == DISK
    rows[on_disk] = places.chunks.positions_of(found[on_disk])
    assert [*zip(tier_of(found).tolist(), rows.tolist(), strict=True)] == [*tiers.live.values()]
    assert len(places.map) == len(known)
    for slots, held, tier in ((places.device, tiers.device, DEVICE), (places.host, tiers.host, HOST)):
        assert slots.keys_S.tolist() == [held.get(slot, int(RESERVED)) for slot in range(len(slots.keys_S))]
        assert len(slots.keys_S) - slots.num_free == len(held) == len(tiers.tier_keys(tier))
        copies = {slots.keys_S[slot].item(): slots.copies_S[slot].item() for slot in held}
        assert copies == {key: tiers.copies.get(key, NO_COPY) for key in held.values()}
    assert places.map.num_bytes <= places.caps.map_bytes
    chunks, live = places.chunks, tiers.live_in_chunks()
    assert (chunks.num, chunks.growth) == (tiers.num_chunks, tiers.num_chunks - tiers.since)
    assert chunks.present == tiers.num_chunks - len(tiers.deleted)
    assert {c: CHUNK - chunks.stale(c) for c in live} == live
    assert chunks.live_rows == sum(live.values())
    assert not [c for c, count in live.items() if count and c in tiers.deleted], "a live row was deleted"


def check_evaluation(p, unique, tiers, look_ahead):
    """Check that evaluation uses rows from the device or from staging, and moves no rows."""
    arrivals = check_arrivals(p, unique, tiers, look_ahead)
    rows = [tiers.device[row] if row >= 0 else arrivals[-1 - row] for row in p.rows_U.tolist()]
    assert rows == unique.keys_U.tolist()
    assert [len(a) for a in (p.arrival_slots, p.victim_slots_E, p.host_into, p.host_victim_slots)] == [0] * 4
    assert p.num_to_disk == 0
    assert not p.moves.arrives
    assert p.moves.new + p.moves.host_hits + p.moves.disk_hits == len(arrivals)
    assert p.moves.device_hits == len(p.rows_U) - len(arrivals)


def check_refusal(refusal, window, tiers, places, room):
    """Check that a refusal is due, and that its numbers agree with the replayed tiers."""
    keys, on_device = set(window[0].keys_U.tolist()), tiers.tier_keys(DEVICE)
    needed = {key for unique in window for key in unique.keys_U.tolist()}
    arrivals, pinned = len(keys - on_device), len(needed & on_device)
    slots = len(places.device.keys_S)
    victims = max(0, arrivals - (slots - len(on_device)))
    assert refusal.block is window[0].block
    if "staging" in refusal.message:
        assert arrivals > room.staging_rows
    elif "outgoing" in refusal.message:
        assert victims > room.outgoing_rows
    elif "device slab" in refusal.message:
        assert pinned + arrivals > slots
        assert f"need {pinned + arrivals:,} rows and has {slots:,}" in refusal.message
    else:
        due, needed, there_is = due_refusal(window, tiers, places)
        assert refusal.what == due
        assert refusal.needed == needed
        assert f"need {needed:,} chunks and has {there_is:,}" in refusal.message


def due_refusal(window, tiers, places):
    """Refusal due for this block according to the replayed tiers: its kind, the chunks needed, and the chunks
    available."""
    keys = set(window[0].keys_U.tolist())
    needed = {key for unique in window for key in unique.keys_U.tolist()}
    on_host, chunks = tiers.tier_keys(HOST), places.chunks
    arrivals = len(keys - tiers.tier_keys(DEVICE))
    victims = max(0, arrivals - (len(places.device.keys_S) - len(tiers.device)))
    room = len(places.host.keys_S) - len(on_host) + len(on_host & keys)
    to_disk = min(len(on_host - needed), max(0, victims - room)) + max(0, victims - room - len(on_host - needed))
    written = max_chunks(to_disk, chunks)
    merged = dict.fromkeys(range(chunks.shards.num), 0)
    for chunk, count in tiers.live_in_chunks(without=keys).items():
        merged[chunk % chunks.shards.num] += count if 0 < count * chunks._multiple < CHUNK else 0
    growth = tiers.num_chunks - tiers.since + written + sum(-(-count // CHUNK) for count in merged.values())
    if growth > chunks.allowance:
        return "commit", growth, chunks.allowance
    slabs = max_chunks(len(places.device.keys_S) + len(places.host.keys_S), chunks)
    disk = tiers.num_chunks - len(tiers.deleted) + written + slabs + chunks.allowance
    return ("disk" if disk > places.caps.disk_chunks else None), disk, places.caps.disk_chunks


def max_chunks(num_rows, chunks):
    """Maximum number of chunks for these rows: one row in each shard, the other rows in full chunks."""
    begun = min(num_rows, len(chunks.shards.owned))
    return begun + (num_rows - begun) // CHUNK


class Keys:
    """Tier whose rows consist only of keys."""

    chunk_rows = CHUNK

    def __init__(self, held):
        self.held = held

    def gather(self, at_U, out_UW):
        out_UW[:] = np.array([self.held[at] for at in at_U.tolist()], np.uint64).reshape(-1, 1).view(np.uint32)

    def scatter(self, at_U, rows_UW):
        self.held |= dict(zip(at_U.tolist(), row_keys(rows_UW).tolist(), strict=True))

    def keys(self, chunk):
        at = range(chunk * CHUNK, (chunk + 1) * CHUNK)
        return np.array([self.held.get(position, int(RESERVED)) for position in at], np.uint64)


def commit(tiers, places, at_least=0):
    """Commit as a drained pipeline does between two blocks: every row gets a place in the log, and sparse chunks are
    merged."""
    before = {key: row if tier == DISK else tiers.copies.get(key) for key, (tier, row) in tiers.live.items()}
    older = set(tiers.log)
    flushed = flush(
        places, Keys(tiers.device), Keys(tiers.host), Keys(tiers.log), np.empty((CHUNK, 2), np.uint32)
    )  # fmt: skip
    for position, key in [item for item in tiers.log.items() if item[0] not in older]:
        assert position // CHUNK % places.chunks.shards.num == shard_of(np.uint64([key]), places.chunks.shards.num)[0]
        if tiers.live[key][0] == DISK:
            tiers.live[key] = (DISK, position)
        else:
            tiers.copies[key] = position
    assert flushed.changed == [*before.values()].count(None)
    assert tiers.copies.keys() == tiers.tier_keys(DEVICE) | tiers.tier_keys(HOST)
    live = {chunk for chunk, count in tiers.live_in_chunks().items() if count}
    padded = len(places.chunks.shards.owned) * CHUNK
    assert len(live) * CHUNK <= places.chunks._multiple * len(tiers.live) + padded
    tiers.deleted = tiers.chunks - live
    tiers.since = tiers.num_chunks
    places.chunks.keep(live)
    places.begin_growth(at_least)
    check_places(places, tiers)


def replay(trace, splits, look_ahead, places, room, commits=()):
    """Plan all blocks, with a commit before each of the blocks in `commits`, and return the result of `plan` for each.
    A refused block is skipped unless a commit makes room for it."""
    shards = places.chunks.shards
    trace = [[in_shards(key, shards) for key in keys] for keys in trace]
    uniques = [make_unique(n, keys, split) for n, (keys, split) in enumerate(zip(trace, splits, strict=True))]
    tiers, outcomes = Tiers(), []
    for i, unique in enumerate(uniques):
        window = uniques[i : i + look_ahead + 1]
        if i in commits:
            commit(tiers, places)
        for _ in range(3):
            before, due = state_of(places), due_refusal(window, tiers, places)[0]
            outcome = plan(window, places, room)
            outcomes.append(outcome)
            if not isinstance(outcome, Refusal):
                break
            assert state_of(places) == before
            check_refusal(outcome, window, tiers, places, room)
            if outcome.what != "commit":
                break
            commit(tiers, places, outcome.needed + 1)
        else:
            raise AssertionError("three commits make no room for one block")
        if isinstance(outcome, Plan) and unique.block.trains:
            assert due is None, "a refusal was due"
            check_plan(outcome, window, tiers, places, room)
            check_places(places, tiers)
        elif isinstance(outcome, Plan):
            assert state_of(places) == before
            check_evaluation(outcome, unique, tiers, len(window) - 1)
    return outcomes
