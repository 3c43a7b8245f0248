"""Every CUDA kernel in the simulator, at small sizes, against its twin."""

import numpy as np
import pytest
from support.gpu.grids import small_grids  # noqa: F401
from support.gpu.late_gpu import There
from support.gpu.twins import (
    batches_with_lists,
    check_catch_up,
    check_clear_unused,
    check_clip,
    check_count_examples,
    check_hashing,
    check_index,
    check_narrow,
    check_pool,
    check_rows,
    check_segment_sum,
    check_unique,
    check_update,
    small_batches,
    zipf_keys,
)

from pipeline.kernels.row_rules import RULE_NUMBERS
from pipeline.kernels.rows import gather_rows


class Simulator:
    @staticmethod
    def to_device(array):
        return array.copy().view(There)

    @staticmethod
    def back(array):
        return np.asarray(array)


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.mark.filterwarnings("ignore:.*overflow encountered in scalar multiply:RuntimeWarning")
@pytest.mark.parametrize("size", [0, 1, 37])
def test_a_value_has_the_same_key_on_a_gpu(rng, size):
    check_hashing(Simulator, rng, size)


@pytest.mark.parametrize(("rows", "words"), [(0, 4), (1, 1), (5, 7), (9, 8)])
def test_a_gpu_moves_rows_whole_and_to_the_same_places(rng, rows, words):
    check_rows(Simulator, rng, 11, rows, words)


@pytest.mark.parametrize("slot", [-1, 3])
def test_the_simulator_refuses_slots_that_do_not_exist(slot):
    slab, at, out = np.zeros((3, 4), np.uint32), np.array([slot], np.int32), np.zeros((1, 4), np.uint32)
    with pytest.raises(IndexError):
        gather_rows(*map(Simulator.to_device, (slab, at, out)))


@pytest.mark.parametrize("first_order", [0, 1])
def test_a_gpu_pools_to_the_same_bits(rng, first_order):
    for batch in small_batches(rng):
        if batch.num_examples < 10:
            check_pool(Simulator, rng, batch, 3, first_order)


@pytest.mark.parametrize("first_order", [0, 1])
@pytest.mark.parametrize("mean", [False, True])
def test_a_gpu_sums_in_the_same_order(rng, first_order, mean):
    for batch in small_batches(rng):
        check_segment_sum(Simulator, rng, batch, 1 + first_order, first_order, mean)


@pytest.mark.parametrize("kind", RULE_NUMBERS)
@pytest.mark.parametrize(("rows", "width"), [(0, 1), (1, 1), (6, 3), (5, 4)])
def test_a_gpu_updates_to_the_same_bits(rng, kind, rows, width):
    check_update(Simulator, rng, kind, 9, rows, width)


@pytest.mark.parametrize(("rows", "width"), [(0, 1), (5, 3), (6, 11)])
def test_a_gpu_rounds_to_the_same_bits(rng, rows, width):
    check_narrow(Simulator, rng, 9, rows, width)


@pytest.mark.parametrize("clip", [(1.0, 1e-5), (0.01, 1e-4), (1e-3, 0.0)])
def test_a_gpu_clips_the_same_rows_by_the_same_factor(rng, clip):
    for width in (1, 2, 5):
        check_clip(Simulator, rng, 7, width, clip)


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
@pytest.mark.parametrize(("rows", "width"), [(0, 1), (4, 1), (5, 4)])
def test_a_gpu_catches_up_to_the_same_bits(rng, kind, rows, width):
    check_catch_up(Simulator, rng, kind, 6, rows, width)


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_a_gpu_clears_the_same_unused_weights(rng, rows):
    check_clear_unused(Simulator, rng, 9, rows)


def test_a_gpu_counts_the_same_examples(rng):
    for batch in small_batches(rng):
        check_count_examples(Simulator, batch)


@pytest.mark.parametrize("size", [0, 1, 2, 60, 300])
@pytest.mark.parametrize("num_keys", [1, 5, 1000])
def test_a_gpu_finds_the_same_unique_keys_in_the_same_order(rng, size, num_keys):
    check_unique(Simulator, zipf_keys(rng, size, num_keys), max(1, size))


@pytest.mark.parametrize("limit", [1, 4, 19])
def test_more_keys_than_the_table_has_room_for_are_reported(limit):
    keys = np.arange(1, 21, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    check_unique(Simulator, np.repeat(keys, 2), limit)


def test_keys_that_meet_in_the_table_are_kept_apart():
    """The low bits, by which the table is entered, are the same for all."""
    check_unique(Simulator, np.array([1, 2, 3, 2, 1, 7], np.uint64) << np.uint64(32), 6)


def test_a_batch_is_indexed_the_same_on_a_gpu(rng):
    for shift, batch in enumerate([*small_batches(rng), *batches_with_lists(rng)]):
        check_index(Simulator, batch, shift)
