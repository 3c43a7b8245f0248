"""The bound on hits: no policy has more, and some order of evictions reaches it."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples

from benchmarks.policies.__main__ import moves_of
from benchmarks.policies.belady import belady_hits, uses_of
from pipeline.storage.policies import POLICIES

SETS = st.lists(st.frozensets(st.integers(0, 5), min_size=1, max_size=3), min_size=1, max_size=7)


def best(sets, capacity):
    """Hits of the best of all choices of rows that stay, tried one by one."""

    @cache
    def rest(block, held):
        if block == len(sets):
            return 0
        spare = capacity - len(sets[block])
        others = sorted(held - sets[block])
        return len(held & sets[block]) + max(
            rest(block + 1, sets[block] | {key for n, key in enumerate(others) if chosen >> n & 1})
            for chosen in range(1 << len(others))
            if chosen.bit_count() <= spare
        )

    return rest(0, frozenset())


@examples(16, 1000)
@given(SETS, st.integers(3, 5))
def test_the_bound_is_the_best_of_all_evictions(sets, capacity):
    uses = uses_of([np.array(sorted(keys), np.uint64) for keys in sets])
    assert sum(belady_hits(uses, capacity)) == best(tuple(sets), capacity)
    assert uses.num_keys == len(frozenset().union(*sets))


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_no_policy_has_more_hits_than_the_bound(policy):
    rng = np.random.default_rng(5)
    blocks = [np.unique(rng.zipf(1.2, 60).astype(np.uint64) % np.uint64(3000)) for _ in range(100)]
    moves, uses = moves_of(blocks, 250, 150, (policy, policy), known=16), uses_of(blocks)
    assert 0 < sum(m.device_hits for m in moves) <= sum(belady_hits(uses, 250))
    assert sum(m.device_hits + m.host_hits for m in moves) <= sum(belady_hits(uses, 400))
