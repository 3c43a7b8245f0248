"""What becomes of the values of each type of column: keys, labels, weights, numbers, also outside what was trained."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data.parquet_files import LIMIT, blocks_of, data_of, epoch_of, key, write

from pipeline.data.buffer import ReadBuffer
from pipeline.data.decode import fill_floats
from pipeline.data.files import InputColumn
from pipeline.data.outside import Outside
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


MOST = np.finfo(np.float32).max


def converted(values, kind, outside, **spec):
    out = np.empty(len(values), np.float32)
    column = InputColumn("x", "data.numbers", number=Number(name="x", **spec))
    fill_floats(pa.array(values, kind), column, "log.parquet", 10, out, outside)
    return out


@pytest.mark.parametrize(
    ("values", "kind", "spec", "expected"),
    [
        ([-5, -1, 4], pa.int32(), {"log1p": True}, np.log1p([0, 0, 4])),
        ([-5, -2, None], pa.int64(), {"log1p": True, "shift": 2.0, "fill": -2.0}, np.log1p([0, 0, 0])),
        ([-np.inf, -1 + 1e-12, np.inf], pa.float64(), {"log1p": True}, np.log1p([0, 0, MOST])),
        ([np.inf, -1e39, np.nan], pa.float64(), {"fill": 3.0}, [MOST, -MOST, 3]),
        ([None, 1.0], pa.float32(), {"log1p": True, "fill": -7.0}, np.log1p([0, 1])),
    ],
    ids=["negative", "below the shift", "ends", "plain", "fill"],
)
def test_a_bad_number_becomes_the_nearest_one_inside(values, kind, spec, expected):
    outside = Outside("clip")
    assert np.allclose(converted(values, kind, outside, **spec), np.float32(expected), rtol=1e-6)
    assert outside.counts["x"] >= 1


def test_bad_numbers_are_counted_with_the_first_and_their_rows():
    outside = Outside("null")
    converted([1.0, -3.0, np.inf], pa.float64(), outside, log1p=True)
    converted([-2.0], pa.float64(), outside, log1p=True)
    (line,) = outside.lines()
    assert "'x': 3 bad values, the first is -3.0 at row 11 of log.parquet" in line
    assert outside.take_rows().tolist() == [11, 12, 10]
    assert not len(outside.take_rows())
    with pytest.raises(ValueError, match=r"'x' .*: 1 bad value, the first is inf at row 10 of log.parquet"):
        converted([np.inf], pa.float64(), Outside("refuse"))


def test_good_numbers_have_the_bits_of_training():
    values = np.random.default_rng(1).exponential(9, 1000)
    found = converted(values, pa.float64(), Outside("clip"), log1p=True, shift=-0.5)
    assert found.tobytes() == converted(values, pa.float64(), None, log1p=True, shift=-0.5).tobytes()
