"""Every CUDA kernel in the simulator, at small sizes, against its twin."""

import numpy as np
import pytest
from support.gpu import twins
from support.gpu.grids import small_grids  # noqa: F401
from support.gpu.late_gpu import There

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


CATCHES_UP = ("sgd", "adagrad", "rowwise_adagrad", "adam")
CASES = [
    *(("rows", 11, rows, words) for rows, words in ((0, 4), (1, 1), (5, 7), (9, 8))),
    *(("update", kind, 9, *size) for kind in RULE_NUMBERS for size in ((0, 1), (1, 1), (6, 3), (5, 4))),
    *(("narrow", 9, *size) for size in ((0, 1), (5, 3), (6, 11))),
    *(("clip", 7, width, clip) for width in (1, 2, 5) for clip in ((1.0, 1e-5), (0.01, 1e-4), (1e-3, 0.0))),
    *(("catch_up", kind, 6, *size) for kind in CATCHES_UP for size in ((0, 1), (4, 1), (5, 4))),
    *(("clear_unused", 9, rows) for rows in (0, 1, 7)),
]
"""Check of `twins`, and its arguments."""
OF_BATCHES = [
    *(("pool", 3, first_order) for first_order in (0, 1)),
    *(("segment_sum", 1 + first_order, first_order, mean) for first_order in (0, 1) for mean in (False, True)),
]


@pytest.mark.filterwarnings("ignore:.*overflow encountered in scalar multiply:RuntimeWarning")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_kernel_has_the_bits_of_its_cpu_twin(rng, case):
    name, *args = case
    getattr(twins, f"check_{name}")(Simulator, rng, *args)


@pytest.mark.parametrize("case", OF_BATCHES, ids=str)
def test_a_kernel_of_a_batch_has_the_bits_of_its_cpu_twin(rng, case):
    name, *args = case
    for batch in twins.small_batches(rng):
        if name != "pool" or batch.num_examples < 10:
            getattr(twins, f"check_{name}")(Simulator, rng, batch, *args)


@pytest.mark.parametrize("slot", [-1, 3])
def test_the_simulator_refuses_slots_that_do_not_exist(slot):
    slab, at, out = np.zeros((3, 4), np.uint32), np.array([slot], np.int32), np.zeros((1, 4), np.uint32)
    with pytest.raises(IndexError):
        gather_rows(*map(Simulator.to_device, (slab, at, out)))


@pytest.mark.parametrize("size", [0, 1, 2, 60, 300])
@pytest.mark.parametrize("num_keys", [1, 5, 1000])
def test_a_gpu_finds_the_same_unique_keys_in_the_same_order(rng, size, num_keys):
    twins.check_unique(Simulator, twins.zipf_keys(rng, size, num_keys), max(1, size))


@pytest.mark.parametrize("limit", [1, 4, 19])
def test_more_keys_than_the_table_has_room_for_are_reported(limit):
    keys = np.arange(1, 21, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    twins.check_unique(Simulator, np.repeat(keys, 2), limit)


def test_keys_that_meet_in_the_table_are_kept_apart():
    """The low bits, by which the table is entered, are the same for all."""
    twins.check_unique(Simulator, np.array([1, 2, 3, 2, 1, 7], np.uint64) << np.uint64(32), 6)


def test_a_batch_is_indexed_and_counted_the_same_on_a_gpu(rng):
    for shift, batch in enumerate([*twins.small_batches(rng), *twins.batches_with_lists(rng)]):
        twins.check_index(Simulator, batch, shift)
        twins.check_count_examples(Simulator, batch)
