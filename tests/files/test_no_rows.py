"""Parts without rows, as Spark, Hive and Dask write them, add nothing."""

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data.parquet_files import data_of, epoch_of, write

from pipeline.data.source import Source
from pipeline.preflight.setup import remarks
from pipeline.prepare.main import main as prepare

ROWS = {"label": [0, 1, 1], "c": [1, 2, 3]}
HEAD = b"label,c\n"


def contents(out):
    return [path.read_bytes() for path in sorted((out / "train").glob("*"))]


def made(form, folder, *options):
    out = folder.with_name(f"{folder.name}-out")
    columns = ["--schema", "label:label", "c:category:int64" if form == "csv" else "c:category"]
    code = prepare([form, str(folder), "--out", str(out), *columns, "--split", "ratio:test=0.2,seed=1", *options])
    return code, contents(out) if code == 0 else None


@pytest.mark.parametrize("places", [("0",), ("2",), ("0", "2")])
def test_parquet_parts_without_rows_add_nothing(tmp_path, places):
    for folder in (tmp_path / "a", tmp_path / "b"):
        for name in ("1", "3"):
            write(folder / f"{name}.parquet", **ROWS)
    for name in places:
        write(tmp_path / "a" / f"{name}.parquet", **{n: pa.array([], pa.int64()) for n in ROWS})
    sources = [Source(data_of(tmp_path, train=(name,)), 1) for name in "ab"]
    assert epoch_of(sources[0]) == epoch_of(sources[1])
    assert made("parquet", tmp_path / "a") == made("parquet", tmp_path / "b")


@pytest.mark.parametrize("rest", [b"", HEAD, HEAD[:-1]], ids=["no bytes", "a header", "a header without its end"])
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_text_parts_without_rows_add_nothing(tmp_path, suffix, rest):
    pack = gzip.compress if suffix.endswith("gz") else bytes
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        for name in ("1", "3"):
            (folder / f"{name}{suffix}").write_bytes(pack(HEAD + b"0,1\n1,2\n" * 40))
    for name in ("0", "2", "4"):
        (tmp_path / "a" / f"{name}{suffix}").write_bytes(pack(rest))
    assert made("csv", tmp_path / "a") == made("csv", tmp_path / "b")


def test_a_line_without_its_header_is_no_part_without_rows(tmp_path, capsys):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/1.csv").write_bytes(HEAD + b"0,1\n")
    (tmp_path / "a/2.csv").write_bytes(b"1,2\n")
    assert made("csv", tmp_path / "a")[0] == 2
    assert "2.csv: has no header" in capsys.readouterr().err


def test_a_split_without_rows_gets_a_line(tmp_path):
    write(tmp_path / "train/a.parquet", **ROWS)
    write(tmp_path / "none/a.parquet", **{n: pa.array([], pa.int64()) for n in ROWS})
    (tmp_path / "train/notes.txt").touch()
    data = data_of(tmp_path, validation=("none",))
    said = list(remarks(data, Source(data, 0).num_examples))
    assert said == [
        "data.train: next to Parquet 1 other files are left out: notes.txt",
        "data.validation: its files have no rows, so that nothing is evaluated on them; name files that have",
    ]


def test_a_source_whose_parts_are_all_without_rows_is_refused(tmp_path, capsys):
    pq.write_table(pa.table(ROWS).slice(0, 0), tmp_path / "a.parquet")
    assert prepare(["parquet", str(tmp_path), "--out", str(tmp_path / "out"), "--schema", "label:label"]) == 2
    assert "a.parquet: has no rows" in capsys.readouterr().err
