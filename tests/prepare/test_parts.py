"""A part's files hold its rows and nothing else, and a record means whole files."""

import io
import itertools
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.prepare import parts
from pipeline.prepare.parts import Made, OutputFile, Record, Records, parquet_bytes, part_name, write_splits
from pipeline.storage.files import checksum_of


def make_table(num_rows=1000, seed=0):
    rng = np.random.default_rng(seed)
    texts = [None if v % 7 == 0 else f"v{v}" for v in rng.integers(0, 300, num_rows)]
    return pa.table({
        "c": pa.chunked_array([pa.array(texts[: num_rows // 3]), pa.array(texts[num_rows // 3 :], pa.string())]),
        "ids": pa.array([list(range(n % 3)) for n in range(num_rows)], pa.list_(pa.int64())),
        "label": pa.array(rng.integers(0, 2, num_rows), pa.int8()),
        "n": pa.array([None if v < 0.1 else v for v in rng.random(num_rows)], pa.float32()),
        "raw": pa.array([b"\xff" * (n % 4) for n in range(num_rows)], pa.binary()),
    })  # fmt: skip


def decoded(content):
    table = pq.read_table(io.BytesIO(content))
    columns = [c.cast(c.type.value_type) if pa.types.is_dictionary(c.type) else c for c in table.columns]
    return pa.table(columns, names=table.column_names).combine_chunks()


def content_of(table):
    """Parquet file of a part without a split."""
    return parquet_bytes(parts.in_row_groups(table))


@pytest.fixture
def small_groups(monkeypatch):
    monkeypatch.setattr(parts, "ROW_GROUP", 128)


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("change", [lambda t: t, lambda t: t.slice(100, 500), lambda t: t.slice(0, 1)])
def test_a_parquet_file_holds_the_rows_of_its_table(change):
    table = change(make_table())
    content = content_of(table)
    assert decoded(content).equals(table.combine_chunks())
    assert pq.read_metadata(io.BytesIO(content)).num_row_groups == -(-table.num_rows // 128)


@pytest.mark.usefixtures("small_groups")
def test_the_same_rows_have_the_same_bytes_however_chunked():
    table = make_table()
    rechunked = pa.concat_tables([table.slice(0, 11), table.slice(11, 600), table.slice(611)])
    assert len({content_of(t).to_pybytes() for t in (table, rechunked, table.combine_chunks())}) == 1


@pytest.mark.usefixtures("small_groups")
def test_a_dictionary_holds_only_texts_of_its_row_group():
    content = content_of(make_table())
    with pq.ParquetFile(io.BytesIO(content), read_dictionary=["c"]) as file:
        for group in range(file.num_row_groups):
            texts = file.read_row_group(group).column("c").combine_chunks()
            assert len(texts.dictionary) == len(texts.unique().drop_null())
            assert file.metadata.row_group(group).column(0).has_dictionary_page


def test_a_column_of_many_texts_keeps_its_dictionary():
    """Parquet's own limit is 1 MiB; beyond it each text would be written as often as it occurs."""
    table = pa.table({"c": [f"{n % 30_000:064}" for n in range(60_000)]})
    content = content_of(table)
    chunk = pq.read_metadata(io.BytesIO(content)).row_group(0).column(0)
    assert chunk.has_dictionary_page
    assert 30_000 * (64 + 4) < chunk.total_uncompressed_size < 30_000 * (64 + 4) + 60_000 * 3


@pytest.mark.usefixtures("small_groups")
def test_each_split_holds_its_rows_and_matches_its_record(tmp_path):
    table = make_table()
    split_N = np.zeros(1000, np.int8)
    split_N[5:10] = 2
    for split in ("train", "validation", "test"):
        (tmp_path / split).mkdir()
    written = write_splits(tmp_path, "part-0000-00001", table, split_N, ["label"])
    assert [w.name for w in written] == ["train/part-0000-00001.parquet", "test/part-0000-00001.parquet"]
    assert sorted(p.name for p in tmp_path.rglob("*.*")) == ["part-0000-00001.parquet"] * 2
    labels = table["label"].to_numpy()
    assert [w.rows for w in written] == [995, 5]
    assert [w.positives["label"] for w in written] == [labels[split_N == 0].sum(), labels[5:10].sum()]
    for w in written:
        content = (tmp_path / w.name).read_bytes()
        assert (w.bytes, w.checksum) == (len(content), checksum_of(tmp_path / w.name))
        rows = table.filter(pa.array(split_N == ("train", "validation", "test").index(w.split)))
        assert decoded(content).equals(rows.combine_chunks())


def test_limits_are_the_minimum_and_maximum_of_a_column():
    table = pa.table({"a": [3, None, -2], "b": pa.array([None, None, None], pa.int32()), "c": [0.5, -0.5, 9.0]})
    assert parts.limits(table, ["a", "b", "c"]) == {"a": (-2, 3), "c": (-0.5, 9.0)}
    found = parts.limits(pa.table({"b": [True, None, False]}), ["b"])
    assert found == {"b": (0, 1)}
    assert [type(value) for value in found["b"]] == [int, int]


def test_records_are_read_back_unchanged_and_in_order(tmp_path):
    records, all_of = Records(tmp_path), []
    for file, number in itertools.product((0, 10_000, 2), (100_000, 3)):
        name = f"train/{part_name(file, number)}.parquet"
        written = OutputFile(split="train", name=name, rows=3, positives={"label": 1}, bytes=99, checksum="ab")
        of = {"file": file, "number": number, "last": number == 3, "files": (written,)}
        all_of.append(Record(**of, lines=5, skipped=2, numbers={"i": (-1.5, 3), "x": (0.1, math.inf)}))
    for record in all_of:
        records.write(record)
    assert list(records) == sorted(all_of, key=lambda record: (record.file, record.number))
    assert records.names() == {record.name for record in all_of}
    made = Made(records, 10_000)
    assert 3 in made
    assert 100_000 in made
    assert 4 not in made
    assert part_name(2, 3) in records.names()


def test_a_record_under_the_name_of_another_part_is_refused(tmp_path):
    records = Records(tmp_path)
    of = {"file": 0, "number": 1, "lines": 0, "skipped": 0, "last": True, "files": ()}
    records.write(Record(**of, numbers={}))
    records.path(part_name(0, 1)).rename(records.path(part_name(0, 2)))
    with pytest.raises(ValueError, match="is the record of another part; remove it, and the same command makes it"):
        records.read(part_name(0, 2))
