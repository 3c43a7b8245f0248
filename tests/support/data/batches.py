"""Batches for tests of kernels, as `dedup` would produce them, but made without the code of `dedup`."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from pipeline.kernels.dedup import sources_reference

SIZES = st.one_of(st.integers(1, 6), st.sampled_from([1023, 1024, 1025, 2050]))
"""Batch sizes: small ones, and around multiples of a tile."""


@dataclass
class Batch:
    num_examples: int
    single_S: np.ndarray
    multi_M: np.ndarray
    bags_MB: np.ndarray
    inverse_V: np.ndarray
    num_unique: int

    @property
    def num_fields(self):
        return len(self.single_S) + len(self.multi_M)

    def sources(self):
        """`source_V` and `starts_P` from the plain reference."""
        groups = sources_reference(
            self.inverse_V, self.bags_MB, self.single_S.tolist(), self.multi_M.tolist(), self.num_examples
        )
        starts = np.cumsum([0, *map(len, groups)]).astype(np.int32)
        return np.array([source for group in groups for source in group], np.int32), starts


def make_batch(seed, num_examples, num_single, num_multi, num_keys, longest_bag=4, num_lists=0):
    """Make a batch. Keys are drawn for any field, so fields share keys; bags may be empty; fields are numbered in any
    order. `num_lists`: number of item lists of sequences after the fields."""
    rng = np.random.default_rng(seed)
    fields = rng.permutation(num_single + num_multi).astype(np.int32)
    at = num_single * num_examples
    bags_MB = np.zeros((num_multi + num_lists, num_examples + 1), np.int32)
    for m in range(num_multi + num_lists):
        bags_MB[m] = at + np.concatenate([[0], np.cumsum(rng.integers(0, longest_bag + 1, num_examples))])
        at = int(bags_MB[m, -1])
    keys_V = rng.integers(0, num_keys, at)
    _, first, which = np.unique(keys_V, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first)).astype(np.int32)
    return Batch(
        num_examples, np.sort(fields[:num_single]), np.sort(fields[num_single:]), bags_MB,
        rank[which.reshape(-1)] if at else np.empty(0, np.int32), len(first),
    )  # fmt: skip


@st.composite
def batches(draw, most_lists=0):
    num_single = draw(st.integers(0, 3))
    num_multi = draw(st.integers(0 if num_single else 1, 2))
    return make_batch(
        draw(st.integers(0, 2**32)), draw(SIZES), num_single, num_multi, draw(st.sampled_from([1, 2, 7, 500])),
        num_lists=draw(st.integers(0, most_lists)),
    )  # fmt: skip


def same_bits(a, b):
    """True if both are bitwise equal, including the sign of zero."""
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))
