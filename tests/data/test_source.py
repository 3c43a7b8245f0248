"""Blocks of examples from Parquet files: their order, their layout, the memory that they take."""

import numpy as np
import pytest
from support.data.parquet_files import LIMIT, blocks_of, data_of, epoch_of, examples_in, key, numbers_of, write
from support.data.row_files import num_open

from pipeline.data.buffer import BufferTooSmall, ReadBuffer, aligned_empty
from pipeline.data.source import Source
from pipeline.workflow import Category, Number


@pytest.fixture
def numbered(tmp_path):
    """Three files of 40 examples in row groups of 16, examples numbered in `x`, with a list column of 0 to 3 values."""
    for part in range(3):
        x = np.arange(40 * part, 40 * part + 40)
        lists = [list(range(i, i + i % 4)) for i in x.tolist()]
        for split in ("train", "test"):
            columns = {"label": x % 2, "x": x, "c": x * 3, "hist": lists}
            write(tmp_path / split / f"{part}.parquet", 16, **columns)
    return data_of(
        tmp_path,
        test=("test/*.parquet",),
        numbers=(Number(name="x"),),
        categories=(Category(name="hist", table="c"), Category(name="c")),
        shuffle_window=50,
    )


@pytest.mark.parametrize(("batch_size", "batches"), [(1, 1), (1, 50), (7, 3), (50, 1), (64, 4), (1000, 1)])
def test_sizes_of_blocks_and_batches_never_change_the_order(numbered, batch_size, batches):
    assert epoch_of(Source(numbered, 1), batch_size, batches) == epoch_of(Source(numbered, 1), 13, 2)


@pytest.mark.parametrize("num_threads", [2, 3, 5])
def test_the_number_of_threads_never_changes_the_examples(tmp_path, num_threads):
    """With more threads than fields as well."""
    rng = np.random.default_rng(2)
    write(tmp_path / "0.parquet", 9, label=np.zeros(50, int), x=np.arange(50), **{
        f"c{n}": rng.integers(0, 99, 50) for n in range(4)
    })  # fmt: skip
    categories = tuple(Category(name=f"c{n}") for n in range(4))
    data = data_of(tmp_path, train=("*.parquet",), numbers=(Number(name="x"),), categories=categories)
    assert epoch_of(Source(data, 1, num_threads)) == epoch_of(Source(data, 1))


def test_every_example_is_read_once_with_all_its_columns(numbered):
    examples = epoch_of(Source(numbered, 1))
    assert sorted(numbers_of(examples)) == list(range(120))
    for (label,), (x,), (hist, c) in examples:
        x = int(x)
        assert label == x % 2
        assert c == (key(x * 3),)
        assert hist == tuple(key(v) for v in range(x, x + x % 4))


def test_every_epoch_and_seed_has_an_order_of_its_own(numbered):
    source = Source(numbered, 1)
    orders = [numbers_of(epoch_of(source, epoch=e)) for e in (0, 1)]
    orders += [numbers_of(epoch_of(Source(numbered, 2))), sorted(orders[0])]
    assert len({tuple(o) for o in orders}) == 4
    assert numbers_of(epoch_of(source)) == orders[0]


def test_row_groups_are_permuted_examples_stay_in_windows(numbered):
    x = numbers_of(epoch_of(Source(numbered, 3)))
    sizes = [16, 16, 8] * 3
    starts = np.cumsum([0, *sizes])
    turn = []
    for window in range(3):
        groups = {int(np.searchsorted(starts, v, "right")) - 1 for v in x[window * 50 : window * 50 + 50]}
        assert len(groups) <= 6
        turn.append(groups)
    assert len(turn[0] & turn[1]) <= 1
    assert turn[0] != {0, 1, 2, 3}


@pytest.mark.parametrize("changes", [{"split": "test"}, {"window": 0}])
def test_evaluation_and_a_window_of_zero_keep_the_order_of_files(numbered, changes):
    data = numbered.model_copy(update={"shuffle_window": changes.get("window", 50)})
    assert numbers_of(epoch_of(Source(data, 1), split=changes.get("split", "train"))) == list(range(120))


def test_a_block_read_out_of_order_has_the_same_examples(numbered):
    source, buffer = Source(numbered, 1), ReadBuffer(LIMIT)
    expected = epoch_of(source, 7, 3, epoch=2)
    blocks = list(blocks_of(120, 7, 3, epoch=2))
    for n in (3, 0, 5, 5, 1):
        source.read(next(blocks_of(120, 7, 3, "test")), buffer)
        assert examples_in(source, source.read(blocks[n], buffer)) == expected[21 * n : 21 * n + 21]


def test_a_source_reports_its_layout_and_example_counts(numbered):
    source = Source(numbered, 1)
    assert source.num_examples == {"train": 120, "validation": 0, "test": 120}
    assert (source.layout.single_S, source.layout.multi_M, source.layout.mean_M) == ((1,), (0,), (False,))


def test_predicted_bytes_are_a_tight_upper_bound(numbered):
    source = Source(numbered, 1)
    block = next(blocks_of(120, 30, 4))
    read = source.read(block, ReadBuffer(LIMIT))
    assert read.nbytes <= source.block_bytes(120, 4) <= 1.6 * read.nbytes
    window, _ = next(source.places(block))
    keys = [keys_SN for _, keys_SN in window.key_banks()]
    decoded = sum(a.nbytes for a in (*keys, window.floats_CN, window.order))
    assert decoded < source.window_bytes() < 20_000


def test_arrays_of_a_reused_buffer_are_aligned_and_writable(numbered):
    source, buffer = Source(numbered, 1), ReadBuffer(LIMIT)
    first, second = (source.read(block, buffer) for block in list(blocks_of(120, 7, 3))[:2])
    assert np.shares_memory(first.labels_NT, second.labels_NT)
    assert np.shares_memory(first.keys_V, second.keys_V)
    for array in (second.labels_NT, second.numbers_NX, second.keys_V, second.batch_starts, *second.bags):
        assert array.ctypes.data % 64 == 0
        assert array.flags.writeable
        assert array.flags.c_contiguous
    assert aligned_empty((3, 5), np.float32).ctypes.data % 64 == 0


def test_a_block_above_the_limit_of_its_buffer_is_refused(numbered):
    source, block = Source(numbered, 1), next(blocks_of(120, 30, 4))
    exact = source.read(block, ReadBuffer(LIMIT)).nbytes
    assert source.read(block, ReadBuffer(exact)).nbytes == exact
    for limit in (100, exact - 8):
        with pytest.raises(BufferTooSmall, match=r"would need .*KiB of the read ring, and its buffer has ") as e:
            source.read(block, ReadBuffer(limit))
        assert e.value.limit_bytes <= limit < e.value.needed_bytes
    assert source.read(block, ReadBuffer(exact)).nbytes == exact


def test_files_are_read_in_the_order_of_patterns_and_names(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, x in (("b/2", 2), ("b/1", 1), ("a/sub/0", 0)):
        write(tmp_path / f"{name}.parquet", label=[0], c=[0], x=[x])
    settings = {"train": ("b", "a"), "numbers": (Number(name="x"),), "shuffle_window": 0}
    assert numbers_of(epoch_of(Source(data_of("~", **settings), 0))) == [1, 2, 0]


def test_at_most_sixteen_files_are_open_at_a_time(tmp_path):
    for i in range(40):
        write(tmp_path / f"train/{i:02d}.parquet", label=[0] * 2, c=[i] * 2, x=[i] * 2)
    source = Source(data_of(tmp_path, numbers=(Number(name="x"),)), 0)
    assert sorted(numbers_of(epoch_of(source))) == sorted([*range(40)] * 2)
    assert num_open(tmp_path) == 16
    source.close()
    assert num_open(tmp_path) == 0
