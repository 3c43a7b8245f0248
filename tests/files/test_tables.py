"""Tables in folders: the log of a Delta table says which files are rows; tables of other kinds are refused by name."""

import json
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data.parquet_files import data_of, epoch_of

from pipeline.data.identity import Begun, as_json, begun_in
from pipeline.data.source import Source
from pipeline.files.find import find, natural_order
from pipeline.files.tables import table_files
from pipeline.workflow import Category, Data, Time

deltalake = pytest.importorskip("deltalake")


def rows(*values):
    return pa.table({"label": [0] * len(values), "c": list(values), "day": [f"d {v % 2}" for v in values]})


@pytest.fixture
def table(tmp_path):
    """A table of three versions: the second one adds rows, the third one rewrites files without some rows."""
    folder = str(tmp_path / "log")
    deltalake.write_deltalake(folder, rows(1, 2, 3), partition_by=["day"])
    deltalake.write_deltalake(folder, rows(4, 5), mode="append")
    deltalake.DeltaTable(folder).delete("c = 2")
    return tmp_path / "log"


def read_ids(folder, **settings):
    source = Source(data_of(folder.parent, train=(folder.name,), shuffle_window=0, **settings), 0)
    return len(epoch_of(source)), source


def test_a_delta_table_is_read_at_its_newest_version(table):
    count, source = read_ids(table)
    assert (count, len(list(table.rglob("*.parquet")))) == (4, len(source.identity["train"].files) + 1)
    found = find([str(table)]).files
    assert {file.partitions for file in found} == {(("day", "d 0"),), (("day", "d 1"),)}
    assert [file.place for file in found] == [file.place for file in find([str(table.parent)]).files]
    shutil.copytree(table, table.parent / "moved/log")
    assert read_ids(table.parent / "moved/log")[0] == 4


@pytest.mark.parametrize(
    ("part", "said"),
    [("log/*/*.parquet", r"is in a Delta table, .*; name the folder .*/log$"),
     ("log/day=*", r"is in a Delta table, .*; name the folder .*/log$"),
     ("ice/data", r"is in an Iceberg table, .*; write it .*format\(.iceberg.\)"),
     ("ice/data/day=1/a.parquet", r"is in an Iceberg table, .*; write it .*format\(.iceberg.\)")],
)  # fmt: skip
def test_a_part_of_a_table_is_refused(table, part, said):
    for name in ("ice/metadata/v1.metadata.json", "ice/data/day=1/a.parquet"):
        (table.parent / name).parent.mkdir(parents=True)
        (table.parent / name).touch()
    with pytest.raises(ValueError, match=said):
        Source(data_of(table.parent, train=(part,)), 0)


def test_a_run_goes_on_with_the_version_it_was_begun_with(table):
    count, source = read_ids(table)
    identity = as_json(source.identity)
    assert {file["version"] for file in identity["train"]["files"]} == {2}
    begun = begun_in(identity)
    deltalake.write_deltalake(str(table), rows(6, 7), mode="append")
    deltalake.DeltaTable(str(table)).delete("c = 4")
    data = data_of(table.parent, train=("log",), shuffle_window=0)
    again, now = Source(data, 0, begun=begun), Source(data, 0)
    assert again.identity == source.identity
    assert {file.version for file in now.identity["train"].files} == {4}
    assert (len(epoch_of(again)), len(epoch_of(now))) == (count, count + 1)
    deltalake.DeltaTable(str(table)).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(ValueError, match=r"begun with version 2 of this Delta table, and 1 of its files were removed"):
        Source(data, 0, begun=begun)


def test_versions_with_the_same_files_are_known_by_the_commit(table):
    _, source = read_ids(table)
    deltalake.DeltaTable(str(table)).alter.set_table_properties({"delta.appendOnly": "true"})
    data = data_of(table.parent, train=("log",), shuffle_window=0)
    again, now = Source(data, 0, begun=begun_in(as_json(source.identity))), Source(data, 0)
    assert [{file.version for file in one.identity["train"].files} for one in (again, now)] == [{2}, {3}]
    assert now.identity["train"].digest == again.identity["train"].digest
    (table / "_delta_log/00000000000000000002.json").unlink()
    with pytest.raises(ValueError, match=r"cannot be read: .*the run was begun with version 2"):
        Source(data, 0, begun=begun_in(as_json(source.identity)))


@pytest.mark.parametrize(("span", "by_time"), [("day", True), ("file", True), ("value", False), (None, False)])
def test_files_of_a_table_are_in_order_of_their_addition(tmp_path, span, by_time):
    for number in range(5):
        day = {"label": [0], "c": [number], "at": pa.array([1_795_478_400 + number], pa.timestamp("s")), "day": ["d 1"]}
        deltalake.write_deltalake(str(tmp_path / "log"), pa.table(day), mode="append", partition_by=["day"])
    deltalake.DeltaTable(str(tmp_path / "log")).create_checkpoint()
    time = {"time": Time(name="day" if span == "value" else "at"), "span": span} if span else {}
    source = Source(data_of(tmp_path, train=("log",), **time), 0)
    files = [file.path for file in source.identity["train"].files]
    numbers = [pq.ParquetFile(tmp_path / file).read()["c"][0].as_py() for file in files]
    assert numbers == [*range(5)] if by_time else files == sorted(files, key=natural_order)


def with_feature(folder, name, settings=None, vector=False):
    """A table whose log says that it has a feature."""
    pq.write_table(rows(1, 2), folder / "a.parquet")
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in (("label", "long"), ("c", "long"))]
    add = {"path": "a.parquet", "size": 1, "partitionValues": {}, "modificationTime": 0, "dataChange": True}
    vector_of = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4, "sizeInBytes": 40,
                 "cardinality": 1}  # fmt: skip
    (folder / "_delta_log").mkdir()
    actions = (
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [name],
                      "writerFeatures": [name]}},
        {"metaData": {"id": "x", "format": {"provider": "parquet", "options": {}}, "partitionColumns": [],
                      "schemaString": json.dumps({"type": "struct", "fields": fields}),
                      "configuration": settings or {}, "createdTime": 0}},
        {"add": add | ({"deletionVector": vector_of} if vector else {})},
    )  # fmt: skip
    (folder / "_delta_log/00000000000000000000.json").write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize(
    ("name", "settings", "vector"),
    [("deletionVectors", {"delta.enableDeletionVectors": "true"}, True), ("madeUp", {}, False),
     ("columnMapping", {"delta.columnMapping.mode": "name"}, False)],
)  # fmt: skip
def test_a_feature_that_changes_rows_is_refused_by_its_name(tmp_path, name, settings, vector):
    with_feature(tmp_path, name, settings, vector)
    with pytest.raises(ValueError, match=name) as caught:
        table_files(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_feature_without_use_is_no_obstacle(tmp_path):
    with_feature(tmp_path, "deletionVectors", {"delta.enableDeletionVectors": "true"})
    assert table_files(str(tmp_path)) == (0, {str(tmp_path / "a.parquet"): ((), 0)}, ())


@pytest.mark.parametrize(
    ("mark", "said"),
    [("metadata/v1.metadata.json", "is an Iceberg table"), (".hoodie/hoodie.properties", "is a Hudi table"),
     ("_delta_log/00000000000000000000.json", "Delta table")],
)  # fmt: skip
def test_a_table_that_cannot_be_read_is_refused_with_a_way(tmp_path, mark, said):
    pq.write_table(rows(1), tmp_path / "a.parquet")
    (tmp_path / mark).parent.mkdir()
    (tmp_path / mark).write_text("{}")
    with pytest.raises(ValueError, match=said) as caught:
        Source(data_of(tmp_path, train=(".",)), 0)
    assert "\n" not in str(caught.value)
    assert "write.parquet" in str(caught.value) or "cannot be read" in str(caught.value)


def test_a_missing_deltalake_is_named_with_its_extra(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ValueError, match="is not installed; install the extra delta"):
        table_files(str(Path(table)))


def test_text_that_a_table_declares_stays_text_with_digits(tmp_path):
    columns = {"click": [0, 1], "site": pa.array(["7", "12"]), "hour": [3, 4]}
    deltalake.write_deltalake(str(tmp_path / "log"), pa.table(columns), partition_by=["site", "hour"])
    assert {file.whole for file in find(["log"], tmp_path).files} == {("hour",)}
    data = Data(root=tmp_path, train=("log",), labels=("click",), categories=(Category(name="site"),))
    found = Source(data, 0).identity["train"]
    assert found.columns["site"].startswith("dictionary<values=string")
    # A run that began with integers keeps them.
    was = found.model_copy(update={"columns": None, "types": found.types | {"site": "int64"}})
    assert Source(data, 0, begun=Begun({"train": was})).identity["train"].columns["site"] == "int64"
