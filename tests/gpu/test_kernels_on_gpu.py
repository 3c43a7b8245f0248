"""Every CUDA kernel on a real GPU at real sizes, again and again: a race shows now and then."""

import numpy as np
import pytest
from support.data.batches import make_batch
from support.gpu import on_gpu, twins

from pipeline.kernels.row_rules import RULE_NUMBERS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(on_gpu.reason()), reason=on_gpu.reason() or "there is a GPU")]
TIMES = range(3)


@pytest.fixture
def rng():
    return np.random.default_rng(6)


SIZES = ((9, 0, 1), (9, 6, 3), (3_000_000, 1_000_000, 11), (50, 40, 70))
CATCHES_UP = [kind for kind in RULE_NUMBERS if kind != "ftrl"]
SMALL = [
    ("rows", 500, 300, 38), ("rows", 500, 300, 53), ("narrow", 500, 300, 11),
    *(("update", kind, 500, 300, 11) for kind in RULE_NUMBERS), ("clip", 300, 11, (0.01, 1e-4)),
    ("clear_unused", 500, 300), *(("catch_up", kind, 500, 300, 11) for kind in CATCHES_UP),
]  # fmt: skip
"""Check of `twins`, and its arguments."""
LARGE = [
    *(("rows", *size) for size in ((5, 0, 4), (11, 9, 7), (4_000_000, 1_500_000, 38), (999, 700, 53))),
    *(("narrow", *size) for size in ((9, 0, 1), (11, 9, 70), (2_000_000, 1_000_000, 17))),
    *(("update", kind, *size) for kind in RULE_NUMBERS for size in SIZES),
    *(("catch_up", kind, *size) for kind in CATCHES_UP for size in SIZES),
]


def test_every_kernel_matches_its_cpu_twin_at_small_sizes(rng):
    """Every kernel at small sizes, for compute-sanitizer; without it, one more comparison."""
    for name, *args in SMALL:
        getattr(twins, f"check_{name}")(on_gpu, rng, *args)
    twins.check_unique(on_gpu, twins.zipf_keys(rng, 3000, 500), 600)
    for batch in twins.small_batches(rng):
        twins.check_pool(on_gpu, rng, batch, 10, 1)
        twins.check_segment_sum(on_gpu, rng, batch, 10, 1, True)
        twins.check_index(on_gpu, batch, 7)
        twins.check_count_examples(on_gpu, batch)


@pytest.mark.parametrize("case", LARGE, ids=str)
def test_a_kernel_has_the_bits_of_its_cpu_twin(rng, case):
    name, *args = case
    for _ in TIMES:
        getattr(twins, f"check_{name}")(on_gpu, rng, *args)


@pytest.mark.parametrize("first_order", [0, 1])
def test_pooling_gives_the_bits_of_the_cpu(rng, first_order):
    for batch in [*twins.small_batches(rng), make_batch(1, 65_536, 20, 3, 200_000)]:
        twins.check_pool(on_gpu, rng, batch, 10, first_order)


@pytest.mark.parametrize("num_keys", [3, 1000, 500_000])
@pytest.mark.parametrize("mean", [False, True])
def test_sums_are_taken_in_the_order_of_the_cpu(rng, num_keys, mean):
    """Also with keys that are in every example."""
    batch = make_batch(2, 131_072, 9, 1, num_keys)
    for _ in TIMES:
        twins.check_segment_sum(on_gpu, rng, batch, 10, 1, mean, twins.fast_sources(batch))


@pytest.mark.parametrize("dim", [1, 3, 16, 33, 64])
def test_sums_of_small_batches_are_taken_in_the_order_of_the_cpu(rng, dim):
    for batch in twins.small_batches(rng):
        twins.check_segment_sum(on_gpu, rng, batch, dim, 1, True)


@pytest.mark.parametrize(("size", "num_keys"), [(1, 1), (1000, 1), (5000, 10**9), (30_000_000, 2_000_000)])
def test_unique_keys_come_in_the_order_of_first_appearance(rng, size, num_keys):
    keys = twins.zipf_keys(rng, size, num_keys)
    for _ in TIMES:
        twins.check_unique(on_gpu, keys, max(1, size // 2) if size > 5000 else size)


def test_an_array_of_distinct_keys_keeps_every_key_in_order(rng):
    keys = rng.permutation(20_000_000).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    twins.check_unique(on_gpu, keys, len(keys))


def test_more_keys_than_the_table_has_room_for_are_reported():
    keys = np.arange(1, 4_000_001, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for limit in (1, 1000, 2_000_000):
        twins.check_unique(on_gpu, keys, limit)


def test_a_batch_is_indexed_as_on_the_cpu(rng):
    for shift, batch in enumerate([*twins.small_batches(rng), *twins.batches_with_lists(rng)]):
        twins.check_index(on_gpu, batch, shift)
    for _ in TIMES:
        twins.check_index(on_gpu, make_batch(4, 131_072, 24, 2, 300_000), 1_000_000)
