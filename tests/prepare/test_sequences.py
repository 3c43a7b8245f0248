"""Histories are what a plain loop over strictly earlier events finds, whatever the order, the files and the means."""

import importlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from functools import reduce
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.data.parquet_files import with_columns
from support.data.preparations import contents, prepare, start
from support.depth import deep, examples, some
from support.faults.small_disk import Disk, need_namespaces
from support.runs.harness import run as train

from pipeline.prepare.arguments import read_arguments
from pipeline.prepare.command import plan_preparation
from pipeline.prepare.run import begin
from pipeline.prepare.sequences import sort_events
from pipeline.prepare.steps import do_piece
from pipeline.run import load
from pipeline.workflow import Storage

COLUMNS = ("--user", "user", "--time", "at", "--items", "item", "price")
SCHEMA = ("--schema", "click:label", "item:category", "user:category", "n:category")
OPTIONS = (*COLUMNS, *SCHEMA)


def events_of(rows):
    """Events of (user, time, item); a user or an item that is None is null."""
    users, times, items = zip(*rows, strict=True)
    return {
        "user": pa.array([user and f"u{user}" for user in users], pa.string()),
        "at": list(times),
        "item": pa.array(items, pa.int64()),
        "price": pa.array([None if item is None else item / 4 for item in items], pa.float64()),
        "click": [int(item is not None) for item in items],
    }


def write_files(folder, columns, num_files=1, group=5, first=0):
    """Files of these columns and of `n`, which numbers the rows."""
    folder.mkdir(parents=True)
    table = pa.table(columns)
    table = table.append_column("n", pa.array(range(first, first + len(table))))
    cuts = [len(table) * number // num_files for number in range(num_files + 1)]
    for number, (low, high) in enumerate(pairwise(cuts)):
        if high > low:
            pq.write_table(table.slice(low, high - low), folder / f"part-{number}.parquet", row_group_size=group)
    return folder


def made(out, *argv):
    """Table of the output's rows, in order, with their split; made without a cluster."""
    args = read_arguments(["sequences", *map(str, argv), "--out", str(out), "--workers", "1"])
    job, pieces, _ = plan_preparation(args, out)
    begin(job)
    assert sort_events(job.format.histories, "", 1, threading.Event())
    for piece in pieces:
        do_piece(job, piece)
    paths = sorted(out.glob("*/*.parquet"), key=lambda path: path.name)
    tables = [
        pq.read_table(path, partitioning=None).append_column(
            "split", [[path.parent.name] * pq.read_metadata(path).num_rows]
        )
        for path in paths
    ]
    return pa.concat_tables(tables).sort_by("n")


WHERE = {
    "": lambda item: True,
    "item % 2 = 0": lambda item: item is not None and item % 2 == 0,
    "price < 1 OR click = 0 -- or no item": lambda item: item is None or item < 4,
}
"""SQL expressions, and whether an event with this item is one of them."""


def are_events(rows, where):
    return [user is not None and WHERE[where](item) for user, _, item in rows]


def plain_histories(events, rows, last, where=""):
    """By (user, time) of each row: the items of that user's last earlier events, in the order of (time, file)."""
    order = sorted(np.flatnonzero(are_events(events, where)), key=lambda n: (events[n][1], n))
    return [[events[n][2] for n in order if events[n][0] == user and events[n][1] < at][-last:] for user, at, _ in rows]


ROWS = st.lists(
    st.tuples(st.sampled_from([1, 1, 1, 1, 2, 3, None]), st.integers(0, 12), st.one_of(st.none(), st.integers(0, 9))),
    min_size=1, max_size=40,
)  # fmt: skip


@examples(5, 400)
@given(
    rows=ROWS,
    others=st.one_of(st.none(), ROWS),
    later=ROWS,
    cut=st.integers(0, 13),
    last=st.integers(1, 6),
    num_files=st.integers(1, 3),
    piece=st.sampled_from(["400 B", "1 MiB"]),
    where=st.sampled_from([*WHERE]),
)
def test_a_history_is_a_loop_over_strictly_earlier_events(
    tmp_path_factory, rows, others, later, cut, last, num_files, piece, where
):
    """Also if all events from some time on are replaced: no history of an example up to then changes."""
    changed = [row for row in rows if row[1] < cut] + [(user, at + cut, item) for user, at, item in later]
    assume(any(are_events(rows, where)) and any(are_events(changed, where)))
    wanted = others or rows
    for events in (rows, changed):
        folder = tmp_path_factory.mktemp("log")
        argv = [write_files(folder / "events", events_of(events), num_files), *OPTIONS, "--last", last]
        argv += ["--piece-size", piece, *(["--where", where] if where else [])]
        if others:
            columns = {"seen" if name == "at" else name: column for name, column in events_of(others).items()}
            argv += ["--examples", write_files(folder / "examples", columns, 2), "--examples-time", "seen"]
        table = made(folder / "out", *argv)
        examples = others or events
        found = plain_histories(events, examples, last, where)
        assert table["n"].to_pylist() == list(range(len(examples)))
        assert table["hist_item"].to_pylist() == found
        assert table["hist_price"].to_pylist() == [[v if v is None else v / 4 for v in one] for one in found]
        if others and events is changed:
            before = plain_histories(rows, wanted, last, where)
            early = [n for n, (_, at, _) in enumerate(wanted) if at <= cut]
            assert [found[n] for n in early] == [before[n] for n in early]


IN_ORDER, NOW = [["b0", "a1"], [], ["b0"], ["b0", "a1"]], 1_790_000_000
TIMES = {
    "integers of two widths": (pa.array([3, 1], pa.int32()), pa.array([2, 3], pa.int64()), IN_ORDER),
    "floats": (pa.array([3.5, -0.0]), pa.array([0.0, 3.5], pa.float32()), [["b0", "a1"], [], [], ["b0", "a1"]]),
    "text": (pa.array(["03", "01"]), pa.array(["02", "03"]).dictionary_encode(), IN_ORDER),
    "near": (
        pa.array([NOW * 10**9 + 2, NOW * 10**9], pa.timestamp("ns", "UTC")),
        pa.array([NOW * 10**9 + 1, NOW * 10**9 + 2], pa.timestamp("ns", "UTC")), IN_ORDER,
    ),
    "units": (
        pa.array([NOW + 3, NOW + 1], pa.timestamp("s")),
        pa.array([NOW * 10**9 + 2, NOW * 10**9 + 3], pa.timestamp("ns")),
        [["a1", "b1", "b0"], ["a1", "b1"], [], ["a1"]],
    ),
    "dates": (pa.array([20_003, 20_001], pa.date32()), pa.array([20_002, 20_003], pa.date32()), IN_ORDER),
    "large": (pa.array([2**60 + 2, 2**60]), pa.array([2**60 + 1, 2**60 + 2]), IN_ORDER),
}  # fmt: skip
"""Times of events a0, b0 in a file and a1, b1 in another, and the history of each."""


@pytest.mark.parametrize("kind", TIMES)
def test_times_of_every_kind_are_compared_exactly(tmp_path, kind):
    *times, expected = TIMES[kind]
    for number, at in enumerate(times):
        columns = {"user": [7, 7], "at": at, "item": [f"a{number}", f"b{number}"], "click": [0, 1]}
        write_files(tmp_path / "events" / str(number), columns, first=2 * number)
    table = made(tmp_path / "out", *(tmp_path / "events" / n for n in "01"), *COLUMNS[:-1], *SCHEMA)
    assert table["hist_item"].to_pylist() == expected


def heavy_log(folder, num_events=6_000, seed=0):
    rng = np.random.default_rng(seed)
    users = np.where(rng.random(num_events) < 0.5, 0, rng.integers(1, 400, num_events))
    items = rng.integers(0, 3000, num_events)
    columns = {
        "user": users, "at": rng.integers(0, num_events // 3, num_events), "item": [f"i{n}" for n in items],
        "price": items.astype(np.int32), "click": (rng.random(num_events) < 0.3).astype(np.int8),
    }  # fmt: skip
    return write_files(folder, columns, 3, 1000)


PIECES = (*OPTIONS, "--piece-size", "200 KiB")


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return heavy_log(tmp_path_factory.mktemp("heavy") / "events")


@pytest.fixture(scope="module")
def whole(log, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "out"
    assert prepare("sequences", log, out, *PIECES, "--workers", 1, "--split", "last") == 0
    return contents(out)


@pytest.mark.parametrize(("workers", "memory"), some([(2, "128 MiB"), (4, "2 GiB")], (2, "128 MiB"), several=True))
def test_threads_and_memory_change_no_byte_of_histories(tmp_path, log, whole, workers, memory):
    argv = (*PIECES, "--workers", workers, "--memory", memory, "--split", "last")
    assert prepare("sequences", log, tmp_path / "out", *argv) == 0
    assert contents(tmp_path / "out") == whole


@pytest.mark.prove
def test_kills_at_random_moments_change_no_byte_of_histories(tmp_path, log, whole):
    random.seed(0)
    for _ in range(deep(4, 16)):
        with start("sequences", log, tmp_path / "out", *PIECES, "--workers", 2, "--split", "last") as process:
            time.sleep(random.uniform(0.5, 5))
            process.kill()
    assert prepare("sequences", log, tmp_path / "out", *PIECES, "--workers", 2, "--split", "last") == 0
    assert contents(tmp_path / "out") == whole


@pytest.mark.prove
def test_sequences_train_with_the_workflow_next_to_them(tmp_path, log):
    assert prepare("sequences", log, tmp_path / "out", *OPTIONS, "--last", 5, "--split", "last") == 0
    workflow = load(tmp_path / "out" / "_workflow.py")
    lists = {one.name: (one.table_name, one.pooling) for one in workflow.data.categories if one.pooling == "mean"}
    # No category has the prices of the history.
    assert lists == {"hist_price": ("hist_price", "mean")}
    assert [sequence.items for sequence in workflow.data.sequences] == [{"hist_item": "item"}]
    workflow = workflow.with_settings({
        "model.args": {"hidden": (4,), "attention": (4,)}, "schedule.epochs": 1, "schedule.plateau": None,
        "storage": Storage(device="64 MiB", host="64 MiB", disk="1 GiB"),
    })  # fmt: skip
    result = train(workflow, device_rows=40_000, ring_rows=20_000, chunk_rows=1024)
    assert 0 < result["logloss"] < 1


def test_last_holds_out_the_newest_rows_of_each_user(tmp_path):
    rows = [(1, 5, 0), (1, 9, 1), (1, 9, 2), (2, 4, 3), (1, 7, 4), (2, 3, 5), (3, 1, 6), (None, 9, 7)]
    table = made(tmp_path / "out", write_files(tmp_path / "log", events_of(rows)), *OPTIONS, "--split", "last")
    assert table["split"].to_pylist() == ["train", "validation", "test", "test", "train", "validation", "test", "train"]


def test_least_leaves_out_users_with_fewer_events(tmp_path):
    rows = [(1, 5, 0), (2, 9, 1), (1, 2, 2), (3, 4, 3), (2, 7, 4), (2, 3, 5), (None, 3, 6), (None, 4, 7)]
    table = made(tmp_path / "out", write_files(tmp_path / "log", events_of(rows)), *OPTIONS, "--least", 2)
    assert table["n"].to_pylist() == [0, 1, 2, 4, 5]


def test_a_ratio_of_users_keeps_their_rows_together(tmp_path, log):
    split = "ratio:validation=0.2,test=0.2,seed=1,user=user"
    table = made(tmp_path / "out", log, *OPTIONS, "--split", split)
    splits_of = reduce(lambda found, one: found | {one[0]: found.get(one[0], set()) | {one[1]}},
                       zip(table["user"].to_pylist(), table["split"].to_pylist(), strict=True), {})  # fmt: skip
    assert all(len(splits) == 1 for splits in splits_of.values())
    shares = [
        sum(splits == {name} for splits in splits_of.values()) / len(splits_of) for name in ("validation", "test")
    ]
    assert shares == pytest.approx([0.2, 0.2], abs=0.06)


BASE = events_of([(1, 1, 1), (2, 2, 2), (1, 3, 3)])
BAD = {
    "a column is missing": ({}, ("--user", "who"), "has no column who; it has user, at, item, price, click, n"),
    "a time that is none": ({"at": [NOW, 0, NOW]}, (), "row 2: column 'at' (--time) is 0 in the unit 's'"),
    "no user in any row": (
        {"user": pa.nulls(3, pa.string())},
        (),
        "no row is an event; events: 0 of 3 rows; 3 without",
    ),
    "no row chosen": ({}, ("--where", "click = 7"), "no row is an event; events: 0 of 3 rows; 0 without user"),
    "the columns there": ({}, ("--where", "clik = 1"), "the columns are user, at, item, price, click, n"),
    "no truth": ({}, ("--where", "user"), "--where user: "),
    "two expressions": ({}, ("--where", "click = 1, item = 1"), "--where click = 1, item = 1: "),
    "more than one": ({}, ("--where", "true) FROM events WHERE (click = 0"), "--where true) FROM events WHERE (click"),
    "a query": ({}, ("--where", "click = 1 ORDER BY at"), "--where click = 1 ORDER BY at: "),
    "several values": ({}, ("--where", "unnest([true, false])"), "expected one value for each row"),
    "no time": ({"at": [1.0, 2.0, float("nan")]}, (), "row 3 has no at, so its history is unknown"),
    "times are lists": ({"at": [[1], [2], [3]]}, (), "--time at: has type list<element: int64>"),
    "times are true or false": ({"at": [True, False, True]}, (), "--time at: has type bool"),
    "users are amounts": ({"v": [1.5, 2.5, 1.5]}, ("--user", "v"), "--user v: has type double"),
    "items are lists": ({"item": [[1], [2], [3]]}, (), "--items item: has type list<element: int64>"),
    "no event is kept": ({}, ("--last", "0"), "--last 0: give at least 1"),
    "memory that sorts nothing": ({}, ("--memory", "1 MiB"), "--memory 1,048,576: give at least 134,217,728"),
    "a column twice": ({}, ("--items", "item", "item"), "there would be two columns hist_item"),
    "a column that is there": ({"hist_item": [1, 2, 3]}, ("--schema", "click:label", "*item:category"), "two columns"),
    "a split of no column": ({}, ("--split", "ratio:test=0.1,user=at"), "'at' is not a column of integers or text"),
    "no such examples": ({}, ("--examples", "none.parquet"), "none.parquet matches no Parquet file"),
    "examples of other times": ({}, ("--examples", "other.parquet"), "write the column with one type in all files"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_events_are_refused_in_one_line_first(tmp_path, monkeypatch, capsys, what):
    columns, argv, said = BAD[what]
    log = write_files(tmp_path / "log", BASE | columns)
    pq.write_table(pa.table(BASE | {"at": ["1", "2", "3"], "n": [0, 1, 2]}), tmp_path / "other.parquet")
    monkeypatch.chdir(tmp_path)
    assert prepare("sequences", log, tmp_path / "out", *OPTIONS, *argv) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert (err.count("\n"), out) == (1, "")
    assert not list(tmp_path.rglob("*.json"))


def test_the_report_says_how_many_rows_are_events(tmp_path, capsys):
    log = write_files(tmp_path / "log", events_of([(1, 1, 1), (None, 2, 2), (1, 3, 3), (2, 4, None)]))
    argv = ("sequences", log, tmp_path / "out", *OPTIONS, "--where", "item >= 2", "--workers", 1)
    for _ in range(2):
        assert prepare(*argv) == 0
        assert "\nevents: 1 of 4 rows; 1 without user are skipped\n" in capsys.readouterr().out


def test_a_file_that_is_not_parquet_is_refused(tmp_path, capsys):
    (tmp_path / "log.csv").write_text("user,at\n1,2\n")
    assert prepare("sequences", tmp_path / "log.csv", tmp_path / "out", *OPTIONS) == 2
    assert "log.csv: cannot be read as Parquet; convert the text to Parquet first" in capsys.readouterr().err


@pytest.mark.parametrize("version", [None, "0.10.3", "1.1.9", "3.0.0"])
def test_duckdb_that_is_absent_or_untried_is_refused(tmp_path, monkeypatch, capsys, version):
    if version is None:
        monkeypatch.setitem(sys.modules, "duckdb", None)
    else:
        monkeypatch.setattr(importlib.import_module("duckdb"), "__version__", version)
    assert prepare("sequences", write_files(tmp_path / "log", BASE), tmp_path / "out", *OPTIONS) == 2
    said = "pip install 'ctr-pipeline[sequences]'" if version is None else f"below 3, and {version} is installed"
    assert said in capsys.readouterr().err


def test_a_corrected_event_changes_the_histories_made_before(tmp_path, capsys):
    log = write_files(tmp_path / "log", BASE, 3, 1)
    bad = pq.read_table(log / "part-2.parquet")
    pq.write_table(with_columns(bad, click=[[2]]), log / "part-2.parquet")
    argv = ("sequences", log, tmp_path / "out", *OPTIONS, "--workers", 1)
    assert prepare(*argv) == 1
    assert "row 1: column 'click': a label must be 0 or 1" in capsys.readouterr().err
    for number in (0, 2):
        table = pa.table(BASE | {"item": [4, 5, 6]}).append_column("n", [[0, 1, 2]]).slice(number, 1)
        pq.write_table(table, log / f"part-{number}.parquet")
    assert prepare(*argv) == 0
    found = pq.read_table(tmp_path / "out" / "train", partitioning=None).sort_by("n")
    assert found["hist_item"].to_pylist() == [[], [], [4]]


def test_other_formats_record_no_option_of_sequences(tmp_path):
    log = write_files(tmp_path / "log", BASE)
    args = read_arguments(
        ["parquet", str(log), "--out", str(tmp_path / "out"), "--schema", "click:label", "item:category"]
    )
    options = plan_preparation(args, tmp_path / "out")[2].options
    assert not {name for name in options if name in ("user", "time", "items", "last", "least", "examples", "memory")}
    assert "read.histories" not in options


@pytest.mark.prove
def test_a_full_disk_ends_a_sort_with_one_message(tmp_path):
    need_namespaces()
    log = heavy_log(tmp_path / "log", 200_000)
    with Disk(tmp_path / "disk", "2m") as disk:
        process = disk.prepare("sequences", log, *PIECES, "--split", "last")
        _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    [error] = [line for line in err.splitlines() if line.startswith("error")]
    assert "No space left on device" in error
    assert "Traceback" not in err


PEAK = """
import os, sys, threading, time
from pipeline.prepare.main import main
peak = [0]
def poll():
    while True:
        with open("/proc/self/status") as file:
            peak[0] = max(peak[0], *(int(line.split()[1]) for line in file if line.startswith("RssAnon")))
        time.sleep(0.02)
threading.Thread(target=poll, daemon=True).start()
code = main(sys.argv[1:])
print("peak", peak[0] >> 10)
sys.exit(code)
"""


@pytest.mark.prove(weekly=True)
@pytest.mark.timeout(900)
def test_two_million_events_take_700_mib_with_a_heavy_user(tmp_path):
    rng, num_events = np.random.default_rng(0), 2_000_000
    users = rng.integers(0, 8_000, num_events)
    users[rng.permutation(num_events)[:100_000]] = 9_999
    items = rng.integers(0, 300_000, num_events)
    times = rng.integers(0, 2_500_000, num_events)
    columns = {"user": users, "at": times, "item": items, "price": items % 900, "click": items % 2}
    log = write_files(tmp_path / "log", columns, 4, 131_072)
    argv = ["sequences", str(log), "--out", str(tmp_path / "out"), *OPTIONS, "--memory", "512 MiB", "--workers", "2"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", PEAK, *argv], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) <= 700
    assert json.loads((tmp_path / "out" / "_prepared.json").read_text())["splits"]["train"]["rows"] == num_events
