"""Plans, replayed on dictionaries: where each row is, and that none leaves while the window needs it."""

import copy
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.records import RESERVED, Block, Plan, Refusal, Unique
from pipeline.stages.plan import Room, plan
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


KEYS = st.one_of(st.integers(0, 12), st.integers(0, 40), st.sampled_from([0, 64, 128, 2**64 - 2]))
TRACES = st.lists(st.lists(KEYS, unique=True, max_size=12), min_size=1, max_size=14)


@settings(deadline=None, max_examples=250)
@given(
    TRACES, st.integers(0, 3), st.integers(6, 40), st.one_of(st.sampled_from([0, 1]), st.integers(2, 30)),
    st.integers(4, 14), st.integers(3, 14), st.sampled_from([20, 40, 80, PLENTY]), st.data(),
)  # fmt: skip
def test_a_row_is_lost_or_leaves_while_the_window_needs_it(
    trace, look_ahead, device_rows, host_rows, staging, outgoing, disk_rows, data
):
    splits = [data.draw(st.sampled_from(["train", "train", "train", "validation"])) for _ in trace]
    replay(trace, splits, look_ahead, make_places(device_rows, host_rows, disk_rows), Room(staging, outgoing))


@pytest.mark.parametrize("host_rows", [0, 1, 2, 7, 50])
@pytest.mark.parametrize("look_ahead", [0, 2])
def test_a_long_run_loses_a_row(host_rows, look_ahead):
    """Ten times as many keys as slots: all moves happen, again and again, and nothing is refused."""
    rng = np.random.default_rng(host_rows)
    trace = [np.unique(rng.zipf(1.2, 25) % 300).tolist() for _ in range(120)]
    splits = ["validation" if n % 10 == 9 else "train" for n in range(120)]
    outcomes = replay(trace, splits, look_ahead, make_places(80, host_rows), Room(30, 30))
    assert all(isinstance(outcome, Plan) for outcome in outcomes)
    moves = [outcome.moves for outcome in outcomes]
    assert sum(m.disk_hits for m in moves) > 0
    assert sum(m.device_to_host for m in moves) > 0 or host_rows == 0
    assert sum(m.host_to_disk for m in moves) > 0 or host_rows == 0
    assert sum(m.device_hits for m in moves) > 0


@settings(deadline=None, max_examples=30)
@given(TRACES, st.integers(0, 2))
def test_the_same_trace_is_planned_otherwise_the_second_time(trace, look_ahead):
    def run():
        return replay(trace, ["train"] * len(trace), look_ahead, make_places(30, 5), Room(12, 12))

    for one, other in zip(run(), run(), strict=True):
        assert type(one) is type(other)
        if isinstance(one, Plan):
            names = ("rows_U", "arrival_keys_A", "arrival_slots", "victim_slots_E", "host_into", "host_victim_slots")
            assert all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)
            assert one.disk_from == other.disk_from


def refused(what, places, room, *windows):
    """The refusal of the last window, after the others were planned; checks that it changed nothing."""
    *before, last = windows
    for window in before:
        assert isinstance(plan(window, places, room), Plan)
    state = state_of(places)
    refusal = plan(last, places, room)
    assert isinstance(refusal, Refusal)
    assert state_of(places) == state
    assert refusal.what == what
    assert refusal.block is last[0].block
    assert f"block {last[0].block.number} " in refusal.message
    assert f"{len(last[0].keys_U):,} keys" in refusal.message
    return refusal.message


def test_a_staging_buffer_too_small_is_not_refused_or_not_explained():
    message = refused("window", make_places(10, 0), Room(3, 9), [make_unique(0, range(4))])
    assert "a staging buffer would need 4 rows and has 3; raise storage.host" in message
    message = refused("window", make_places(10, 0), Room(3, 9), [make_unique(0, range(4), "test")])
    assert "a staging buffer would need 4 rows and has 3; raise storage.host" in message


def test_an_outgoing_buffer_too_small_is_not_refused_or_not_explained():
    windows = [make_unique(0, range(6))], [make_unique(1, range(10, 16))]
    message = refused("window", make_places(8, 20), Room(9, 3), *windows)
    assert "an outgoing buffer would need 4 rows and has 3; raise storage.device" in message


def test_a_device_slab_too_small_is_not_refused_or_not_explained():
    message = refused("window", make_places(5, 20), Room(9, 9), [make_unique(0, range(6))])
    assert "the device slab would need 6 rows and has 5; raise storage.device" in message
    # Four rows that the second block needs stay, and the first one's five find no room beside them.
    window = [make_unique(1, range(10, 15)), make_unique(2, range(4))]
    message = refused("window", make_places(8, 20), Room(9, 9), [make_unique(0, range(6))], window)
    assert "the device slab would need 9 rows and has 8; raise storage.device" in message


def test_a_log_too_short_for_all_rows_is_not_refused_or_not_explained():
    """Six rows on the device take two chunks of four at the end, and six more, without a host, two of their own."""
    windows = [make_unique(0, range(6))], [make_unique(1, range(10, 16))]
    places = make_places(6, 0, disk_rows=15)
    message = refused("disk", places, Room(9, 9), *windows)
    assert "would need 16 rows and has 15; raise storage.disk" in message
    assert isinstance(plan(windows[1], make_places(6, 0, disk_rows=16), Room(9, 9)), Plan)


def test_a_map_too_large_is_not_refused_or_not_explained():
    """200 keys of one partition, which then takes 512 entries instead of 256."""
    keys = [64 * n for n in range(200)]
    first = 64 * 256 * 16
    message = refused("map", make_places(300, 0, map_bytes=first), Room(300, 300), [make_unique(0, keys)])
    assert f"the key map would need {first + 256 * 16:,} bytes and has {first:,}; raise storage.map" in message
    places = make_places(300, 0, map_bytes=first + 256 * 16)
    assert isinstance(plan([make_unique(0, keys)], places, Room(300, 300)), Plan)


@pytest.mark.parametrize("at", [0, 1])
def test_a_block_of_the_window_that_could_not_be_read_is_planned(at):
    window = [make_unique(0, [1]), make_unique(1, [2])]
    refusal = Refusal(window[at].block, "window", "too small")
    window[at] = refusal
    places = make_places(9, 9)
    before = state_of(places)
    # Whichever block it was, the first of the window is the one that is not planned, and where the next stretch begins.
    assert plan(window, places, Room(9, 9)) == replace(refusal, block=window[0].block)
    assert state_of(places) == before


def test_evaluation_creates_or_moves_a_row():
    """Two on the device, two on the host, two on disk, two unknown."""
    places, room = make_places(2, 2), Room(9, 9)
    for number in range(3):
        assert isinstance(plan([make_unique(number, [2 * number, 2 * number + 1])], places, room), Plan)
    before = state_of(places)
    p = plan([make_unique(3, range(8), "validation")], places, room)
    assert state_of(places) == before
    m = p.moves
    assert (m.keys, m.device_hits, m.host_hits, m.disk_hits, m.new) == (8, 2, 2, 2, 2)
    assert sorted(p.rows_U.tolist()) == [-6, -5, -4, -3, -2, -1, 0, 1]
    assert p.arrival_keys_A.tolist()[:2] == [6, 7]


def test_a_block_without_keys_fails():
    places = make_places(2, 0)
    p = plan([make_unique(0, [])], places, Room(0, 0))
    assert len(p.rows_U) == 0
    assert p.num_to_disk == 0


def test_a_key_that_the_same_block_brings_back_from_the_host_gives_its_slot_to_a_victim():
    """A full host of one row: the arrival's slot is free for the victim, so nothing goes to disk."""
    places, room = make_places(1, 1), Room(2, 2)
    for number, key in enumerate([5, 6]):
        assert isinstance(plan([make_unique(number, [key])], places, room), Plan)
    p = plan([make_unique(2, [5])], places, room)
    assert (p.moves.host_hits, p.moves.device_to_host, p.num_to_disk) == (1, 1, 0)


def test_rows_that_only_change_places_are_counted_twice_at_the_end_of_the_log():
    """Four on the device, four on the host, again and again: two chunks of four are all that the end takes."""
    places, room = make_places(4, 4, disk_rows=8), Room(4, 4)
    for number in range(6):
        keys = range(4) if number % 2 else range(4, 8)
        p = plan([make_unique(number, keys)], places, room)
        assert isinstance(p, Plan)
        assert p.num_to_disk == 0
    assert places.tail == 0
