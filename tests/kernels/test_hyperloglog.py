"""Registers are those of the reference, whatever the order of keys, and an estimate is as near as is said of it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.kernels import hashing
from pipeline.kernels.hyperloglog import (
    NUM_REGISTERS,
    RANK_BITS,
    STANDARD_ERROR,
    add_keys,
    add_keys_reference,
    estimate,
)

KEYS = st.one_of(
    st.integers(0, 2**64 - 1),
    # Keys of few ones have large ranks.
    st.builds(lambda at, shift: (at << RANK_BITS | 1 << shift) % 2**64, st.integers(0, 3), st.integers(0, 63)),
)


def registers_of(keys, add=add_keys):
    registers = np.zeros(NUM_REGISTERS, np.uint8)
    add(np.asarray(keys, np.uint64), registers)
    return registers


def random_keys(seed, size):
    return np.random.default_rng(seed).integers(0, 2**64 - 1, size, np.uint64)


@settings(max_examples=100, deadline=None)
@given(st.lists(KEYS, max_size=50))
def test_the_kernel_matches_its_reference(keys):
    np.testing.assert_array_equal(registers_of(keys), registers_of(keys, add_keys_reference))


def test_a_key_without_any_bit_of_a_rank_has_the_highest_rank():
    assert registers_of([0])[0] == RANK_BITS + 1
    assert registers_of([2**64 - 2**RANK_BITS])[-1] == RANK_BITS + 1


@settings(max_examples=50, deadline=None)
@given(st.lists(KEYS, max_size=30), st.lists(KEYS, max_size=30))
def test_registers_of_a_union_ignore_order_and_repetition(some, others):
    both = np.maximum(registers_of(some), registers_of(others))
    np.testing.assert_array_equal(registers_of([*others, *some, *others]), both)


def test_no_keys_are_estimated_as_zero():
    assert estimate(np.zeros(NUM_REGISTERS, np.uint8)) == 0


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("size", [10, 1_000, 20_000, 50_000, 100_000, 1_000_000, 10_000_000])
def test_an_estimate_is_within_three_standard_errors(size, seed):
    got = estimate(registers_of(random_keys(seed, size)))
    assert abs(got / size - 1) < 3 * STANDARD_ERROR


@pytest.mark.parametrize("size", [3_000, 40_000, 400_000])
def test_estimates_are_unbiased(size):
    errors = [estimate(registers_of(random_keys(seed, size))) / size - 1 for seed in range(100, 164)]
    assert abs(np.mean(errors)) < 3 * STANDARD_ERROR / math.sqrt(len(errors))
    assert np.std(errors) < 1.3 * STANDARD_ERROR


def test_hashed_keys_are_random_enough_for_an_estimate():
    size = 1_000_000
    integers, texts = np.empty(size, np.uint64), np.empty(size, np.uint64)
    hashing.hash_integers(np.arange(size), hashing.table_salt("c1"), integers)
    digits = np.frombuffer("".join(f"{n:08x}" for n in range(size)).encode(), np.uint8)
    hashing.hash_strings(digits, np.arange(size + 1, dtype=np.int32) * 8, hashing.table_salt("c1"), texts)
    for keys in (integers, texts):
        assert abs(estimate(registers_of(keys)) / size - 1) < 3 * STANDARD_ERROR
