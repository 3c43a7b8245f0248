"""Keys numbered by any number of threads: the numbers of the plain reference, for any sizes."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.kernels.dedup import RUN, unique_keys_reference
from pipeline.kernels.key_table import INITIAL_KEYS, KeyRange, KeyTable, number_parts
from pipeline.machine.threads import Threads, cut_range

SIZES = st.one_of(st.integers(0, 9), st.sampled_from([RUN - 1, RUN, RUN + 1, 3000, INITIAL_KEYS * 5]))
POOLS = {num: Threads(num) for num in (1, 2, 3, 5)}


MIXING = 0x9E3779B97F4A7C15


def make_keys(seed, size, num_keys, factor=MIXING):
    rng = np.random.default_rng(seed)
    return rng.integers(0, num_keys, size).astype(np.uint64) * np.uint64(factor)


def parts_of(keys_V, num_parts, in_place):
    """Parts and where the inverse will be: over the keys' bytes, as `dedup` has it, or next to them."""
    ranges = cut_range(len(keys_V), num_parts)
    if not in_place:
        inverse_V = np.full(len(keys_V), -1, np.int32)
        return [KeyRange(keys_V[r], inverse_V[r], inverse_V[r]) for r in ranges], inverse_V
    inverse_V = keys_V.view(np.int32)[: len(keys_V)]
    own = [keys_V[r].view(np.int32)[: r.stop - r.start] for r in ranges]
    return [KeyRange(keys_V[r], o, inverse_V[r]) for r, o in zip(ranges, own, strict=True)], inverse_V


@settings(deadline=None, max_examples=150)
@given(
    st.integers(0, 2**32), SIZES, st.sampled_from([1, 2, 40, 10**9]), st.sampled_from([1 << 20, 1 << 33, MIXING]),
    st.sampled_from([*POOLS]), st.booleans(),
)  # fmt: skip
def test_the_number_of_threads_never_changes_the_numbers(seed, size, num_keys, factor, num_threads, in_place):
    """Keys with many equal low bits too, so that probing is long and wraps around."""
    keys_V = make_keys(seed, size, num_keys, factor)
    expected_U, expected_V = unique_keys_reference(keys_V)
    parts, inverse_V = parts_of(keys_V, num_threads, in_place)
    table = number_parts(parts, [KeyTable() for _ in range(num_threads)], POOLS[num_threads])
    assert table.keys_U.tolist() == expected_U
    assert inverse_V.tolist() == expected_V


def test_an_array_leaves_no_trace_in_the_numbers_of_the_next():
    tables = [KeyTable() for _ in range(3)]
    for seed, size, num_keys in ((1, 9000, 10**9), (1, 9000, 10**9), (2, 10, 5), (3, 0, 1), (4, 20_000, 6000)):
        keys_V = make_keys(seed, size, num_keys)
        expected_U, expected_V = unique_keys_reference(keys_V)
        parts, inverse_V = parts_of(keys_V, 3, in_place=False)
        assert number_parts(parts, tables, POOLS[3]).keys_U.tolist() == expected_U
        assert inverse_V.tolist() == expected_V


def test_a_table_reuses_its_memory_for_every_array():
    table = KeyTable()
    keys_V = make_keys(0, 30_000, 10**9)
    inverse_V = np.empty(len(keys_V), np.int32)
    table.add(keys_V, inverse_V)
    tracemalloc.start()
    for _ in range(3):
        table.clear()
        table.add(keys_V, inverse_V)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < keys_V.nbytes / 10


@pytest.mark.parametrize("left", [0, 1, 9, 5000])
def test_numbers_that_run_out_of_32_bits_bring_back_no_old_key(left):
    """`left`: numbers that are free above the first keys of the second array."""
    table = KeyTable()
    one, two = make_keys(5, 20, 10**9), make_keys(6, 20, 10**9)
    inverse_V = np.empty(20, np.int32)
    table._base = 2**32 - 1 - len(table._keys_U) - left
    for keys_V in (one, two, one, two):
        table.clear()
        table.add(keys_V, inverse_V)
        assert (table.keys_U.tolist(), inverse_V.tolist()) == unique_keys_reference(keys_V)


@given(st.integers(0, 50), st.integers(1, 9))
def test_parts_cover_all_values_in_order(size, num_parts):
    ranges = cut_range(size, num_parts)
    assert len(ranges) == num_parts
    assert [o for r in ranges for o in range(r.start, r.stop)] == list(range(size))
    lengths = [r.stop - r.start for r in ranges]
    assert lengths == sorted(lengths, reverse=True)
