"""Row groups of a part: its rows, texts as dictionaries, and the keys that a workflow sees."""

import numpy as np
import pyarrow as pa
import pytest

from pipeline.kernels import hashing
from pipeline.kernels.key_table import KeyTable
from pipeline.prepare import encode as encoding
from pipeline.prepare.encode import encode, encode_groups
from pipeline.prepare.uniques import hashes_of

MASK = (1 << 64) - 1
MURMUR = int(hashing.MURMUR)


def scrambled(word):
    """What the hash makes of eight bytes before it adds them."""
    k = word * MURMUR & MASK
    return (k ^ (k >> 47)) * MURMUR & MASK


def unscrambled(word):
    k = word * pow(MURMUR, -1, 1 << 64) & MASK
    return (k ^ (k >> 47)) * pow(MURMUR, -1, 1 << 64) & MASK


def texts_that_share_a_key(name):
    """Two texts of 16 bytes: the second word of the other makes up for its first."""
    begin = int(hashing.table_salt(name)) ^ (16 * MURMUR & MASK)
    states = [(begin ^ scrambled(word)) * MURMUR & MASK for word in (1, 2)]
    words = [(1, 7), (2, unscrambled(scrambled(7) ^ states[0] ^ states[1]))]
    return [b"".join(word.to_bytes(8, "little") for word in pair) for pair in words]


def decoded(groups):
    return [value for group in groups for value in group.to_pylist()]


def groups_of(num_rows):
    return [np.arange(0, num_rows, 2, dtype=np.int32), np.arange(1, num_rows, 2, dtype=np.int32)]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_texts_of_groups_are_those_of_their_rows(kind):
    rng = np.random.default_rng(0)
    texts = [None if v % 5 == 0 else "" if v % 5 == 1 else f"text {v}" for v in rng.integers(0, 400, 3000)]
    column = pa.chunked_array([pa.array(texts[:1000], kind), pa.array(texts[990:], kind).slice(10)])
    arrays, keys = encode_groups(column, "c", groups_of(3000), KeyTable())
    assert [array.to_pylist() for array in arrays] == [column.to_pylist()[::2], column.to_pylist()[1::2]]
    assert sorted(keys.tolist()) == hashes_of(column, "c").tolist()
    for array in arrays:
        array.validate(full=True)
        assert array.dictionary.to_pylist() == array.dictionary_decode().drop_null().unique().to_pylist()


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
@pytest.mark.parametrize("column", [[], [[]], [[None]], [[None, None], [None]], [[""]]])
def test_columns_without_texts(kind, column):
    column = pa.chunked_array([pa.array(chunk, kind) for chunk in column], kind)
    arrays, keys = encode_groups(column, "c", groups_of(len(column)), KeyTable())
    assert decoded(arrays) == column.to_pylist()[::2] + column.to_pylist()[1::2]
    assert keys.tolist() == hashes_of(column, "c").tolist()


def test_texts_that_share_a_key_remain_different():
    texts = texts_that_share_a_key("c")
    column = pa.chunked_array([[texts[0], None, texts[1], b"", texts[0]]], pa.binary())
    assert len(hashes_of(column, "c")) == 2
    arrays, keys = encode_groups(column, "c", [np.arange(5, dtype=np.int32)], KeyTable())
    assert decoded(arrays) == column.to_pylist()
    assert {*keys.tolist()} == {*hashes_of(column, "c").tolist()}


def test_a_column_too_large_for_one_array_has_the_same_groups(monkeypatch):
    rng = np.random.default_rng(1)
    texts = [None if v % 5 == 0 else f"text {v}" for v in rng.integers(0, 400, 1000)]
    column = pa.chunked_array([texts[:300], texts[300:]])
    expected, keys = encode_groups(column, "c", groups_of(1000), KeyTable())
    monkeypatch.setattr(encoding, "MAX_BYTES", 1000)
    arrays, slow_keys = encode_groups(column, "c", groups_of(1000), KeyTable())
    assert [array.equals(other) for array, other in zip(arrays, expected, strict=True)] == [True, True]
    assert slow_keys.tolist() == keys.tolist()


def test_row_groups_of_each_split_have_its_rows_in_order(monkeypatch):
    monkeypatch.setattr(encoding, "ROW_GROUP", 100)
    rng = np.random.default_rng(2)
    split_N = rng.choice([0, 2], 1000, p=[0.7, 0.3]).astype(np.int8)
    table = pa.table(
        {"c": [f"{v}" for v in rng.integers(0, 9, 1000)], "n": rng.integers(0, 9, 1000), "d": ["x"] * 1000}
    )
    found = encode(table, split_N)
    assert found.splits.keys() == {"train", "test"}
    for place, split in ((0, "train"), (2, "test")):
        groups = found.splits[split]
        assert [len(group) for group in groups[:-1]] == [100] * (len(groups) - 1)
        assert decoded(groups) == table.filter(pa.array(split_N == place)).to_pylist()
    assert found.keys.keys() == {"c", "d"}


def test_no_rows_are_no_row_groups():
    found = encode(pa.table({"c": pa.array([], pa.string()), "n": pa.array([], pa.int32())}), np.zeros(0, np.int8))
    assert found.splits == {}
    assert found.keys["c"].tolist() == []
