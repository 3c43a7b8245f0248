"""The column by whose values metrics are grouped."""

import numpy as np
import pyarrow as pa
import pytest
from support.data.parquet_files import LIMIT, blocks_of, data_of, epoch_of, key, write

from pipeline.data.buffer import ReadBuffer
from pipeline.data.source import Source
from pipeline.kernels.hashing import missing_key
from pipeline.workflow import Category, Metrics, Number


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
