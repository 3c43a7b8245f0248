"""No policy has more hits than the bound, and some order of evictions reaches it."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples
from support.runs.replayed_runs import BatchTrace, simulate

from pipeline.replay.belady import AllUses, belady, belady_series
from pipeline.replay.capacities import Capacities
from pipeline.storage.policies import POLICIES

SETS = st.lists(st.frozensets(st.integers(0, 5), min_size=1, max_size=3), min_size=1, max_size=7)


def uses_of(working_sets, trains=True):
    uses = AllUses()
    for keys in working_sets:
        uses.add(np.array(sorted(keys), np.uint64), trains)
    return uses


def best(sets, capacity):
    """Hits of the best of all choices of rows that stay, tried one by one."""

    @cache
    def rest(block, held):
        if block == len(sets):
            return 0
        there = sorted(held | sets[block])
        spare = capacity - len(sets[block])
        others = [key for key in there if key not in sets[block]]
        return len(held & sets[block]) + max(
            rest(block + 1, sets[block] | {key for n, key in enumerate(others) if chosen >> n & 1})
            for chosen in range(1 << len(others))
            if chosen.bit_count() <= spare
        )

    return rest(0, frozenset())


@examples(40, 1000)
@given(SETS, st.integers(3, 5))
def test_the_bound_is_the_best_of_all_evictions(sets, capacity):
    bound = belady(uses_of(sets), capacity)
    assert bound.hits == best(tuple(sets), capacity)
    assert bound.keys == sum(map(len, sets))
    assert bound.first == len(frozenset().union(*sets))


@pytest.mark.parametrize("device", sorted(POLICIES))
def test_no_policy_has_more_hits_than_the_bound(device):
    rng = np.random.default_rng(5)
    train, validation = (
        [rng.zipf(1.2, 60).astype(np.uint64) % np.uint64(3000) for _ in range(num)] for num in (60, 12)
    )
    trace = BatchTrace({"train": train, "validation": validation}, epochs=2)
    uses = AllUses()
    for block in trace.agenda.blocks(2):
        uses.add(trace.keys(block)[0], block.trains)
    for host in sorted(POLICIES):
        totals = simulate(trace, Capacities(250, 150), (device, host), look_ahead=1, block_batches=2)
        counts = totals.counts()
        device_hits, host_hits = (sum(counts[of][f"{tier}_hits"] for of in counts) for tier in ("device", "host"))
        on_device, together = belady_series(uses, 250), belady(uses, 400)
        assert device_hits <= sum(bound.hits for bound in on_device)
        assert device_hits + host_hits <= together.hits
        assert together.hits + together.first <= together.keys == sum(counts[of]["keys"] for of in counts)


def test_a_cache_of_all_keys_misses_first_uses_alone():
    uses = uses_of([{1, 2}, {2, 3}, {1, 3}], trains=False)
    bound = belady(uses, 3)
    assert (bound.keys, bound.hits, bound.first) == (6, 3, 3)
    assert np.isnan(belady(AllUses(), 3).hit_rate)
