"""Which part of each batch a worker has."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.records import Block, Rank

WORLDS = st.integers(1, 9)


@settings(deadline=None)
@given(WORLDS, st.integers(0, 100), st.integers(0, 100))
def test_parts_tile_a_batch_evenly_and_never_grow_as_it_shrinks(world, num_examples, fewer):
    shares = [Rank(rank, world) for rank in range(world)]
    bounds = [share.bounds(num_examples) for share in shares]
    assert (bounds[0][0], bounds[-1][1]) == (0, num_examples)
    assert all(end == begin for (_, end), (begin, _) in pairwise(bounds))
    sizes = [end - begin for begin, end in bounds]
    assert max(sizes) - min(sizes) <= 1
    for share, size in zip(shares, sizes, strict=True):
        begin, end = share.bounds(min(fewer, num_examples))
        assert end - begin <= size


@settings(deadline=None)
@given(WORLDS, st.integers(1, 20), st.integers(1, 5), st.integers(-19, 10))
def test_the_block_of_a_worker_has_its_part_of_each_batch(world, batch_size, num_batches, more):
    """The last batch is shorter, or has a few more."""
    num_examples = max(1, batch_size * num_batches + more)
    num_batches = min(num_batches, -(-num_examples // batch_size))
    block = Block(0, "train", 0, 0, num_batches, 0, num_examples, batch_size, 0, True)
    sizes = [end - begin for begin, end in map(block.batch_bounds, range(num_batches))]
    total = 0
    for rank in range(world):
        share = Rank(rank, world)
        part = share.part_of(block)
        bounds = [part.batch_bounds(batch) for batch in range(num_batches)]
        expected = [share.bounds(size) for size in sizes]
        assert [end - begin for begin, end in bounds] == [end - begin for begin, end in expected]
        assert [begin for begin, _ in bounds] == [0, *(end for _, end in bounds[:-1])]
        assert bounds[-1][1] == part.num_examples
        total += part.num_examples
    assert total == num_examples


def test_the_only_worker_has_the_whole_block():
    block = Block(4, "test", 2, 3, 2, 30, 15, 10, 7, False)
    assert Rank().part_of(block) == block
