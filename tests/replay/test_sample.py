"""A sample of the keys gives the hit rates of all keys, and an error for them."""

import numpy as np
import pytest
from support.depth import some
from support.runs.replayed_runs import BatchTrace, simulate

from pipeline.replay.belady import Bound
from pipeline.replay.capacities import Capacities
from pipeline.replay.sample import PARTS, Sample, estimate_counts, hit_shares, mix, scale_bound
from pipeline.replay.trace import shards_of

NUM_KEYS = 60_000


def zipf_trace(num_batches=60, per_batch=4000, shards=None, seed=3):
    rng = np.random.default_rng(seed)
    cumulative = np.cumsum(1 / np.arange(1, NUM_KEYS + 1) ** 1.05)
    names = rng.integers(0, 1 << 63, NUM_KEYS).astype(np.uint64)
    draw = lambda: names[np.searchsorted(cumulative, rng.random(per_batch) * cumulative[-1])]  # noqa: E731
    splits = {"train": [draw() for _ in range(num_batches)], "validation": [draw() for _ in range(4)]}
    return BatchTrace(splits, epochs=2, **({"shards": shards} if shards else {}))


@pytest.mark.parametrize(
    ("share", "policies", "world"),
    some(
        [(1 / 8, ("clock", "clock"), 1), (1 / 8, ("lru", "lfu"), 2), (1 / 4, ("lfu_aged", "lru"), 1)],
        (1 / 8, ("lru", "lfu"), 2), several=True,
    ),
)  # fmt: skip
def test_a_sample_is_within_two_points_of_the_whole(share, policies, world):
    trace = zipf_trace(shards=shards_of(8, world))
    capacities = Capacities(device_rows=9000 // world, host_rows=9000 // world, chunk_rows=256)
    pace = {"look_ahead": 1, "block_batches": 2, "every_blocks": 10}
    whole = simulate(trace, capacities, policies, **pace).counts()
    parts = Sample(trace, share).parts
    sampled = [(part, simulate(part, capacities.sampled(share / PARTS), policies, **pace)) for part in parts]
    estimated, errors = estimate_counts(sampled)
    for tier, exact in hit_shares(whole).items():
        assert hit_shares(estimated)[tier] == pytest.approx(exact, abs=0.02)
        assert errors[tier] < 0.02
    for of, counts in whole.items():
        assert estimated[of]["keys"] == counts["keys"]
        assert estimated[of]["disk_hits"] == pytest.approx(counts["disk_hits"], rel=0.1, abs=500)


def test_parts_of_all_keys_are_distinct_and_complete():
    trace = zipf_trace(num_batches=2)
    block = next(trace.agenda.blocks(2))
    sample = Sample(trace, 1.0)
    parts = sample.parts
    keys = np.concatenate([part.keys(block)[0] for part in parts])
    assert sorted(keys.tolist()) == sorted(trace.keys(block)[0].tolist())
    assert sample.num_keys(block) == len(keys)
    sizes = [len(part.keys(block)[0]) for part in parts]
    assert max(sizes) < 1.2 * min(sizes)
    half = Sample(trace, 0.5)
    assert 0.4 < sum(len(part.keys(block)[0]) for part in half.parts) / half.num_keys(block) < 0.6


def test_the_mixed_hash_is_that_of_splitmix64():
    # The first number of the generator with seed 0.
    assert mix(np.array([0], np.uint64)).tolist() == [0xE220A8397B1DCDAF]


def test_what_a_sample_has_too_little_of_counts_as_hits():
    assert scale_bound(Bound(keys=90, hits=40, first=20), 0.1, 1000) == Bound(1000, 500, 200)
