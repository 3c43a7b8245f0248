"""What becomes of the values of each type of column: keys, labels, weights, numbers."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data.parquet_files import LIMIT, blocks_of, data_of, epoch_of, key, write

from pipeline.data.buffer import ReadBuffer
from pipeline.data.source import Source
from pipeline.kernels.hashing import missing_key
from pipeline.workflow import Category, Number


def one_column(tmp_path, values, category=None):
    """The keys that one categorical column gives, a tuple an example."""
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}"
    write(path / "train/a.parquet", label=[0] * len(values), c=values)
    data = data_of(path, categories=(category or Category(name="c"),), shuffle_window=0)
    return [keys[0] for _, _, keys in epoch_of(Source(data, 0))]


def test_a_null_has_the_missing_key_of_its_field(tmp_path):
    missing = int(missing_key("c"))
    assert one_column(tmp_path, [5, None, 7]) == [(key(5),), (missing,), (key(7),)]
    assert one_column(tmp_path, ["a", None]) == [(key(b"a"),), (missing,)]
    lists = [[1, None], None, [], [2], None]
    expected = [(key(1), missing), (missing,), (), (key(2),), (missing,)]
    assert one_column(tmp_path, lists) == expected
    other = Category(name="c", table="other")
    assert one_column(tmp_path, [5, None], other) == [(key(5, "other"),), (missing,)]


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("in_lists", [False, True])
def test_a_text_column_keeps_its_keys_beyond_a_dictionary(tmp_path, dictionary, in_lists):
    texts = [f"text {i % 700}" for i in range(1500)]
    values = [[t] for t in texts] if in_lists else texts
    (tmp_path / "train").mkdir()
    options = {"use_dictionary": dictionary, "dictionary_pagesize_limit": 512, "data_page_size": 512}
    pq.write_table(pa.table({"label": [0] * 1500, "c": values}), tmp_path / "train/a.parquet", **options)
    examples = epoch_of(Source(data_of(tmp_path, shuffle_window=0), 0), 100, 2)
    assert [keys[0] for _, _, keys in examples] == [(key(t.encode()),) for t in texts]


def test_fields_share_keys_only_within_one_table(tmp_path):
    write(tmp_path / "train/a.parquet", label=[1], item=[4], seen=[[4]], other=[4])
    categories = (Category(name="item"), Category(name="seen", table="item"), Category(name="other"))
    ((_, _, (item, seen, other)),) = epoch_of(Source(data_of(tmp_path, categories=categories), 0))
    assert item == seen == (key(4, "item"),)
    assert other == (key(4, "other"),) != item


def test_labels_weights_and_pooling_are_read_as_configured(tmp_path):
    columns = {"label": [True, False], "like": [0.0, 1.0], "w": [2, 0], "c": [[1], [2]]}
    write(tmp_path / "train/a.parquet", **columns)
    categories = (Category(name="c", pooling="mean"),)
    data = data_of(tmp_path, labels=("label", "like"), weight="w", categories=categories, shuffle_window=0)
    source = Source(data, 0)
    read = source.read(next(blocks_of(2, 2, 1)), ReadBuffer(LIMIT))
    assert read.labels_NT.tolist() == [[1, 0], [0, 1]]
    assert read.weights_N.tolist() == [2, 0]
    assert source.layout.mean_M == (True,)


def test_numbers_are_filled_then_shifted_then_log_transformed(tmp_path):
    write(tmp_path / "train/a.parquet", label=[0] * 4, c=[0] * 4, x=[1.0, None, math.nan, -1.0], y=[1, None, 2, 3])
    numbers = (Number(name="x", fill=5.0, shift=2.0, log1p=True), Number(name="y"))
    examples = epoch_of(Source(data_of(tmp_path, numbers=numbers, shuffle_window=0), 0))
    found = np.array([numbers for _, numbers, _ in examples])
    np.testing.assert_allclose(found[:, 0], np.log1p([3.0, 7.0, 7.0, 1.0]), rtol=1e-6)
    assert found[:, 1].tolist() == [1, 0, 2, 3]
