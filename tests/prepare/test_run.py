"""Raw logs become what a workflow trains on, the same bytes however often that is cut short, and are reported."""

import gzip
import json
import random
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data.preparations import ROOT, SPLIT, command, contents, prepare, start, wait_for, write_lines
from support.depth import some
from support.runs.harness import run as train

from pipeline.features.settings import Standardize
from pipeline.prepare.arguments import prepare_arguments
from pipeline.prepare.command import plan_preparation
from pipeline.prepare.manifest import claim
from pipeline.prepare.run import begin, so_far
from pipeline.prepare.steps import do_piece, unfinished
from pipeline.run import load
from pipeline.storage.files import checksum_of
from pipeline.workflow import Storage

NUM_LINES = 4_000
MANY_LINES = 10_000
"""Lines of a compressed source, which are read in more than three steps."""
PIECE = "40 KiB"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_lines(tmp_path_factory.mktemp("raw") / "day_0.tsv", "criteo", NUM_LINES)


@pytest.fixture(scope="module")
def zipped(tmp_path_factory):
    lines = write_lines(tmp_path_factory.mktemp("zipped") / "day_0.tsv", "criteo", MANY_LINES)
    (path := lines.with_name("day_0.gz")).write_bytes(gzip.compress(lines.read_bytes()))
    return path


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """Contents of the folder that an undisturbed preparation leaves."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert prepare("criteo", source, out, "--piece-size", PIECE, "--workers", 1, *SPLIT) == 0
    return contents(out)


@pytest.mark.parametrize("format", some(["criteo", "avazu", "csv", "libsvm", "libffm"], "criteo"))
def test_a_prepared_output_trains_with_its_workflow(tmp_path, format):
    lines = write_lines(tmp_path / "raw", format, NUM_LINES)
    assert prepare(format, lines, tmp_path / "out", "--piece-size", PIECE, *SPLIT) == 0
    workflow = load(tmp_path / "out" / "_workflow.py")
    splits = json.loads((tmp_path / "out" / "_prepared.json").read_text())["splits"]
    assert sum(split["rows"] for split in splits.values()) == NUM_LINES
    model = workflow.model.model_copy(update={"args": {"hidden": (4,)}})
    schedule = workflow.schedule.model_copy(update={"epochs": 1})
    storage = Storage(device="64 MiB", host="64 MiB", disk="1 GiB")
    workflow = workflow.model_copy(update={"model": model, "schedule": schedule, "storage": storage})
    result = train(workflow, device_rows=40_000, ring_rows=20_000, chunk_rows=1024)
    assert result["examples"] == splits["train"]["rows"]
    assert 0 < result["logloss"] < 1


@pytest.mark.parametrize("workers", some([2, 4], 2))
def test_the_number_of_workers_changes_no_byte(tmp_path, source, whole, workers):
    assert prepare("criteo", source, tmp_path / "out", "--piece-size", PIECE, "--workers", workers, *SPLIT) == 0
    assert contents(tmp_path / "out") == whole


def test_the_manifest_describes_the_output(whole, tmp_path, source):
    manifest = json.loads(whole["_prepared.json"])
    assert manifest["sources"] == [
        {"name": source.name, "bytes": source.stat().st_size, "lines": NUM_LINES, "skipped": 0}
    ]
    files = {f["name"]: f for f in manifest["files"]}
    assert {name for name in whole if name.endswith(".parquet")} == files.keys()
    rows = {split: 0 for split in ("train", "validation", "test")}
    for name, content in whole.items():
        (path := tmp_path / "file").write_bytes(content)
        if name in files:
            assert (files[name]["bytes"], files[name]["checksum"]) == (len(content), checksum_of(path))
            assert files[name]["rows"] == pq.read_metadata(path).num_rows
            rows[files[name]["split"]] += files[name]["rows"]
    assert rows == {split: manifest["splits"][split]["rows"] for split in rows}
    lines = source.read_text().splitlines()
    positives = sum(split["positives"]["label"] for split in manifest["splits"].values())
    assert positives == sum(line.startswith("1") for line in lines)
    counts = [int(value) for line in lines if (value := line.split("\t")[2])]
    assert (manifest["columns"]["i2"]["least"], manifest["columns"]["i2"]["greatest"]) == (min(counts), max(counts))
    assert min(counts) < 0


def test_a_killed_preparation_resumes_to_the_same_bytes(tmp_path, source, whole):
    """At random instants of three runs; none of them is let through, so the last one resumes."""
    random.seed(0)
    for _ in range(3):
        with start("criteo", source, tmp_path / "out", "--piece-size", PIECE, *SPLIT) as process:
            wait_for(process, tmp_path / "out", ".prepare/write/*.json")
            time.sleep(random.uniform(0, 0.3))
            process.kill()
    assert prepare("criteo", source, tmp_path / "out", "--piece-size", PIECE, *SPLIT) == 0
    assert contents(tmp_path / "out") == whole


def planned(source, out, *more):
    args = prepare_arguments().parse_args(
        ["criteo", str(source), "--out", str(out), "--piece-size", PIECE, *SPLIT, *more]
    )
    job, pieces, command = plan_preparation(args, out)
    claim(job, out, False, command)
    begin(job)
    return job, pieces


SLOW_TO_IMPORT = {"bokeh", "dask", "distributed", "numba", "pandas", "rich", "torch"}
SMALL = """
import sys
from pipeline.prepare.main import main
assert main() == 0
print(*sorted({name.split(".")[0] for name in sys.modules}))
"""


def test_a_small_preparation_imports_nothing_slow(tmp_path):
    lines = write_lines(tmp_path / "log", "criteo", 100)
    arguments = command("criteo", lines, tmp_path / "out", *SPLIT)
    done = subprocess.run([sys.executable, "-c", SMALL, *arguments], capture_output=True, text=True, cwd=ROOT)
    imported = done.stdout.splitlines()[-1].split()
    assert {"pipeline", "pyarrow"} <= {*imported}, done.stderr
    assert not SLOW_TO_IMPORT & {*imported}


@pytest.mark.prove
def test_only_a_missing_part_of_a_stream_is_written_again(tmp_path, zipped):
    assert prepare("criteo", zipped, tmp_path / "once", "--piece-size", PIECE, *SPLIT) == 0
    job, pieces = planned(zipped, tmp_path / "out")
    do_piece(job, pieces[0])
    name = sorted(job.records.names())[3]
    job.records.path(name).unlink()
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out" / "train").iterdir()}
    assert unfinished(pieces, job.records) == pieces
    assert prepare("criteo", zipped, tmp_path / "out", "--piece-size", PIECE, *SPLIT) == 0
    changed = [p.stem for p in before if p.stat().st_mtime_ns != before[p]]
    assert changed == [name]
    assert contents(tmp_path / "out") == contents(tmp_path / "once")


@pytest.mark.prove
def test_progress_through_a_compressed_source_is_known(tmp_path, zipped):
    job, pieces = planned(zipped, tmp_path / "out")
    do_piece(job, pieces[0])
    records = job.records
    names = sorted(records.names())
    read = [so_far(records, names[:number])[1][0] for number in range(len(names) + 1)]
    assert read == sorted(read)
    assert (read[0], read[-1]) == (0, zipped.stat().st_size)
    assert len(set(read)) > 3
    assert so_far(records, names)[0] == MANY_LINES


def read(out, split):
    return pa.concat_tables([pq.read_table(path) for path in sorted((out / split).iterdir())])


def test_csv_columns_are_found_by_name_in_the_first_files_order(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("city,note,price,click\nRome,x,1.5,0\n")
    (tmp_path / "in" / "b.csv").write_text("click,price,note,city\n1,2.5,y,Oslo\n")
    schema = ("--schema", "click:label", "price:number", "note:skip", "city:category")
    assert prepare("csv", tmp_path / "in", tmp_path / "out", *schema) == 0
    assert read(tmp_path / "out", "train").to_pylist() == [
        {"city": "Rome", "price": 1.5, "click": 0}, {"city": "Oslo", "price": 2.5, "click": 1}
    ]  # fmt: skip
    for path in (tmp_path / "out" / "train").iterdir():
        assert pq.read_schema(path).names == ["city", "price", "click"]


def test_columns_are_in_the_order_of_the_source(tmp_path, source):
    assert prepare("criteo", source, tmp_path / "out", "--piece-size", PIECE, *SPLIT) == 0
    order = ["label", *(f"i{n}" for n in range(1, 14)), *(f"c{n}" for n in range(1, 27))]
    files = sorted((tmp_path / "out").glob("t*/*.parquet"))
    assert files
    assert all(pq.read_schema(path).names == order for path in files)
    assert list(json.loads((tmp_path / "out" / "_prepared.json").read_text())["columns"]) == order
    data = load(tmp_path / "out" / "_workflow.py").data
    numbers = [feature.column for feature in data.features if isinstance(feature, Standardize)]
    assert [*data.labels, *numbers, *(c.name for c in data.categories)][: len(order)] == order


def test_bad_lines_are_counted_up_to_the_share(tmp_path, source, capsys):
    lines = source.read_bytes().splitlines(keepends=True)
    for at in (17, 2000, 3600):
        lines[at] = b"nonsense\n"
    (bad := tmp_path / "bad").write_bytes(b"".join(lines))
    assert prepare("criteo", bad, tmp_path / "out", "--piece-size", PIECE, "--skip-bad", 0.01) == 0
    [described] = json.loads((tmp_path / "out" / "_prepared.json").read_text())["sources"]
    assert (described["lines"], described["skipped"]) == (NUM_LINES, 3)
    assert read(tmp_path / "out", "train").num_rows == NUM_LINES - 3
    # A part may skip one line in any case; all together may not.
    assert prepare("criteo", bad, tmp_path / "few", "--piece-size", PIECE, "--skip-bad", 0.0003) == 1
    assert "3 of 4,000 lines are bad, and --skip-bad 0.0003 allows 1" in capsys.readouterr().err


def reported(capsys, format, source, out, *more):
    """Lines of the report: of the preparation itself, and of the same command when all is finished."""
    found = []
    for _ in range(2):
        capsys.readouterr()
        assert prepare(format, source, out, *more) == 0
        found.append(capsys.readouterr().out.splitlines()[1:])
    assert found[0] == found[1]
    return found[0]


def test_each_split_is_reported_with_rows_positives_and_span(tmp_path, capsys):
    source = write_lines(tmp_path / "log", "avazu", 500)
    split = ("--split", "time:hour,validation_from=14102800,test_from=14102900", "--piece-size", "8 KiB")
    head, *rows, _ = reported(capsys, "avazu", source, tmp_path / "out", *split)
    assert head.endswith("hour from .. to")
    lines = [line.split(",") for line in source.read_text().splitlines()[1:]]
    for row, (name, first, end) in zip(rows, (("train", 0, 28), ("validation", 28, 29), ("test", 29, 99)), strict=True):
        ours = [line for line in lines if first <= int(line[2][4:6]) < end]
        hours, positives = sorted(line[2] for line in ours), sum(line[1] == "1" for line in ours)
        rate = f"({positives / len(ours):.2%})"
        assert row.split() == [name, f"{len(ours):,}", f"{positives:,}", rate, hours[0], "..", hours[-1]]


def test_the_workflow_is_named_and_not_printed(tmp_path, capsys):
    source = write_lines(tmp_path / "log", "criteo", 100)
    lines = reported(capsys, "criteo", source, tmp_path / "an out", *SPLIT)
    workflow = tmp_path / "an out" / "_workflow.py"
    assert lines[-1] == f"workflow: {workflow}; pipeline run '{workflow}' trains it"
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("bad", "said"),
    [(b"", "0 of 100 lines"), (b"x\n", "1 of 101 lines, in 1 of 1 files; _prepared.json says how many of each")],
)
def test_the_report_says_how_many_lines_were_skipped(tmp_path, capsys, bad, said):
    source = write_lines(tmp_path / "log", "criteo", 100)
    source.write_bytes(source.read_bytes() + bad)
    assert f"skipped as bad: {said}" in reported(capsys, "criteo", source, tmp_path / "out", "--skip-bad", 0.1)
