"""A value's id is a function of values and counts, however they are cut, merged, killed or looked up; and memory is
that of a few blocks."""

import tempfile
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.data.preparations import prepare, write_lines
from support.depth import examples
from support.faults.altered_outputs import Inline
from support.faults.kills import killed_anywhere

from pipeline.kernels.hashing import hash_bytes_reference, hash_integer_reference, table_salt
from pipeline.prepare import counts, main, runs, steps, vocabulary
from pipeline.prepare.counts import keys_of
from pipeline.prepare.parts import part_name
from pipeline.prepare.read import parts
from pipeline.prepare.vocabulary import Vocabulary, count_part, merge, path_of, path_of_counts

NAME = "a/b"
SALT = int(table_salt(NAME))


@contextmanager
def small(few_keys=None, block_bytes=100, fan_in=2, partition_rows=3):
    """Files of many blocks for few values. `few_keys`: there are no more different keys, so values share them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "RUN_BLOCK_BYTES", block_bytes)
        patch.setattr(runs, "FAN_IN", fan_in)
        patch.setattr(vocabulary, "PARTITION_ROWS", partition_rows)
        if few_keys:
            for module in (counts, runs, vocabulary):
                patch.setattr(module, "keys_of", lambda values, name: keys_of(values, name) % np.uint64(few_keys))
        yield


def key(value, few_keys=None):
    found = hash_integer_reference(value, SALT) if isinstance(value, int) else hash_bytes_reference(value, SALT)
    return found % few_keys if few_keys else found


def expected_ids(values, minimum, few_keys=None):
    """{value: (count, id)}, from all values at once."""
    often = {value: n for value, n in Counter(v for v in values if v is not None).items() if n >= minimum}
    order = sorted(often, key=lambda value: (key(value, few_keys), value))
    return {value: (often[value], n) for n, value in enumerate(order, 1)}


def make(folder, parts, minimum):
    """The vocabulary of columns, a part each."""
    for number, column in enumerate(parts):
        name = f"part-0000-{number:05}"
        if not path_of_counts(folder, name).exists():
            count_part(pa.table({NAME: column}), folder, name)
    out = path_of(folder / "out", NAME)
    merge(folder, NAME, minimum, out)
    return out


VALUES = {"binary": st.binary(max_size=3), "int64": st.integers(-3, 20), "int32": st.integers(-3, 20)}


@examples(30, 150)
@given(st.data())
def test_ids_and_counts_are_those_of_all_values_at_once(data):
    kind = data.draw(st.sampled_from(sorted(VALUES)))
    values = st.lists(st.none() | VALUES[kind], max_size=15)
    parts, asked = data.draw(st.lists(values, min_size=1, max_size=7)), data.draw(values)
    minimum, few_keys = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([None, 1, 3]))
    cache_bytes = data.draw(st.sampled_from([0, 60, 1 << 20]))
    expected = expected_ids(list(chain(*parts)), minimum, few_keys)
    with small(few_keys), tempfile.TemporaryDirectory() as folder:
        path = make(Path(folder), [pa.array(part, kind) for part in parts], minimum)
        table = pq.read_table(path)
        found = Vocabulary(path, NAME, cache_bytes)
        for _ in range(2):
            ids = found.look_up(pa.chunked_array([pa.array(asked, kind), pa.array(asked[:3], kind)]))
            assert ids.type == pa.int32()
            wanted = [None if v is None else expected.get(v, (0, 0))[1] for v in asked + asked[:3]]
            assert ids.to_pylist() == wanted
    assert {row["value"]: (row["count"], row["id"]) for row in table.to_pylist()} == expected
    assert table["id"].to_pylist() == list(range(1, len(found) + 1))
    assert table["value"].type == kind


TEXTS = st.lists(st.sampled_from(["", "a", "b", "cc", "d e", "é"]), min_size=1, max_size=30)


@examples(5, 40)
@given(
    TEXTS, TEXTS, st.integers(1, 3), st.lists(st.integers(0, 12), max_size=3), st.integers(10, 90), st.integers(1, 3)
)
def test_ids_of_a_log_are_those_of_a_plain_count(train, test, minimum, ends, piece_bytes, workers):
    """Of its training rows, with any pieces and workers, after ends between any two tasks."""
    options = ("--schema", "y:label", f"{NAME}:category", "--split", "file:test=1.csv", "--vocabulary", NAME)
    options += ("--minimum", minimum, "--piece-size", f"{piece_bytes} B", "--workers", workers)
    with tempfile.TemporaryDirectory() as folder, small(), pytest.MonkeyPatch.context() as patch:
        raw, out = Path(folder) / "raw", Path(folder) / "out"
        raw.mkdir()
        for n, texts in enumerate((train, test)):
            (raw / f"{n}.csv").write_text("".join([f"y,{NAME}\n", *(f"1,{text}\n" for text in texts)]))
        for ends_at in ends:
            with patch.context() as ending:
                ending.setattr(main, "TaskThreads", lambda _, ends_at=ends_at: Inline(ends_at))
                prepare("csv", raw, out, *options)
        assert prepare("csv", raw, out, *options) == 0
        found = {split: pq.read_table(out / split)[NAME].to_pylist() for split in ("train", "test")}
        vocabulary = pq.read_table(path_of(out, NAME))
        assert [path.name for path in (out / ".prepare").iterdir()] == ["command.json"]
    expected = expected_ids([text.encode() or None for text in train], minimum)
    assert {row["value"].encode(): (row["count"], row["id"]) for row in vocabulary.to_pylist()} == expected
    for split, texts in (("train", train), ("test", test)):
        assert found[split] == [expected.get(text.encode(), (0, 0))[1] if text else None for text in texts]


def test_a_source_is_read_once_for_its_ids(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(steps, "parts", lambda piece, *rest: (read.append(piece.number), parts(piece, *rest))[1])
    log = write_lines(tmp_path / "log", "csv", 500)
    options = ("--piece-size", "4 KiB", "--vocabulary", "city", "--workers", 1)
    assert prepare("csv", log, tmp_path / "out", *options) == 0
    assert len(read) == len(list((tmp_path / "out/train").iterdir())) > 3


ARRAYS = {
    "string": pa.array(["x", None, "yy", "x", "z"]),
    "large_string": pa.array(["x", None, "yy", "x", "z"], pa.large_string()),
    "dictionary": pa.array(["x", None, "yy", "x", "z"]).dictionary_encode(),
    # One value is in no row, and one is null though it is in the dictionary.
    "odd": pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 0, 4], pa.int8()), pa.array(["x", None, "yy", "no", "z"])),
    "sliced": pa.array(["no", "x", None, "yy", "x", "z", "no"]).dictionary_encode()[1:6],
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_an_id_is_the_same_however_its_text_is_stored(tmp_path, kind):
    column = ARRAYS[kind]
    path = make(tmp_path, [column, pa.chunked_array([column, column[:2]])], 3)
    ids = {value.decode(): n for value, (_, n) in expected_ids([b"x"] * 5, 3).items()}
    other = pa.array(["unseen", "x"], column.type.value_type if "dict" in str(column.type) else column.type)
    other = other.dictionary_encode() if pa.types.is_dictionary(column.type) else other
    got = Vocabulary(path, NAME).look_up(pa.chunked_array([column, column[3:]]))
    assert got.to_pylist() == [None if v is None else ids.get(v, 0) for v in [*column.to_pylist(), "x", "z"]]
    assert Vocabulary(path, NAME).look_up(pa.chunked_array([other])).to_pylist() == [0, 1]
    assert pq.read_table(path, columns=["value", "count"]).to_pylist() == [{"value": "x", "count": 5}]


def test_lists_of_values_become_lists_of_their_ids(tmp_path):
    column = pa.array([[1, 2], None, [], [2, None], [3]], pa.list_(pa.int64()))
    path = make(tmp_path, [column, column], 4)
    got = Vocabulary(path, NAME).look_up(pa.chunked_array([column, column[3:]]))
    assert got.to_pylist() == [[0, 1], None, [], [1, None], [0], [1, None], [0]]
    assert Vocabulary(path, NAME).look_up(pa.chunked_array([], column.type)).to_pylist() == []


@pytest.mark.prove
def test_a_kill_at_any_system_call_changes_no_byte(tmp_path):
    parts = [pa.array(np.random.default_rng(n).integers(0, 12, 20)) for n in range(3)]

    def work(folder):
        return make(folder, parts, 2)

    with small(None, block_bytes=100, fan_in=2, partition_rows=6):
        (tmp_path / "whole").mkdir()
        expected = work(tmp_path / "whole").read_bytes()
        num_kills = 0
        for folder in killed_anywhere(tmp_path, work):
            assert path_of(folder / "out", NAME).read_bytes() == expected
            assert not list(folder.glob("*.merging"))
            num_kills += 1
    assert num_kills > 80


def test_a_finished_merge_is_skipped(tmp_path, monkeypatch):
    out = make(tmp_path, [pa.array([1, 1])], 1)
    monkeypatch.setattr(vocabulary, "merge_counts", None)
    merge(tmp_path, NAME, 1, out)


def test_more_values_than_ids_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(vocabulary, "MAX_IDS", 2)
    with pytest.raises(ValueError, match=r"column 'a/b': more than 2 values .* raise the minimum"):
        make(tmp_path, [pa.array([1, 2, 3])], 1)
    assert not list((tmp_path / "out/_vocabulary").iterdir())


POOLS = []
"""A buffer does not keep the pool alive that it is of."""


@contextmanager
def peak_bytes(peak):
    """Appends to `peak` the most bytes that Arrow and NumPy held at once, beyond those held before."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    POOLS.append(pool)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        yield
        peak.append(pool.max_memory() + tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


@pytest.mark.prove
@pytest.mark.parametrize("num_parts", [50, 100])
def test_memory_stays_bounded_as_the_vocabulary_grows(tmp_path, num_parts):
    """Made and used within 6 MB, though its values, keys and counts take 50 and more."""
    rows = 20_000
    peak = []
    with small(None, block_bytes=64 << 10, fan_in=8, partition_rows=10_000):
        for part in range(num_parts):
            texts = pa.array([f"a text of some length, number {n:07}" for n in range(part * rows, (part + 1) * rows)])
            count_part(pa.table({NAME: texts}), tmp_path, part_name(0, part))
        with peak_bytes(peak):
            merge(tmp_path, NAME, 1, tmp_path / "v")
        with peak_bytes(peak):
            found = Vocabulary(tmp_path / "v", NAME, cache_bytes=1 << 20)
            for _ in range(2):
                assert min(found.look_up(pa.chunked_array([texts[:5_000]])).to_numpy()) > 0
    assert len(found) == num_parts * rows
    assert num_parts * (texts.nbytes + 16 * rows) > 9 * 6e6
    assert max(peak) < 6e6, peak


def test_concurrent_lookups_give_the_right_ids(tmp_path):
    values = np.random.default_rng(2).permutation(30_000)
    with small(None, 10_000, 4, 1_000):
        found = Vocabulary(make(tmp_path, [pa.array(values)], 1), NAME, cache_bytes=200_000)
        columns = [pa.chunked_array([pa.array(part)]) for part in np.array_split(values, 8)]
        with ThreadPoolExecutor(4) as pool:
            ids = pa.concat_arrays(list(pool.map(found.look_up, columns)))
    assert ids.equals(Vocabulary(path_of(tmp_path / "out", NAME), NAME).look_up(pa.chunked_array([pa.array(values)])))
    assert sorted(ids.to_pylist()) == list(range(1, 30_001))


def test_a_parquet_file_that_is_no_vocabulary_is_refused(tmp_path):
    schema = pa.schema([("value", pa.int64())], {vocabulary.FIRST_KEYS_ENTRY: b"[]"})
    pq.write_table(schema.empty_table(), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet is damaged .expected the first key of each row group"):
        Vocabulary(tmp_path / "a.parquet", NAME)
