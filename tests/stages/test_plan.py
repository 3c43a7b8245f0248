"""plan() alone, on made-up working sets; `plan_replay` is the oracle."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples, some
from support.oracle.plan_replay import PLENTY, make_places, make_unique, replay, state_of
from support.runs.sharded_tables import SOME, TABLES, in_shards

from pipeline.messages.sizes import format_size_down, format_size_up
from pipeline.records import Plan, Refusal
from pipeline.stages.plan import FILL_SHARE, RingRows, plan
from pipeline.storage.chunks import Chunks
from pipeline.storage.key_map import KeyMap, bytes_for
from pipeline.storage.places import Caps, Places
from pipeline.storage.policies import POLICIES
from pipeline.storage.shards import Shards

KEYS = st.one_of(st.integers(0, 12), st.integers(0, 40), st.sampled_from([0, 64, 128, 2**32 - 2]))
TRACES = st.lists(st.lists(KEYS, unique=True, max_size=12), min_size=1, max_size=14)


@examples(24, 250)
@given(
    TRACES, st.integers(0, 3), st.integers(6, 40), st.one_of(st.sampled_from([0, 1]), st.integers(2, 30)),
    st.integers(4, 14), st.integers(3, 14), st.sampled_from([20, 30, 40, PLENTY]), st.sampled_from([1.1, 2.0, 4.0]),
    st.sampled_from(TABLES), st.tuples(*[st.sampled_from([*POLICIES])] * 2), st.data(),
)  # fmt: skip
def test_every_row_is_kept_and_stays_while_the_window_needs_it(
    trace, look_ahead, device_rows, host_rows, staging, outgoing, disk_chunks, multiple, shards, policies, data
):
    splits = [data.draw(st.sampled_from(["train", "train", "train", "validation"])) for _ in trace]
    commits = {n for n in range(len(trace)) if data.draw(st.sampled_from([True, False, False]))}
    places = make_places(
        device_rows, host_rows, disk_chunks, multiple=multiple, growth=0.0, shards=shards, policies=policies
    )
    # So that growth is refused in short traces, too; after a commit there is room for eight chunks of each shard.
    places.chunks.allowance = data.draw(st.integers(0, 8))
    replay(trace, splits, look_ahead, places, RingRows(staging, outgoing), commits)


def test_the_window_knows_what_arrives_after_a_block_left_out():
    """The first block does not fit; the second brings rows to free slots, of which the third has one."""
    places = make_places(6, 0, growth=0.0)
    trace = [[0, 1, 2, 3, 4, 5, 6], [0, 2], [0, 1, 3, 4, 5]]
    outcomes = replay(trace, ["train"] * 3, 2, places, RingRows(7, 3))
    assert [type(outcome) for outcome in outcomes] == [Refusal, Plan, Plan]
    assert outcomes[2].moves.device_hits == 1


@pytest.mark.parametrize("host_rows", some([0, 1, 2, 7, 50], 0, 7))
@pytest.mark.parametrize(("look_ahead", "growth"), some([(0, 1e6), (2, 1e6), (2, 0.0)], (2, 0.0), several=True))
@pytest.mark.parametrize("shards", TABLES)
def test_a_long_run_loses_no_row(host_rows, look_ahead, growth, shards):
    """Ten times as many keys as slots: all moves happen, again and again, and only commits come between."""
    rng = np.random.default_rng(host_rows)
    trace = [np.unique(rng.zipf(1.2, 25) % 300).tolist() for _ in range(120)]
    splits = ["validation" if n % 10 == 9 else "train" for n in range(120)]
    places = make_places(80, host_rows, growth=growth, shards=shards)
    outcomes = replay(trace, splits, look_ahead, places, RingRows(30, 30), range(7, 120, 31))
    refused = [outcome for outcome in outcomes if isinstance(outcome, Refusal)]
    assert {refusal.what for refusal in refused} <= {"commit"}
    assert bool(refused) == (growth < 1)
    moves = [outcome.moves for outcome in outcomes if isinstance(outcome, Plan)]
    assert sum(m.unchanged for m in moves) > 10, "no row left that had not changed: this shows too little"
    assert sum(m.disk_hits for m in moves) > 0
    assert sum(m.device_to_host for m in moves) > 0 or host_rows == 0
    assert sum(m.host_to_disk for m in moves) > 0 or host_rows == 0
    assert sum(m.device_hits for m in moves) > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_the_number_of_threads_changes_no_plan(policy, monkeypatch):
    """Blocks and slabs of several parts, more rows than slots, with known next uses and evaluations."""
    monkeypatch.setattr("pipeline.storage.plan_threads.MIN_PART", 64)
    rng, num_blocks = np.random.default_rng(1), 14
    trace = [rng.permutation(np.unique(rng.integers(0, 160_000, 25_000))) for _ in range(num_blocks)]
    uniques = [make_unique(n, keys, "test" if n % 7 == 6 else "train") for n, keys in enumerate(trace)]
    uniques = [replace(unique, block=replace(unique.block, agenda_batch=n)) for n, unique in enumerate(uniques)]

    def digest(num_threads):
        places = Places(75_000, 20_000, (policy, policy), Caps(2 * PLENTY, PLENTY), Chunks(64), num_threads)
        found, next_uses = [], places.next_uses
        for n in range(num_blocks - 2):
            for known in range(n + (n > 0) * 3, n + 4):
                if known < num_blocks:
                    next_uses.add(uniques[known].block, rng.permutation(uniques[known].keys_U))
            places.chunks.allowance = PLENTY
            planned = plan(uniques[n : n + 3], places, RingRows(PLENTY, PLENTY))
            assert isinstance(planned, Plan)
            arrays = planned.rows_U, planned.arrival_keys_A, planned.arrival_disk_at, planned.victim_slots_E
            found.append([array.tobytes() for array in (*arrays, planned.host_into, planned.host_victim_slots)])
            found.append([write.at_N.tobytes() for write in planned.disk_writes])
        assert min(planned.moves.device_to_host, planned.moves.disk_hits) > 0, "this shows too little"
        # Without the map's tables, whose unused bytes may be anything.
        return found, state_of(places) | {"map": places.map.find(np.arange(160_000, dtype=np.uint64)).tobytes()}

    first = digest(1)
    assert all(digest(num_threads) == first for num_threads in (2, 3, 16))


@pytest.mark.parametrize("look_ahead", [0, 1, 3])
def test_a_key_is_looked_up_again_only_when_it_arrives(look_ahead):
    """In a table that does not fit, with evaluations between; the places of the window are those of the map."""
    rng, looked_up, arrived, away = np.random.default_rng(look_ahead), [], 0, 0
    places, room = make_places(120, 30), RingRows(40, 40)
    places.chunks.allowance = 10_000
    find = places.map.find
    places.map.find = lambda keys_U: looked_up.append(len(keys_U)) or find(keys_U)
    trace = [np.unique(rng.zipf(1.3, 25) % 400) for _ in range(60)]
    uniques = [make_unique(n, keys, "test" if n % 7 == 6 else "train") for n, keys in enumerate(trace)]
    for n in range(len(uniques)):
        window = uniques[n : n + look_ahead + 1]
        planned = plan(window, places, room)
        assert isinstance(planned, Plan)
        for block in places.window._blocks:
            np.testing.assert_array_equal(block.places_U, find(block.keys_U))
            arrived += int(np.isin(block.keys_U, planned.arrival_keys_A).sum()) * planned.moves.arrives
            away += len(block.away_N)
    assert len(places.map) > 150, "all rows fit, which shows too little"
    again = sum(looked_up) - sum(map(len, trace))
    assert arrived <= again <= arrived + away / 8, "the filter of arrived keys passes one in 16 of the others"
    assert bool(arrived) == bool(look_ahead)


def refused(what, cap, places, room, *windows):
    """The message about the last window, after the others were planned; checks that nothing was changed."""
    *before, last = windows
    for window in before:
        assert isinstance(plan(window, places, room), Plan)
    state = state_of(places)
    refusal = plan(last, places, room)
    assert isinstance(refusal, Refusal)
    assert state_of(places) == state
    assert (refusal.what, refusal.cap) == (what, cap)
    assert refusal.block is last[0].block
    assert f"block {last[0].block.number} " in refusal.message
    assert f"{len(last[0].keys_U):,} keys" in refusal.message
    return refusal.message


def test_a_staging_buffer_too_small_is_refused_naming_the_cap():
    message = refused("window", "staging_rows", make_places(10, 0), RingRows(3, 9), [make_unique(0, range(4))])
    assert "a staging buffer would need 4 rows and has 3" in message
    message = refused("window", "staging_rows", make_places(10, 0), RingRows(3, 9), [make_unique(0, range(4), "test")])
    assert "a staging buffer would need 4 rows and has 3" in message


def test_an_outgoing_buffer_too_small_is_refused_naming_the_cap():
    windows = [make_unique(0, range(6))], [make_unique(1, range(10, 16))]
    message = refused("window", "outgoing_rows", make_places(8, 20), RingRows(9, 3), *windows)
    assert "an outgoing buffer would need 4 rows and has 3" in message


def test_a_device_slab_too_small_is_refused_naming_the_cap():
    message = refused("window", "device_rows", make_places(5, 20), RingRows(9, 9), [make_unique(0, range(6))])
    assert "the device slab would need 6 rows and has 5" in message
    # Four rows that the second block needs stay, and the first one's five find no room next to them.
    window = [make_unique(1, range(10, 15)), make_unique(2, range(4))]
    message = refused("window", "device_rows", make_places(8, 20), RingRows(9, 9), [make_unique(0, range(6))], window)
    assert "the device slab would need 9 rows and has 8" in message


def test_a_disk_too_small_for_a_commit_is_refused():
    """Six rows leave in two chunks; then six slots take two chunks, and what may be merged eight."""
    windows = [make_unique(0, range(6))], [make_unique(1, range(10, 16))]
    message = refused("disk", "disk_chunks", make_places(6, 0, disk_chunks=11), RingRows(9, 9), *windows)
    assert "the disk, with its reserve for a whole commit, would need 12 chunks and has 11" in message
    assert isinstance(plan(windows[1], make_places(6, 0, disk_chunks=12), RingRows(9, 9)), Plan)


def test_growth_beyond_the_allowance_is_refused():
    """Each block of four new keys sends four rows, one chunk, to disk; eight are allowed."""
    windows = [[make_unique(n, range(4 * n, 4 * n + 4))] for n in range(10)]
    message = refused("commit", "", make_places(4, 0), RingRows(9, 9), *windows)
    assert "the log's growth would need 9 chunks and has 8" in message


def test_rows_that_the_next_commit_must_merge_count_as_growth():
    """A chunk of four rows, of which three come back and change: one chunk more that the commit writes."""
    places, room = make_places(8, 0), RingRows(20, 20)
    for number, keys in enumerate([range(8), range(8, 16)]):
        assert isinstance(plan([make_unique(number, keys)], places, room), Plan)
    assert places.chunks.growth == 2
    places.chunks.allowance = 2
    commit_due = plan([make_unique(2, [8, 9])], places, room)
    assert isinstance(commit_due, Plan), "nobody arrives, nothing is merged"
    refusal = plan([make_unique(3, [0, 1, 2])], places, room)
    assert (refusal.what, refusal.needed) == ("commit", 4)


def test_a_key_map_too_large_is_refused_naming_the_cap():
    keys = [*range(12_000)]
    first, needed = bytes_for(0), KeyMap().bytes_with(np.array(keys, np.uint64))
    assert needed > first
    places, room = make_places(12_000, 0, map_bytes=first), RingRows(12_000, 12_000)
    message = refused("map", "map_bytes", places, room, [make_unique(0, keys)])
    assert f"the key map would need {format_size_up(needed)} and has {format_size_down(first)}" in message
    assert isinstance(plan([make_unique(0, keys)], make_places(12_000, 0, map_bytes=needed), room), Plan)


@pytest.mark.parametrize("at", [0, 1])
def test_a_refusal_in_the_window_refuses_its_first_block(at):
    window = [make_unique(0, [1]), make_unique(1, [2])]
    refusal = Refusal(window[at].block, "window", "too small")
    window[at] = refusal
    places = make_places(9, 9)
    before = state_of(places)
    # Whichever block it was, the first of the window is the one that is not planned, and where the next stretch begins.
    assert plan(window, places, RingRows(9, 9)) == replace(refusal, block=window[0].block)
    assert state_of(places) == before


def test_evaluation_neither_creates_nor_moves_a_row():
    """Two on the device, two on the host, two on disk, two unknown."""
    places, room = make_places(2, 2), RingRows(9, 9)
    for number in range(3):
        assert isinstance(plan([make_unique(number, [2 * number, 2 * number + 1])], places, room), Plan)
    before = state_of(places)
    p = plan([make_unique(3, range(8), "validation")], places, room)
    assert state_of(places) == before
    m = p.moves
    assert (m.keys, m.device_hits, m.host_hits, m.disk_hits, m.new) == (8, 2, 2, 2, 2)
    assert sorted(p.rows_U.tolist()) == [-6, -5, -4, -3, -2, -1, 0, 1]
    assert p.arrival_keys_A.tolist()[:2] == [6, 7]


def test_a_block_without_keys_is_planned():
    places = make_places(2, 0)
    p = plan([make_unique(0, [])], places, RingRows(0, 0))
    assert len(p.rows_U) == 0
    assert p.num_to_disk == 0


def test_an_arrival_from_the_host_gives_its_slot_to_a_victim():
    """A full host of one row: the arrival's slot is free for the victim, so nothing goes to disk."""
    places, room = make_places(1, 1), RingRows(2, 2)
    for number, key in enumerate([5, 6]):
        assert isinstance(plan([make_unique(number, [key])], places, room), Plan)
    p = plan([make_unique(2, [5])], places, room)
    assert (p.moves.host_hits, p.moves.device_to_host, p.num_to_disk) == (1, 1, 0)


def test_rows_that_only_change_places_take_no_space_on_disk():
    """Four on the device, four on the host, again and again: the log stays empty."""
    places, room = make_places(4, 4, disk_chunks=10), RingRows(4, 4)
    for number in range(6):
        keys = range(4) if number % 2 else range(4, 8)
        p = plan([make_unique(number, keys)], places, room)
        assert isinstance(p, Plan)
        assert p.num_to_disk == 0
    assert places.chunks.num == 0


def test_a_row_that_changes_after_a_commit_is_written_again():
    """Of four rows with copies two train again; then all leave."""
    trace = [range(4), [0, 1], range(10, 14)]
    places = make_places(4, 0)
    outcomes = replay(trace, ["train"] * 3, 0, places, RingRows(9, 9), commits=[1])
    m = outcomes[-1].moves
    assert (m.device_to_disk, m.unchanged, outcomes[-1].num_to_disk) == (4, 2, 2)


def test_evaluation_keeps_copies_valid():
    places = make_places(4, 0)
    outcomes = replay([range(4), range(4), range(10, 14)], ["train", "test", "train"], 0, places, RingRows(9, 9), [1])
    assert outcomes[-1].moves.unchanged == 4


def test_rows_of_the_host_fill_up_chunks_of_several_shards():
    """A host of 400 rows, and 14 new ones in each block: of 16 shards most get a row, which fills no chunk."""
    trace = [range(14 * n, 14 * n + 14) for n in range(60)]
    padding = {}
    for host_rows in (0, 400):
        places = make_places(14, host_rows, shards=Shards.all(16))
        places.chunks.allowance = 10_000
        moves = [outcome.moves for outcome in replay(trace, ["train"] * 60, 0, places, RingRows(20, 20))]
        to_disk = sum(m.host_to_disk + m.device_to_disk for m in moves)
        padding[host_rows] = sum(m.padding for m in moves) / to_disk
        assert max(m.host_to_disk for m in moves) <= 14 + host_rows // FILL_SHARE, "the host was emptied for it"
    assert padding[0] > 2, "the blocks are too large: this shows too little"
    assert padding[400] < padding[0] / 4


def test_rows_that_leave_for_two_shards_count_as_two_chunks():
    """Two shards, and rows of both leave: two chunks, where one is allowed."""
    places, room = make_places(2, 0, shards=SOME), RingRows(9, 9)
    places.chunks.allowance = 1
    windows = [[make_unique(n, [in_shards(key, SOME) for key in (2 * n, 2 * n + 1)])] for n in range(2)]
    assert isinstance(plan(windows[0], places, room), Plan)
    refusal = plan(windows[1], places, room)
    assert (refusal.what, refusal.needed) == ("commit", 2)
