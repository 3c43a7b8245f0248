"""What the command line refuses, and what it accepts."""

import json
import os

import dask
import pyarrow.dataset
import pytest
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


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("criteo", "nowhere"), "nowhere matches no text file"),
        (("criteo", "day", "--schema", "a:label"), "--schema has no meaning for criteo"),
        (("csv", "day"), "csv needs --schema"),
        (("csv", "day", "--schema", "a:price"), "expected NAME:ROLE"),
        (("csv", "day", "--schema", "nowhere.json"), "nowhere.json"),
        (("libffm", "day"), "libffm needs --fields"),
        (("libsvm", "day", "--many", "3"), "--many has no meaning for libsvm"),
        (("criteo", "day", "--vocabulary", "i1"), "--vocabulary: i1 is no category"),
        (("criteo", "day", "--minimum", "5"), "--minimum needs --vocabulary"),
        (("criteo", "day", "--vocabulary", "c1", "--minimum", "0"), "give at least 1"),
        (
            ("criteo", "day", "--vocabulary", "c1", "--minimum", "c2=5"),
            "'c2' is not in --vocabulary, where there is c1",
        ),
        (("criteo", "day", "--vocabulary", "all", "c1"), "--vocabulary: all is no category"),
        (("criteo", "day", "--workers", "0"), "--workers 0"),
        (("criteo", "day", "--skip-bad", "2"), "--skip-bad 2.0: give a share"),
        (("criteo", "day", "--split", "time:hour,test_from=3"), "there is no column 'hour'"),
        (("criteo", "day", "--piece-size", "0 B"), "--piece-size 0 B: choose a size"),
        (("criteo", "day", "--scheduler", "127.0.0.1:1"), "--scheduler 127.0.0.1:1: nobody answers"),
    ],
)
def test_an_impossible_request_is_refused_with_its_reason(tmp_path, source, refused, monkeypatch, argv, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(dask.config.config["distributed"]["comm"]["timeouts"], "connect", "1s")
    assert said in refused(*argv)
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
    assert f"{more} is a source here and was none there" in said
    assert "--fresh moves it aside" in said
    content = source.read_bytes()
    source.write_bytes(b"0" + content[1:])
    os.utime(source, ns=(0, 0))
    assert f"{source} has changed since (mtime_ns, head)" in refused("criteo", source, *SPLIT)
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
    assert "holds something else; --fresh moves it aside" in refused("criteo", source)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "all of it"


def test_an_output_in_use_is_refused_with_its_process(tmp_path, source, refused):
    with RunLock(tmp_path / "out"):
        assert f"is in use by process {os.getpid()}" in refused("criteo", source)


@pytest.mark.parametrize("name", ["prepared.json", "vocabulary", ".prepare/uniques"])
def test_an_output_of_an_earlier_version_is_refused(tmp_path, source, refused, name):
    assert prepare("criteo", source, tmp_path / "out") == 0
    (tmp_path / "out" / name).mkdir()
    assert f"was made by an earlier version, as {name} in it shows" in refused("criteo", source)


def test_an_output_is_read_as_one_data_set(tmp_path, source):
    argv = ("criteo", str(source), "--out", str(tmp_path / "out"), *SPLIT, "--vocabulary", "c1")
    assert main([*argv]) == 0
    assert pyarrow.dataset.dataset(tmp_path / "out").count_rows() == 200
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written - {"train", "validation", "test"} == {"_prepared.json", "_workflow.py", "_vocabulary", ".prepare"}
    assert all(name in OUT for name in written)


def test_a_preparation_without_training_rows_is_an_error(tmp_path, capsys):
    lines = write_lines(tmp_path / "log", "avazu", 100)
    assert prepare("avazu", lines, tmp_path / "out", "--split", "time:hour,test_from=0") == 1
    assert (
        "error: --split time:hour,test_from=0: no row is for train, since hour goes from 141021"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "out" / "_prepared.json").exists()


def test_memory_use_is_announced(tmp_path, source, capsys):
    assert prepare("criteo", source, tmp_path / "out", "--workers", 3, "--piece-size", "1 MiB") == 0
    assert (
        "3 parts at a time, of 1 MiB of text: up to 6 MiB of memory each, and 400 MiB in addition"
        in capsys.readouterr().out
    )


def test_skipped_lines_are_reported_at_the_end_and_on_a_rerun(tmp_path, source, capsys):
    source.write_bytes(source.read_bytes() + b"x\n")
    more = write_lines(tmp_path / "more", "criteo", 10)
    argv = ["criteo", str(source), str(more), "--out", str(tmp_path / "out"), "--skip-bad", "0.1"]
    for _ in range(2):
        assert main(argv) == 0
        assert "skipped as bad: 1 of 211 lines, in 1 of 2 files; _prepared.json says" in capsys.readouterr().out


@pytest.mark.parametrize(("suffix", "text"), [("json", "[" * 100_000), ("toml", "columns = 2020-01-01"), ("json", "1")])
def test_an_invalid_schema_file_is_refused(tmp_path, suffix, text, capsys):
    source, schema = write_lines(tmp_path / "log", "csv", 5), tmp_path / f"schema.{suffix}"
    schema.write_text(text)
    assert main(["csv", str(source), "--schema", str(schema), "--out", str(tmp_path / "out")]) == 2
    assert f"error: {schema}: is no schema of columns" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["file", "file/below", "/proc/out", "a\nb/" + "x" * 300])
def test_an_output_that_cannot_be_created_is_refused(tmp_path, source, refused, name):
    (tmp_path / "file").write_text("")
    said = refused("criteo", source, out=tmp_path / name)
    assert "[Errno" not in said
    assert "place" in said or "permissions" in said


def test_a_split_value_of_another_type_is_refused(tmp_path, refused):
    lines = write_lines(tmp_path / "log", "avazu", 200)
    said = refused("avazu", lines, "--split", "time:hour,test_from=2014-10-28")
    assert "'2014-10-28' is no int32, which hour is" in said


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
