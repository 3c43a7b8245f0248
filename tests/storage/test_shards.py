"""Which shard a key belongs to, and who has which: against the definition, and against every way to deal them."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.storage.shards import MAX_SHARDS, deal_shards, shard_folder, shard_of

KEYS = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 2**32 - 1, 2**32, 2**63, 2**64 - 2, 2**64 - 1]))


@settings(deadline=None)
@given(st.lists(KEYS, max_size=20), st.integers(1, MAX_SHARDS))
def test_the_high_bits_of_a_key_choose_its_shard(keys, num):
    shards = shard_of(np.array(keys, np.uint64), num)
    assert shards.dtype == np.int64
    assert shards.tolist() == [key // 2**32 * num // 2**32 for key in keys]


@pytest.mark.parametrize("num", [1, 3, 16, 1000])
def test_hashed_keys_are_spread_evenly_over_shards(num):
    keys = np.random.default_rng(0).integers(0, 2**64, 1000 * num, np.uint64)
    counts = np.bincount(shard_of(keys, num), minlength=num)
    assert len(counts) == num
    assert counts.min() > 800
    assert counts.max() < 1200


def test_shard_folders_sort_by_name_and_a_single_shard_has_none():
    path = Path("table.zarr")
    assert shard_folder(path, 0, 1) == path
    assert [shard_folder(path, shard, 16).name for shard in (0, 3, 15)] == ["00", "03", "15"]
    assert shard_folder(path, 3, 10).name == "3"


@st.composite
def tables(draw, max_shards=6, max_workers=3):
    num, workers = draw(st.integers(1, max_shards)), [f"w{n}" for n in range(draw(st.integers(1, max_workers)))]
    reach = {worker: draw(st.sets(st.integers(0, num - 1))) for worker in workers}
    owners = [draw(st.sampled_from([*workers, "gone"])) for _ in range(num)]
    before = {name: [s for s in range(num) if owners[s] == name] for name in [*workers, "gone"]}
    return num, workers, reach, draw(st.sampled_from([before, None]))


def cost(dealt, before):
    """How uneven it is, then how many shards did not stay where they were."""
    moved = sum(len(set(shards) - set((before or {}).get(worker, ()))) for worker, shards in dealt.items())
    return sum(len(shards) ** 2 for shards in dealt.values()), moved


@settings(deadline=None, max_examples=150)
@given(tables())
def test_shards_are_dealt_evenly_and_rarely_moved(table):
    num, workers, reach, before = table
    lost = [str(s) for s in range(num) if not any(s in reached for reached in reach.values())]
    if lost:
        with pytest.raises(ValueError, match=f"shards {', '.join(lost)} of {num}: "):
            deal_shards(num, workers, reach, before)
        return
    dealt = deal_shards(num, workers, reach, before)
    assert list(dealt) == workers
    assert sorted(s for shards in dealt.values() for s in shards) == list(range(num))
    assert all(set(shards) <= set(reach[worker]) and list(shards) == sorted(shards) for worker, shards in dealt.items())
    choices = product(*([w for w in workers if s in reach[w]] for s in range(num)))
    ways = ({w: [s for s in range(num) if choice[s] == w] for w in workers} for choice in choices)
    assert cost(dealt, before) == min(cost(way, before) for way in ways)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 8))
def test_workers_that_come_or_go_move_few_shards(num, few, many):
    def dealt(count, before=None):
        workers = [f"w{n}" for n in range(count)]
        return deal_shards(num, workers, dict.fromkeys(workers, range(num)), before)

    one = dealt(few)
    other = dealt(many, one)
    for counts in ([len(shards) for shards in way.values()] for way in (one, other)):
        assert max(counts) - min(counts) <= 1
    assert other == dealt(many, one)
    if few == many:
        assert other == one
    moved = sum(len(set(shards) - set(one.get(worker, ()))) for worker, shards in other.items())
    # Those of workers that left, and what brings new ones up to an even share.
    assert moved <= max(sum(len(one[worker]) for worker in one.keys() - other.keys()),
                        sum(-(-num // many) for worker in other.keys() - one.keys()))  # fmt: skip
