"""What the command line refuses, and what it accepts."""

import gzip
import json
import os

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from support.data import raw_lines as made
from support.data.preparations import SPLIT, contents, prepare, write_lines

from pipeline.prepare.arguments import OUT
from pipeline.prepare.command import sources_of
from pipeline.prepare.main import main
from pipeline.storage.lock import RunLock


@pytest.fixture
def source(tmp_path):
    return write_lines(tmp_path / "day", "criteo", 200)


@pytest.fixture
def refused(tmp_path, capsys):
    def of(*argv, out=None):
        capsys.readouterr()
        assert main([*map(str, argv), "--out", str(out or tmp_path / "out")]) == 2
        err = capsys.readouterr().err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err

    return of


PACKED = gzip.compress(made.criteo_lines(5))
SOURCES = {
    "day": made.criteo_lines(200),
    "avazu": made.avazu_lines(200),
    "log": b"click,city\n1,a\n0,b\n",
    "more": b"click,city,more\n1,a,b\n",
    "unlabeled": b"city\na\n",
    "empty": b"",
    "text.gz": made.criteo_lines(5),
    "packed.zst": PACKED,
    "packed.tsv": PACKED,
    "packed.zip": b"PK\x03\x04",
    "packed.xz": b"\xfd7zXZ\x00",
    "deep.json": b"[" * 100_000,
}
"""Content of the files that the requests below name."""
OTHER_SUFFIX = "is compressed as .gz, which its name does not say; rename it to end in .gz"
REFUSED = [
    ("criteo nowhere", "nowhere matches no text file"),
    ("criteo day --schema a:label", "--schema does not apply to criteo"),
    ("libsvm day --many 3", "--many does not apply to libsvm"),
    ("csv log", "csv needs --schema"),
    ("csv log --schema a:price", "expected NAME:ROLE"),
    ("csv log --schema nowhere.json", "nowhere.json"),
    ("csv log --schema deep.json", "error: deep.json is not a schema of columns"),
    ("csv log --schema x:number", "no column has the role `label`"),
    ("csv log --schema y:label x:number x:category", "more than once: x"),
    *((f"csv log --schema click:label:{values}", "the two values that become 0 and 1, such as no/yes")
      for values in ("no", "no/NO", "a/b/c")),
    ("csv log --schema click:label city:category --no-header none*", "--no-header none*: matches none of the sources"),
    ("csv more --schema click:label city:category", "has 'more'; is the header missing? Else name the columns"),
    ("csv unlabeled --schema click:label city:category",
     "has no column 'click', a label; if its rows are to be scored, give --no-label"),
    ("csv log --schema click:label --no-label --split ratio:test=0.5", "leave out --split"),
    ("csv clicks.parquet --schema click:label",
     "clicks.parquet is a Parquet file, not lines of text; give the format parquet"),
    ("parquet clicks.parquet --schema click:label x:number", "no column is named x; it has: click, i1, c2"),
    ("parquet clicks.parquet --schema click:label c2:number", "column 'c2' has type dictionary"),
    ("parquet clicks.parquet --schema i1:number", "no column has the role `label`"),
    ("parquet clicks.parquet --schema click:label:int8", "expected NAME:ROLE with"),
    ("criteo text.gz", "text.gz is not compressed, although its name ends in .gz; rename it"),
    ("criteo packed.zst", f"packed.zst {OTHER_SUFFIX}"),
    ("criteo packed.tsv", f"packed.tsv {OTHER_SUFFIX}"),
    ("criteo packed.zip", "packed.zip is compressed (.zip); decompress it"),
    ("criteo packed.xz", "packed.xz is compressed (.xz); decompress it"),
    ("criteo empty", "empty is empty; is it complete? Leave it out"),
    ("libffm day", "libffm needs --fields"),
    ("libffm day --fields 1 --many 2", "libffm: fields [2] are named in `many` or `numbers` but not in `fields`"),
    ("libffm day --fields 1 --many 1 --numbers 1", "libffm: fields [1] are named"),
    ("libffm day --fields 1099511627776", "libffm: fields: expected at most 10,000 from 0 to 1,048,575"),
    ("criteo day --workers 0", "--workers 0"),
    ("criteo day --skip-bad 2", "--skip-bad 2.0: give a share"),
    ("criteo day --piece-size 0B", "--piece-size 0 B: choose a size"),
    ("criteo day --split time:hour,test_from=3", "there is no column 'hour'; the columns are label, i1"),
    ("avazu avazu --split time:hour,test_from=2014-10-28", "'2014-10-28' is no int32, which hour is"),
    ("avazu avazu --split file:test=c*", "'c*' matches none of the sources: avazu"),
    ("avazu avazu --split file:test=*", "no source is left for training"),
    *((f"avazu avazu --split {text}", f"--split {text}: expected ratio:") for text in (
        "ratio", "ratio:valid=0.1", "ratio:test=much", "time:", "time:x", "time:x=3", "time:x,from=3", "file:",
        "file:a", "file:train=a", "day:1")),
    *((f"avazu avazu --split {text}", "--split ratio: validation is 0.0 and test") for text in (
        "ratio:test=1.5", "ratio:test=-0.1")),
]  # fmt: skip


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    for name, content in SOURCES.items():
        (folder / name).write_bytes(content)
    table = pa.table({"click": [True], "i1": [1.0], "c2": pa.array(["a"]).dictionary_encode()})
    pq.write_table(table, folder / "clicks.parquet")
    return folder


@pytest.mark.parametrize(("words", "said"), REFUSED, ids=[words for words, _ in REFUSED])
def test_an_impossible_request_is_refused_with_its_reason(tmp_path, sources, refused, monkeypatch, words, said):
    monkeypatch.chdir(sources)
    assert said in refused(*words.split())
    assert not (tmp_path / "out" / "_prepared.json").exists()


def test_sources_are_taken_in_the_order_of_their_names(tmp_path):
    for name in ("logs/b.gz", "logs/a10", "logs/a9", "logs/.hidden", "more/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    files, left_out = sources_of([str(tmp_path / "more" / "c"), str(tmp_path / "logs")])
    assert ([file.name for file in files], left_out) == (["a9", "a10", "b.gz", "c"], [])


def test_a_finished_output_is_left_unchanged(tmp_path, source, capsys):
    assert prepare("criteo", source, tmp_path / "out", *SPLIT) == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    capsys.readouterr()
    assert prepare("criteo", source, tmp_path / "out", "--workers", 1, *SPLIT) == 0
    assert "is finished" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before
    assert [path.name for path in (tmp_path / "out" / ".prepare").iterdir()] == ["command.json"]


def test_another_command_is_refused_with_the_difference(tmp_path, source, refused):
    out = tmp_path / "out"
    assert prepare("criteo", source, out, *SPLIT) == 0
    (out / "_prepared.json").unlink()
    before = contents(out)
    more = write_lines(tmp_path / "more", "criteo", 10)
    said = refused("criteo", source, more, "--split", "ratio:test=0.5")
    assert 'split is "ratio:validation=0.1,test=0.1,seed=3" there and "ratio:test=0.5" here' in said
    assert f"{more} is a source here and was not one there" in said
    assert "--fresh moves it aside" in said
    content = source.read_bytes()
    source.write_bytes(b"0" + content[1:])
    os.utime(source, ns=(0, 0))
    assert f"{source} has changed since (mtime_ns, head)" in refused("criteo", source, "--split", "ratio:test=0.5")
    assert contents(out) == before
    assert prepare("criteo", source, out, "--fresh", *SPLIT) == 0
    assert contents(tmp_path / "out.1") == before


def test_a_changed_schema_file_is_refused(tmp_path, refused):
    source, schema = write_lines(tmp_path / "log", "csv", 50), tmp_path / "schema.json"
    columns = ["click:label", "price:number", "city:category"]
    schema.write_text(json.dumps({"columns": columns, "skip_others": True}))
    argv = ("csv", source, "--schema", schema)
    assert main([*map(str, argv), "--out", str(tmp_path / "out")]) == 0
    schema.write_text(json.dumps({"columns": [*columns, "item:category"], "skip_others": True}))
    assert "read.fields is" in refused(*argv)


def test_a_folder_with_other_files_is_refused_and_unchanged(tmp_path, source, refused):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("all of it")
    assert "holds other files; --fresh moves it aside" in refused("criteo", source)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "all of it"


def test_an_output_in_use_is_refused_with_its_process(tmp_path, source, refused):
    with RunLock(tmp_path / "out"):
        assert f"is in use by process {os.getpid()}" in refused("criteo", source)


def test_an_output_is_read_as_one_data_set(tmp_path, source):
    argv = ("criteo", str(source), "--out", str(tmp_path / "out"), *SPLIT)
    assert main([*argv]) == 0
    assert pyarrow.dataset.dataset(tmp_path / "out").count_rows() == 200
    written = {path.name for path in (tmp_path / "out").iterdir()}
    others = {"_prepared.json", "_statistics.json", "_workflow.py", ".prepare"}
    assert written - {"train", "validation", "test"} == others
    assert all(name in OUT for name in written)


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ("time:hour,test_from=0", "train, since hour goes from 141021"),
        ("time:hour,validation_from=14110100,test_from=14110200", "validation or test, since hour goes from 14102100"),
        ("ratio:test=1e-9,seed=1", "test; give another --split, with --fresh"),
    ],
)
def test_a_split_without_rows_is_an_error(tmp_path, capsys, split, said):
    lines = write_lines(tmp_path / "log", "avazu", 100)
    assert prepare("avazu", lines, tmp_path / "out", "--split", split) == 1
    assert f"error: --split {split}: no row is for {said}" in capsys.readouterr().err
    assert not (tmp_path / "out" / "_prepared.json").exists()


@pytest.mark.parametrize(("every", "code"), [(100, 0), (99, 1)])
def test_more_than_a_hundredth_of_other_times_is_refused(tmp_path, capsys, every, code):
    times = [1_790_000_000 + n if n % every else 0 for n in range(9900)]
    (tmp_path / "a.csv").write_text("click,at\n" + "".join(f"{n % 2},{at}\n" for n, at in enumerate(times)))
    way = ("--schema", "click:label", "at:time:whole", "--split", "time:at,test_from=1790009000")
    assert prepare("csv", tmp_path / "a.csv", tmp_path / "out", *way) == code
    said = capsys.readouterr()
    assert f"{9900 // every} of 9,900 rows have times outside 1990 to 2100" in (said.err if code else said.out)


def test_memory_use_is_announced(tmp_path, source, capsys):
    assert prepare("criteo", source, tmp_path / "out", "--workers", 3, "--piece-size", "1 MiB") == 0
    said = "3 parts at a time, of 1 MiB of text: up to 6 MiB of memory each, and 400 MiB in addition"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("name", ["file", "file/below", "/proc/out", "a\nb/" + "x" * 300])
def test_an_output_that_cannot_be_created_is_refused(tmp_path, source, refused, name):
    (tmp_path / "file").write_text("")
    said = refused("criteo", source, out=tmp_path / name)
    assert "[Errno" not in said
    assert "place" in said or "permissions" in said


def test_paths_that_are_not_utf8_are_accepted_and_known_again(tmp_path, source, capsys):
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    path = source.rename(folder / os.fsdecode(b"day\xff"))
    for is_finished in (False, True):
        assert prepare("criteo", path, tmp_path / "out") == 0
        assert ("is finished" in capsys.readouterr().out) == is_finished


def test_help_lists_the_formats_and_shows_the_options_of_one(capsys):
    for argv in (["--help"], ["csv", "--help"], ["libffm", "-h"]):
        with pytest.raises(SystemExit):
            main(argv)
    formats, csv, libffm = capsys.readouterr().out.split("usage: ")[1:]
    assert all(f"\n  {name} " in formats for name in ("criteo", "avazu", "csv", "libsvm", "libffm", "parquet"))
    assert "FORMAT --help" in formats
    assert "--split" not in formats
    assert ("--schema" in csv, "--fields" in csv, "--split" in csv) == (True, False, True)
    assert ("--schema" in libffm, "--fields" in libffm, "--split" in libffm) == (False, True, True)


def test_a_wrong_size_is_refused_with_one_that_is_right(capsys):
    with pytest.raises(SystemExit):
        main(["criteo", "day", "--out", "out", "--piece-size", "64 MB"])
    assert """argument --piece-size: expected a size such as "64 MiB" (units""" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("000000_0", b"ORC\x00\x01", " is an ORC file, which is not supported; write it as Parquet"),
        ("log.feather", b"ARROW1\x00\x00", " is an Arrow file (Feather), which is not supported; write it as Parquet"),
        ("log.avro", b"Obj\x01\x04", " is an Avro file, which is not supported; write it as Parquet"),
        ("log.h5", b"\x89HDF\r\n\x1a\n", " is an HDF5 file, which is not supported; write it as Parquet"),
        ("log.parquet.gz", gzip.compress(b"PAR1\x15\x00", mtime=0), " is a Parquet file, not lines of text"),
        ("log.csv", "click,city\n1,a\n".encode("utf-16"), " is UTF-16; convert it to UTF-8: iconv -f UTF-16 -t UTF-8"),
        ("log.csv", b"sep=;\nclick;city\n1;a\n", ": line 1 is a spreadsheet's mark, sep=; remove it"),
        ("log.csv", b"click,city\r1,a\r", ": line 1: lines must end in \\n or \\r\\n"),
        ("log.xlsx", b"PK\x03\x04", " is a spreadsheet; save it as CSV in UTF-8"),
    ],
)
def test_files_of_other_tools_are_refused_by_what_they_are(tmp_path, refused, name, content, said):
    (tmp_path / name).write_bytes(content)
    assert f"{tmp_path / name}{said}" in refused("csv", tmp_path / name, "--schema", "click:label", "city:category")
