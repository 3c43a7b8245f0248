"""Labels of other values than 0 and 1, and rows that have none because they are to be scored."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.prepare.main import main

SCHEMA = ["click:label:no/yes", "user:category:int64"]


def prepared(folder, *argv):
    code = main([*map(str, argv), "--out", str(folder), "--workers", "1"])
    return code, {path.parent.name: pq.read_table(path) for path in sorted(folder.glob("*/*.parquet"))}


@pytest.mark.parametrize(("kind", "values"), [("csv", ["No", "yes"]), ("parquet", ["no", "Yes"]), ("parquet", [-1, 1])])
def test_the_named_values_of_a_label_become_0_and_1(tmp_path, kind, values):
    if kind == "csv":
        (tmp_path / "log").write_text("click,user\n" + "".join(f"{label},7\n" for label in values))
        schema = SCHEMA
    else:
        pq.write_table(pa.table({"click": values, "user": [7, 7]}), tmp_path / "log")
        schema = ["click:label:-1/1" if values[0] == -1 else "click:label:no/yes", "user:category"]
    (tmp_path / "schema.toml").write_text(f"columns = {SCHEMA}")
    named = [str(tmp_path / "schema.toml")] if kind == "csv" else schema
    code, tables = prepared(tmp_path / "out", kind, tmp_path / "log", "--schema", *named)
    assert (code, tables["train"]["click"].to_pylist()) == (0, [0, 1])


def test_a_third_value_of_a_label_is_refused_with_its_line(tmp_path, capsys):
    (tmp_path / "log").write_text("click,user\nyes,1\nmaybe,2\n")
    assert prepared(tmp_path / "out", "csv", tmp_path / "log", "--schema", *SCHEMA)[0] == 1
    assert "line 3: column 'click': a label must be no or yes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("header", "text"),
    [(True, "user\n7\n8\n"), (True, "user,click\n7,maybe\n8,\n"), (False, "7\n8\n"), (False, "no,7\n,8\n")],
)
def test_rows_to_be_scored_need_no_label(tmp_path, capsys, header, text):
    (tmp_path / "log").write_text(text)
    (tmp_path / "schema.toml").write_text(f"columns = {SCHEMA}\nheader = {str(header).lower()}")
    source = ("csv", tmp_path / "log", "--schema", tmp_path / "schema.toml", "--no-label")
    code, tables = prepared(tmp_path / "out", *source)
    assert (code, {name: table.to_pydict() for name, table in tables.items()}) == (0, {"test": {"user": [7, 8]}})
    assert "pipeline score RUN" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"test", ".prepare", "_prepared.json"}
    assert prepared(tmp_path / "out", *source)[0] == 0


def test_parquet_to_be_scored_needs_no_label(tmp_path):
    pq.write_table(pa.table({"user": [7, 8]}), tmp_path / "log")
    schema = ("--schema", "c:label", "user:category")
    code, tables = prepared(tmp_path / "out", "parquet", tmp_path / "log", "--no-label", *schema)
    assert (code, tables["test"].to_pydict()) == (0, {"user": [7, 8]})
