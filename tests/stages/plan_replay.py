"""Plans, replayed on dictionaries: where each row is, and that none leaves while the window needs it."""

import copy
from dataclasses import dataclass, field

import numpy as np

from pipeline.records import RESERVED, Block, Plan, Refusal, Unique
from pipeline.stages.plan import plan
from pipeline.storage.key_map import DEVICE, DISK, HOST, row_of, tier_of
from pipeline.storage.places import Caps, Places

CHUNK = 4
PLENTY = 1 << 30


def make_unique(number, keys, split="train"):
    block = Block(
        number=number, split=split, epoch=0, first_batch=number, num_batches=1, first_example=number, num_examples=1,
        batch_size=1, first_step=number, closes_split=False,
    )  # fmt: skip
    return Unique(block, np.array(keys, np.uint64), ())


def make_places(device_rows, host_rows, disk_rows=PLENTY, map_bytes=PLENTY):
    return Places(device_rows, host_rows, "clock", Caps(disk_rows, map_bytes, CHUNK))


def state_of(places):
    """All that a plan may change, as bytes."""
    arrays = [places.map._counts, *places.map._tables]
    numbers = [places.tail]
    for slots in (places.device, places.host):
        arrays += [slots.keys_S, slots._free, slots.policy._marked_S]
        numbers += [slots.num_free, slots.policy._hand]
    return [array.tobytes() for array in arrays], numbers


@dataclass
class Tiers:
    """What the stages would have made of the plans: slot or position -> key."""

    device: dict = field(default_factory=dict)
    host: dict = field(default_factory=dict)
    log: dict = field(default_factory=dict)
    live: dict = field(default_factory=dict)
    """key -> (tier, row)"""
    moved_by: dict = field(default_factory=dict)
    """key -> the block whose `write_back` put the row where it is."""

    def tier_keys(self, tier):
        return {key for key, (its_tier, _) in self.live.items() if its_tier == tier}


def check_plan(p, window, tiers, places, room):
    """Replays one plan of a training block, in the order of the stages, and checks every promise."""
    keys = window[0].keys_U.tolist()
    needed = {key for unique in window for key in unique.keys_U.tolist()}
    host_before = tiers.tier_keys(HOST)
    arrivals = check_arrivals(p, window[0], tiers, len(window) - 1)
    assert len(arrivals) <= room.staging_rows
    assert len(p.victim_slots_E) == max(0, len(arrivals) - (len(places.device.keys_S) - len(tiers.device)))
    assert len(p.victim_slots_E) <= room.outgoing_rows

    # train: victims leave, arrivals take slots.
    victims = [tiers.device.pop(slot) for slot in p.victim_slots_E.tolist()]
    assert not needed & set(victims), "the window needs a row that leaves the device"
    for slot, key in zip(p.arrival_slots.tolist(), arrivals, strict=True):
        assert slot not in tiers.device
        tiers.device[slot] = key
    assert [tiers.device[slot] for slot in p.rows_U.tolist()] == keys
    assert len(set(p.rows_U.tolist())) == len(keys)

    # write_back: the host's victims and the device's last ones into the log, the others into the host.
    for slot in p.arrival_host_slots.tolist():
        del tiers.host[slot]
    host_victims = [tiers.host.pop(slot) for slot in p.host_victim_slots.tolist()]
    assert not needed & set(host_victims), "the window needs a row that leaves the host"
    to_host, to_disk = victims[: len(p.host_into)], host_victims + victims[len(p.host_into) :]
    assert p.num_to_disk == len(to_disk)
    for slot, key in zip(p.host_into.tolist(), to_host, strict=True):
        assert 0 <= slot < len(places.host.keys_S)
        assert slot not in tiers.host
        tiers.host[slot] = key
    at = check_log_positions(p, to_disk, tiers, places)

    tiers.live |= {key: (DEVICE, slot) for slot, key in zip(p.arrival_slots.tolist(), arrivals, strict=True)}
    tiers.live |= {key: (HOST, slot) for slot, key in zip(p.host_into.tolist(), to_host, strict=True)}
    tiers.live |= {key: (DISK, position) for position, key in zip(at, to_disk, strict=True)}
    tiers.moved_by |= dict.fromkeys([*victims, *host_victims], window[0].block.number)
    check_moves(p, keys, arrivals, victims, to_host, host_victims)
    if p.moves.padding:
        assert host_before - needed <= set(host_victims), "a chunk is padded though the host had more rows to give"
    if host_victims or len(to_host) < len(victims):
        assert len(to_host) == len(victims) or not host_before - needed - set(host_victims)


def check_arrivals(p, unique, tiers, look_ahead):
    """Each key that is not on the device arrives once, from where it lies: new, from the host, from the disk."""
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
    """Given out once, from the first of a chunk that holds rows of no other block."""
    at = [p.disk_from + n for n in range(len(to_disk))]
    if at:
        assert p.disk_from % CHUNK == 0
        assert not {position // CHUNK for position in at} & {position // CHUNK for position in tiers.log}
        assert places.tail == (at[-1] // CHUNK + 1) * CHUNK
    tiers.log |= dict(zip(at, to_disk, strict=True))
    return at


def check_moves(p, keys, arrivals, victims, to_host, host_victims):
    m = p.moves
    assert m.arrives
    assert m.keys == len(keys)
    assert m.new + m.host_hits + m.disk_hits == len(arrivals)
    assert m.device_hits == len(keys) - len(arrivals)
    assert (m.new, m.host_hits) == (p.num_new, len(p.arrival_host_slots))
    assert m.device_to_host == len(to_host)
    assert m.device_to_disk == len(victims) - len(to_host)
    assert m.host_to_disk == len(host_victims)
    num_to_disk = m.device_to_disk + m.host_to_disk
    assert m.padding == -num_to_disk % CHUNK


def check_places(places, tiers):
    """Map, slots and the log's end say what the replayed tiers say, and the caps are kept."""
    known = [*tiers.live]
    found = places.map.find(np.array(known, np.uint64))
    assert [*zip(tier_of(found).tolist(), row_of(found).tolist(), strict=True)] == [*tiers.live.values()]
    assert len(places.map) == len(known)
    for slots, held, tier in ((places.device, tiers.device, DEVICE), (places.host, tiers.host, HOST)):
        assert slots.keys_S.tolist() == [held.get(slot, int(RESERVED)) for slot in range(len(slots.keys_S))]
        assert slots.num_used == len(held) == len(tiers.tier_keys(tier))
    assert end_of_log(places, len(tiers.device), len(tiers.host)) <= places.caps.disk_rows
    assert places.map.num_bytes <= places.caps.map_bytes


def check_evaluation(p, unique, tiers, look_ahead):
    """Rows are used from the device or from staging; nothing moves."""
    arrivals = check_arrivals(p, unique, tiers, look_ahead)
    rows = [tiers.device[row] if row >= 0 else arrivals[-1 - row] for row in p.rows_U.tolist()]
    assert rows == unique.keys_U.tolist()
    assert [len(a) for a in (p.arrival_slots, p.victim_slots_E, p.host_into, p.host_victim_slots)] == [0] * 4
    assert p.num_to_disk == 0
    assert not p.moves.arrives
    assert p.moves.new + p.moves.host_hits + p.moves.disk_hits == len(arrivals)
    assert p.moves.device_hits == len(p.rows_U) - len(arrivals)


def check_refusal(refusal, window, tiers, places, room):
    """It is due, and its numbers are those of the replayed tiers (of the window; the others have tests below)."""
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
        assert refusal.what == "disk"
        check_disk_refusal(refusal, window, places, room)


def check_disk_refusal(refusal, window, places, room):
    """Were the log longer, this block's rows and then all of device and host would end beyond its cap."""
    longer = copy.deepcopy(places)
    longer.caps = Caps(PLENTY, places.caps.map_bytes, CHUNK)
    assert isinstance(plan(window, longer, room), Plan)
    needed = end_of_log(longer, longer.device.num_used, longer.host.num_used)
    assert needed > places.caps.disk_rows
    assert f"need {needed:,} rows and has {places.caps.disk_rows:,}" in refusal.message


def end_of_log(places, *nums):
    """Where the log ends once these numbers of rows are written, each from a chunk of its own."""
    return places.tail + sum(-(-num // CHUNK) * CHUNK for num in nums)


def replay(trace, splits, look_ahead, places, room):
    """Plans all blocks; one that is refused is left out. Returns what `plan` gave for each."""
    uniques = [make_unique(n, keys, split) for n, (keys, split) in enumerate(zip(trace, splits, strict=True))]
    tiers, outcomes = Tiers(), []
    for i, unique in enumerate(uniques):
        window = uniques[i : i + look_ahead + 1]
        before = state_of(places)
        outcome = plan(window, places, room)
        outcomes.append(outcome)
        if isinstance(outcome, Refusal):
            assert state_of(places) == before
            check_refusal(outcome, window, tiers, places, room)
        elif unique.block.trains:
            check_plan(outcome, window, tiers, places, room)
            check_places(places, tiers)
        else:
            assert state_of(places) == before
            check_evaluation(outcome, unique, tiers, len(window) - 1)
    return outcomes
