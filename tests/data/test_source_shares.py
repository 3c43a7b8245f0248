"""Parts of a split: those of several workers are the whole batch, and row groups of any size give the same rows."""

import numpy as np
import pyarrow as pa
import pytest
from support.data.parquet_files import LIMIT, blocks_of, data_of, epoch_of, examples_in, key, write

from pipeline.data.buffer import ReadBuffer
from pipeline.data.source import Source
from pipeline.kernels.hashing import missing_key
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


def groups_of(data, group, **settings):
    source, buffer = Source(data, 0, metrics=Metrics(group=group)), ReadBuffer(LIMIT)
    batch_size, batches = settings.get("batch_size", 7), settings.get("batches", 3)
    reads = (source.read(block, buffer) for block in blocks_of(source.num_examples["train"], batch_size, batches))
    return [found for read in reads for found in read.groups_N.tolist()]


def table(num_examples, **columns):
    rng = np.random.default_rng(0)
    return {"label": [0] * num_examples, "c": rng.integers(0, 9, num_examples), **columns}


@pytest.mark.parametrize("values", [[5, 6, None, 5], pa.array(["x", "y", None, "x"]).dictionary_encode()])
def test_a_group_column_that_is_a_category_has_the_same_keys(tmp_path, values):
    write(tmp_path / "train/0.parquet", **table(4, user=values))
    data = data_of(tmp_path, categories=(Category(name="user", table="people"), Category(name="c")), shuffle_window=0)
    groups = groups_of(data, "user")
    there = [v.encode() if isinstance(v, str) else v for v in pa.array(values).to_pylist()]
    assert groups == [int(missing_key("user")) if v is None else key(v, "people") for v in there]
    assert [(group,) for group in groups] == [keys[0] for _, _, keys in epoch_of(Source(data, 0))]
    assert epoch_of(Source(data, 0, metrics=Metrics(group="user"))) == epoch_of(Source(data, 0))


def test_a_group_column_that_is_also_a_number_is_read(tmp_path):
    write(tmp_path / "train/0.parquet", **table(3, age=[1, 2, 1]))
    data = data_of(tmp_path, numbers=(Number(name="age"),), shuffle_window=0)
    assert groups_of(data, "age") == [key(v, "age") for v in (1, 2, 1)]


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_group_stays_with_its_example(tmp_path, num_threads):
    for part in range(2):
        x = np.arange(40 * part, 40 * part + 40)
        write(tmp_path / f"train/{part}.parquet", 16, **table(40, x=x, user=x // 3))
    data = data_of(tmp_path, numbers=(Number(name="x"),), shuffle_window=32)
    source, buffer = Source(data, 0, num_threads, metrics=Metrics(group="user")), ReadBuffer(LIMIT)
    found = []
    for block in blocks_of(80, 7, 3):
        read = source.read(block, buffer)
        found += zip(read.numbers_NX[:, 0].tolist(), read.groups_N.tolist(), strict=True)
    assert sorted(found) == [(x, key(x // 3, "user")) for x in range(80)]
    assert groups_of(data, "user", batch_size=13, batches=1) == [group for _, group in found]


def test_groups_are_read_on_request_in_the_predicted_memory(tmp_path):
    write(tmp_path / "train/0.parquet", 64, **table(200, user=list(range(200))))
    data, (block,) = data_of(tmp_path), blocks_of(200, 50, 4)
    without, grouped = (Source(data, 0, metrics=Metrics(group=group)) for group in (None, "user"))
    plain, read = (source.read(block, ReadBuffer(LIMIT)) for source in (without, grouped))
    assert plain.groups_N is None
    assert plain.nbytes == without.block_bytes(200, 4)
    assert read.nbytes == grouped.block_bytes(200, 4) == plain.nbytes + 1600
    assert grouped.window_bytes() >= without.window_bytes() + 16 * 200


def test_a_split_without_the_group_column_is_refused(tmp_path):
    write(tmp_path / "train/a.parquet", label=[0], c=[1], user=[1])
    write(tmp_path / "test/a.parquet", label=[0], c=[1])
    with pytest.raises(ValueError, match=r"test/a.parquet: column 'user' \(metrics.group\) is missing"):
        Source(data_of(tmp_path, test=("test",)), 0, metrics=Metrics(group="user"))
