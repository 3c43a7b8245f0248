"""Several workers read one batch: their parts together are the whole one, in every column."""

import numpy as np
import pytest
from support.data.parquet_files import LIMIT, blocks_of, data_of, examples_in, write

from pipeline.data.buffer import ReadBuffer
from pipeline.data.source import Source
from pipeline.records import Rank
from pipeline.workflow import Category, Metrics, Number

TOTAL = 61


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    root, rng = tmp_path_factory.mktemp("shares"), np.random.default_rng(0)
    columns = {
        "label": rng.integers(0, 2, TOTAL),
        "importance": rng.random(TOTAL, np.float32),
        "user": rng.integers(0, 9, TOTAL),
        "x": np.arange(TOTAL),
        "c": rng.integers(0, 30, TOTAL),
        "hist": [rng.integers(0, 30, size).tolist() for size in rng.integers(0, 4, TOTAL)],
        "tags": [rng.integers(0, 30, size).tolist() for size in rng.integers(0, 3, TOTAL)],
    }
    write(root / "0.parquet", 8, **columns)
    data = data_of(
        root,
        train=("*.parquet",),
        weight="importance",
        numbers=(Number(name="x"),),
        categories=(Category(name="hist", pooling="mean"), Category(name="c"), Category(name="tags")),
        shuffle_window=20,
    )
    with_groups = Source(data, 1, metrics=Metrics(group="user"))
    yield with_groups
    with_groups.close()


def columns_of(source, read):
    """Of each example of each batch: weight, group, and what `examples_in` gives."""
    examples = zip(read.weights_N.tolist(), read.groups_N.tolist(), examples_in(source, read), strict=True)
    everything = list(examples)
    bounds = map(read.block.batch_bounds, range(read.block.num_batches))
    return [everything[begin:end] for begin, end in bounds]


@pytest.mark.parametrize("world", [1, 2, 3, 5, 9])
@pytest.mark.parametrize(("batch_size", "batches"), [(1, 4), (7, 3), (20, 2), (64, 1)])
def test_parts_together_are_the_whole_batch(source, world, batch_size, batches):
    for block in blocks_of(TOTAL, batch_size, batches, epoch=1):
        whole = columns_of(source, source.read(block, ReadBuffer(LIMIT)))
        joined = [[] for _ in whole]
        for rank in range(world):
            read = source.read(block, ReadBuffer(LIMIT), Rank(rank, world))
            assert read.block == Rank(rank, world).part_of(block)
            for batch, part in zip(joined, columns_of(source, read), strict=True):
                batch += part
        assert joined == whole


def test_one_of_three_parts_takes_less_than_half_the_room(source):
    block = next(blocks_of(TOTAL, 30, 2))
    whole = source.read(block, ReadBuffer(LIMIT)).nbytes
    parts = [source.read(block, ReadBuffer(LIMIT), Rank(rank, 3)).nbytes for rank in range(3)]
    assert max(parts) < 0.5 * whole
