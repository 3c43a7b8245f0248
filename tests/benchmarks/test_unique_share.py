"""What is counted of the rows that workers send each other."""

import numpy as np
import pytest

from benchmarks.scaling.zipf import Fields, unique_keys
from benchmarks.unique_share import count, draw_batch, owners


def key(shard, number):
    return (shard << 60) + number


def test_a_row_is_counted_once_for_each_worker_that_needs_it_from_another():
    # Two workers, who own the even and the odd shards; a part is two examples of two fields.
    a, b, c, d = key(0, 1), key(1, 2), key(2, 3), key(3, 4)
    keys_BF = np.array([[a, b], [a, b], [b, c], [d, c]], np.uint64)
    sent = count(keys_BF, 2)
    assert sent.occurrences == 8
    # {a, b} and {b, c, d}.
    assert sent.unique == 5
    # Worker 0 lacks b; worker 1 lacks c.
    assert sent.rows == 2
    assert sent.remote_occurrences == 4
    assert sent.busiest == 1.0
    alone = count(keys_BF, 1)
    assert (alone.unique, alone.rows, alone.remote_occurrences, alone.busiest) == (4, 0, 0, 1.0)


def test_a_worker_that_sends_more_than_the_others_is_reported():
    keys_BF = np.array([[key(0, 1)], [key(0, 2)], [key(0, 3)], [key(0, 4)]], np.uint64)
    assert count(keys_BF, 2).busiest == 2.0


def test_the_high_bits_of_a_key_decide_its_owner():
    assert owners(np.array([key(5, 2), key(5, 3), key(15, 0)], np.uint64), 4).tolist() == [1, 1, 3]


def test_a_batch_depends_on_its_seed_alone_and_fields_share_no_key():
    batch = draw_batch((50, 3), 1000, 1.05, 1)
    assert (batch == draw_batch((50, 3), 1000, 1.05, 1)).all()
    assert (batch != draw_batch((50, 3), 1000, 1.05, 2)).any()
    assert [len(np.unique(batch[:, f])) for f in range(2)] == [50, 3]
    assert not set(batch[:, 0].tolist()) & set(batch[:, 1].tolist())


@pytest.mark.parametrize("exponent", [1.0, 1.05, 1.3])
@pytest.mark.parametrize("examples", [256, 8_192])
def test_the_formula_gives_the_unique_keys_of_the_trace(exponent, examples):
    sizes = (1_000_000, 20_000, 20)
    expected = unique_keys(tuple(Fields(size, 1) for size in sizes), exponent, examples)
    drawn = [count(draw_batch(sizes, examples, exponent, seed), 1).unique for seed in range(20)]
    assert expected == pytest.approx(np.mean(drawn), rel=0.02)
