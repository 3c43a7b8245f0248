"""Next uses of keys, against a plain search in the list of known blocks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples

from pipeline.kernels.key_table import link_keys, link_keys_reference
from pipeline.records import Block
from pipeline.storage.key_map import DEVICE, DISK, HOST, KeyMap, place
from pipeline.storage.next_uses import NextUses
from pipeline.storage.policies import UNKNOWN_USE, Uses

KEYS = st.lists(st.integers(0, 25), unique=True, max_size=12)


def make_block(batch, num_batches=1):
    return Block(0, "train", 0, batch, num_batches, 0, 1, 1, 0, False, agenda_batch=batch)


def resident(tiers):
    """Key map and uses of keys that lie in these tiers: key n in slot n."""
    key_map = KeyMap()
    keys_U, places = np.arange(len(tiers), dtype=np.uint64), np.arange(len(tiers))
    key_map.insert(keys_U, np.array([place(tier, slot) for tier, slot in zip(tiers, places, strict=True)], np.int64))
    return key_map, Uses.none(len(tiers)), Uses.none(len(tiers))


@examples(24, 300)
@given(
    st.lists(st.tuples(KEYS, st.integers(1, 3)), min_size=1, max_size=14),
    st.lists(st.sampled_from([DEVICE, HOST, DISK]), min_size=26, max_size=26), st.integers(0, 5),
)  # fmt: skip
def test_next_uses_are_those_that_a_search_finds(blocks, tiers, reach):
    key_map, device, host = resident(tiers)
    next_uses = NextUses(key_map, device, host)
    batches = np.cumsum([0, *(num for _, num in blocks)]).tolist()
    made = [make_block(batches[n], num) for n, (_, num) in enumerate(blocks)]
    known = 0
    for planned in range(len(blocks)):
        while known < min(len(blocks), planned + reach):
            keys_U = np.array(blocks[known][0], np.uint64)
            expected_bytes = next_uses.bytes_with(len(keys_U))
            next_uses.add(made[known], keys_U)
            known += 1
            arrays = (next_uses._next_N, next_uses._newest._table_E2)
            keys = sum(len(block.keys_U) for block in next_uses._known)
            assert expected_bytes == 8 * keys + sum(array.nbytes for array in arrays)
        assert next_uses.end == (batches[known] if known > planned else 0)
        assert next_uses.end_of_first == (batches[planned + 1] if known > planned else None)
        if known > planned:
            next_uses.use_up(made[planned])
            for key in range(26):
                later = [n for n in range(planned + 1, known) if key in blocks[n][0]]
                expected = batches[later[0]] if later else UNKNOWN_USE
                seen = any(key in blocks[n][0] for n in range(known))
                for tier, uses in ((DEVICE, device), (HOST, host)):
                    if tiers[key] == tier and seen:
                        assert uses.next_N[key] == expected
                    elif tiers[key] != tier:
                        assert uses.next_N[key] == UNKNOWN_USE
        else:
            known = planned + 1


@examples(24, 300)
@given(st.lists(st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=9), max_size=6))
def test_the_links_match_the_reference(arrays):
    table_E2, newest, first = np.full((128, 2), -1, np.int64), {}, 0
    for keys in arrays:
        earlier_U, num_before = np.empty(len(keys), np.int64), len(newest)
        added = link_keys(np.array(keys, np.uint64), first, table_E2, earlier_U)
        assert earlier_U.tolist() == link_keys_reference(keys, first, newest)
        assert added == len(newest) - num_before
        first += len(keys)


def test_the_table_forgets_keys_of_blocks_that_are_used_up():
    next_uses = NextUses(*resident([]))
    for n in range(60):
        next_uses.add(make_block(n), np.arange(100 * n, 100 * n + 100, dtype=np.uint64))
        next_uses.use_up(make_block(n))
    assert next_uses.bytes_with(0) < 16 * 1024 + 4 * 300


def test_known_blocks_before_a_batch_can_be_forgotten():
    next_uses = NextUses(*resident([]))
    for n in range(5):
        next_uses.add(make_block(2 * n, 2), np.arange(n, n + 3, dtype=np.uint64))
    next_uses.forget_before(5)
    assert next_uses.end_of_first == 6
    next_uses.forget_before(100)
    assert next_uses.end == 0
    assert next_uses.end_of_first is None
