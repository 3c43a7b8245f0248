"""Rows of unique keys to those who need them, and the sums of their gradients back, against plain loops."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.blocks import crews, make_block
from support.runs.loopback import make_groups, together

from pipeline.comm.exchange import Exchange
from pipeline.device.device import RAM
from pipeline.kernels.key_table import KeyTable
from pipeline.machine.threads import Threads
from pipeline.stages.unite import key_requests, unite

NUM_WEIGHTS = 3


@pytest.fixture(scope="module")
def exchanges():
    """Of each number of workers; they are used for batch after batch, as in a run."""
    made = {}
    for world in range(1, 6):
        groups = make_groups(world)
        made[world] = groups, [Exchange(group, NUM_WEIGHTS, Threads(1), RAM) for group in groups]
    return made


def weight_of(keys):
    """[Q, C] of any keys, by the key alone."""
    return (np.array(keys, np.uint64)[:, None] % np.array([997, 1009, 1013], np.uint64)).astype(np.float32)


@settings(deadline=None, max_examples=25)
@given(crews(), st.integers(0, 2**32))
def test_workers_get_their_rows_and_owners_their_gradients(exchanges, crew, seed):
    owners, layout, parts = crew
    groups, ends = exchanges[owners.world]
    sent = [key_requests(part.unique, owners, layout.num_fields, False) for part in parts]
    block = make_block(1, len(parts[0].pairs))
    owned_keys = [unite(block, [of[owner] for of in sent], KeyTable()) for owner in range(owners.world)]
    for batch in range(block.num_batches):
        indexes = [part.unique.batches[batch] for part in parts]
        keys_W = [part.unique.keys_U[index.unique_P].tolist() for part, index in zip(parts, indexes, strict=True)]
        owned_W = [of.keys_U[of.row_requests[batch].index.unique_P].tolist() for of in owned_keys]
        grads_W = [
            np.random.default_rng(seed + rank).standard_normal((len(keys), NUM_WEIGHTS)).astype(np.float32)
            for rank, keys in enumerate(keys_W)
        ]
        before = [traffic(group) for group in groups]

        def step(rank, batch=batch, indexes=indexes, owned_W=owned_W, grads_W=grads_W):
            row_requests = owned_keys[rank].row_requests[batch]
            wanted = ends[rank].fetch(weight_of(owned_W[rank]), row_requests, indexes[rank]).copy()
            return wanted, ends[rank].push_gradients(grads_W[rank], row_requests, indexes[rank]).copy()

        found = together([partial(step, rank) for rank in range(owners.world)])
        for rank, (wanted_PC, sums_QC) in enumerate(found):
            np.testing.assert_array_equal(wanted_PC, weight_of(keys_W[rank]))
            np.testing.assert_array_equal(sums_QC, plain_sums(owned_W[rank], keys_W, grads_W))
            others = sum(indexes[rank].parts_W) - indexes[rank].parts_W[rank]
            asked_by_others = (
                sum(owned_keys[rank].row_requests[batch].parts_W) - owned_keys[rank].row_requests[batch].parts_W[rank]
            )
            spent = traffic(groups[rank]) - before[rank]
            assert spent.tolist() == [4 * NUM_WEIGHTS * asked_by_others, 4 * NUM_WEIGHTS * others]


def plain_sums(owned, keys_W, grads_W):
    """Worker by worker, in the order of their ranks."""
    sums_QC = np.zeros((len(owned), NUM_WEIGHTS), np.float32)
    for keys, grads_PC in zip(keys_W, grads_W, strict=True):
        for key, grad in zip(keys, grads_PC, strict=True):
            if key in owned:
                sums_QC[owned.index(key)] += grad
    return sums_QC


def traffic(group):
    return np.array([group.traffic[kind].num_bytes for kind in ("rows", "gradients")])
