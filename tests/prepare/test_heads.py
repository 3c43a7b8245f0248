"""A source that is another kind of file than its name or the format says is refused before anything is made."""

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data.preparations import write_lines

from pipeline.prepare.main import main

SCHEMA = ("--schema", "click:label", "city:category")


@pytest.fixture
def refused(tmp_path, capsys):
    def of(format, *sources, options=()):
        capsys.readouterr()
        assert main([format, *map(str, sources), *options, "--out", str(tmp_path / "out")]) == 2
        assert not (tmp_path / "out").exists()
        return capsys.readouterr().err

    return of


def test_parquet_given_as_text_is_refused_with_the_right_format(tmp_path, refused):
    pq.write_table(pa.table({"click": [1]}), tmp_path / "log.csv")
    said = refused("csv", tmp_path / "log.csv", options=SCHEMA)
    assert said.startswith(f"error: {tmp_path}/log.csv: is a Parquet file, not lines of text; give the format parquet")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("000000_0", b"ORC\x00\x01", "is an ORC file, which is not read; write it as Parquet"),
        ("log.feather", b"ARROW1\x00\x00", "is an Arrow file (Feather), which is not read; write it as Parquet"),
        ("log.avro", b"Obj\x01\x04", "is an Avro file, which is not read; write it as Parquet"),
        ("log.csv", "click,city\n1,a\n".encode("utf-16"), "is UTF-16; write it as UTF-8: iconv -f UTF-16 -t UTF-8"),
        ("log.csv", b"sep=;\nclick;city\n1;a\n", "line 1 is a mark of a spreadsheet, sep=; take it out"),
        ("log.csv", b"click,city\r1,a\r", "line 1: lines must end in \\n or \\r\\n"),
        ("log.xlsx", b"PK\x03\x04", "is a spreadsheet; save it as CSV in UTF-8"),
    ],
)
def test_files_of_other_tools_are_refused_by_what_they_are(tmp_path, refused, name, content, said):
    (tmp_path / name).write_bytes(content)
    assert f"{tmp_path / name}: {said}" in refused("csv", tmp_path / name, options=SCHEMA)


def test_a_suffix_that_does_not_fit_the_content_is_refused(tmp_path, refused):
    text = write_lines(tmp_path / "log", "criteo", 5).read_bytes()
    for name, content, said in (
        ("log.gz", text, "is not compressed, although its name ends in .gz; rename it"),
        ("log.zst", gzip.compress(text), "is compressed as .gz, which its name does not say; rename it to end in .gz"),
        ("log.tsv", gzip.compress(text), "is compressed as .gz, which its name does not say; rename it to end in .gz"),
        ("log.bz2", b"BZh91AY", "is compressed (.bz2); decompress it"),
    ):
        (tmp_path / name).write_bytes(content)
        assert f"{tmp_path / name}: {said}" in refused("criteo", tmp_path / name)


def test_a_file_without_header_is_named_with_the_option_for_it(tmp_path, refused):
    (tmp_path / "train.csv").write_text("city,click\na,1\nb,0\n")
    (tmp_path / "dev.csv").write_text("1,c\n0,d\n")
    sources = (tmp_path / "dev.csv", tmp_path / "train.csv")
    said = refused("csv", *sources, options=SCHEMA)
    assert f"{sources[0]}: has no header, {sources[1]} has one; " in said
    assert said.endswith("give --no-header dev.csv\n")
    argv = ["csv", *map(str, sources), *SCHEMA, "--no-header", "dev.csv", "--out", str(tmp_path / "out")]
    assert main(argv) == 0
    rows = [row for path in sorted((tmp_path / "out/train").iterdir()) for row in pq.read_table(path).to_pylist()]
    assert [(row["click"], row["city"]) for row in rows] == [(1, "c"), (0, "d"), (1, "a"), (0, "b")]


def test_a_header_of_other_columns_is_refused_with_a_way_out(tmp_path, refused):
    (tmp_path / "log").write_text("click,city,more\n1,a,b\n")
    assert "but has 'more'; is the header missing? Else name the columns that are there in --schema" in refused(
        "csv", tmp_path / "log", options=SCHEMA
    )
    assert main(["csv", str(tmp_path / "log"), *SCHEMA, "more:skip", "--out", str(tmp_path / "made")]) == 0


def test_an_empty_file_is_refused(tmp_path, refused):
    (tmp_path / "log").touch()
    assert f"{tmp_path}/log: is empty; is it complete? Leave it out" in refused("criteo", tmp_path / "log")


def test_a_no_header_pattern_that_fits_no_file_is_refused(tmp_path, refused):
    (tmp_path / "log").write_text("click,city\n1,a\n")
    said = refused("csv", tmp_path / "log", options=(*SCHEMA, "--no-header", "dev*"))
    assert "--no-header dev*: matches none of the sources" in said


def test_a_damaged_row_group_is_named(tmp_path, capsys):
    columns = {"click": [0, 1] * 1000, "city": [f"{n}" for n in range(2000)]}
    pq.write_table(pa.table(columns), path := tmp_path / "log.parquet", use_dictionary=False)
    at, content = pq.read_metadata(path).row_group(0).column(1).data_page_offset, bytearray(path.read_bytes())
    content[at : at + 64] = b"\xff" * 64
    path.write_bytes(content)
    assert main(["parquet", str(path), *SCHEMA, "--out", str(tmp_path / "out")]) == 1
    assert f"{path}: row group 0: cannot be read, is it complete?" in capsys.readouterr().err


def test_a_wrong_size_is_told_with_one_that_is_right(capsys):
    with pytest.raises(SystemExit):
        main(["criteo", "day", "--out", "out", "--piece-size", "64 MB"])
    assert """argument --piece-size: expected a size such as "64 MiB" (units""" in capsys.readouterr().err
