"""`pipeline trace`: events as the Trace Event Format defines them, and as Perfetto reads them."""

import itertools
import json
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runs.session_lines import begin, commit, ended, evaluated, spans, tick, two_sessions, write_run

from pipeline.monitor.live.lines import BlockSpans
from pipeline.monitor.tools.trace import TRACKS, events_of, main, write_trace
from pipeline.stages import STAGES

NAMES = {"process_name": "name", "process_sort_index": "sort_index", "thread_name": "name",
         "thread_sort_index": "sort_index"}  # fmt: skip


def check_fields(event):
    """Raise unless an event has the fields that its phase must have, with values of the right kind."""
    assert {"ph", "name", "pid", "tid"} <= event.keys()
    assert isinstance(event["name"], str)
    assert all(isinstance(event[name], int) for name in ("pid", "tid"))
    more = {"M": {"args"}, "X": {"ts", "dur", "cat", "args"}, "C": {"ts", "args"}, "i": {"ts", "s"}}[event["ph"]]
    assert event.keys() - {"ph", "name", "pid", "tid"} == more
    for name in more & {"ts", "dur"}:
        assert isinstance(event[name], int)
        assert event[name] >= 0
    if event["ph"] == "M":
        assert list(event["args"]) == [NAMES[event["name"]]]
    if event["ph"] == "C":
        assert event["args"]
        assert all(isinstance(value, int | float) and math.isfinite(value) for value in event["args"].values())
    if event["ph"] == "i":
        assert event["s"] in "gpt"


def check_spans(events):
    """Raise unless the spans of each track follow each other, and each track has one name and place."""
    tracks = {}
    for event in events:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for found in tracks.values():
        assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(found))
    for kind in ("thread_name", "thread_sort_index"):
        named = [(event["pid"], event["tid"]) for event in events if event["name"] == kind]
        assert len(named) == len(set(named))
        assert set(named) >= tracks.keys()


def checked(lines):
    events = list(events_of(lines))
    for event in events:
        check_fields(event)
    check_spans(events)
    return events


def named(events, phase):
    return [event for event in events if event["ph"] == phase]


def test_a_trace_of_two_sessions_is_valid_and_complete(tmp_path, capsys):
    lines = two_sessions()
    assert main([str(write_run(tmp_path / "run", lines))]) == 0
    assert "ui.perfetto.dev" in capsys.readouterr().out
    content = json.loads((tmp_path / "run" / "trace.json").read_text())
    events = content["traceEvents"]
    assert events == checked(lines)
    stages = [event for event in named(events, "X") if event["cat"] in STAGES]
    assert len(stages) == sum(len(block.spans) for line in lines for block in getattr(line, "blocks", ()))
    assert {(event["args"]["block"], event["args"]["split"]) for event in stages} == {(n, "train") for n in range(3)}
    assert {e["name"] for e in named(events, "X")} >= {"commit 1", "commit 2 (best)", "validation", "test", "train 2"}
    assert [event["name"] for event in named(events, "i")] == ["commit every 2 blocks", "finished: The disk bound it."]
    (waits, *_) = (event["args"] for event in named(events, "C") if event["name"] == "waits")
    assert waits == {"train": 0.5, "read": 0.25, "disk": 0.125}
    assert {event["name"] for event in named(events, "C")} == {
        "loss", "learning_rate", "blocks_ready", "log_bytes", "examples_per_second", "hit_rate", "waits",
    }  # fmt: skip


def test_hit_rates_of_a_resumed_session_begin_at_its_second_tick():
    counters = named(checked([begin(examples=600), tick(1.0, 700), tick(2.0, 1000)]), "C")
    assert [e["ts"] for e in counters if e["name"] == "hit_rate"] == [2_000_000]
    assert {"examples_per_second": 100.0} in [e["args"] for e in counters]


def test_sessions_follow_each_other_without_a_gap():
    events = checked(two_sessions())
    first, second = ([e["ts"] for e in events if e["pid"] == pid and "ts" in e] for pid in (1, 2))
    assert max(first) == 3_500_000
    assert min(second) == max(first) + 1_000_000


def test_tracks_are_in_the_order_of_the_stages():
    events = checked(two_sessions())
    places = {e["tid"]: e["args"]["sort_index"] for e in events if e["pid"] == 1 and e["name"] == "thread_sort_index"}
    names = {e["tid"]: e["args"]["name"] for e in events if e["pid"] == 1 and e["name"] == "thread_name"}
    ordered = [names[track] for track in sorted(names, key=places.__getitem__)]
    assert ordered == [track for track in TRACKS if track in ordered]
    assert ordered[-3:] == ["commits", "evaluations", "messages"]


def test_a_span_says_what_it_waited_for_and_how_long_before():
    one = BlockSpans(number=7, split="test", spans=(("train", 1.0, 1.5, "upload", 0.9),))
    events = checked([begin(), tick(2.0, 100, blocks=(one,))])
    assert named(events, "X")[0]["args"] == {
        "block": 7, "split": "test", "after": "upload", "milliseconds until it began": pytest.approx(100),
    }  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(0, 3), st.floats(0, 1e6))
def test_spans_of_a_track_never_overlap(seed, num_blocks, look_ahead, start):
    blocks = spans(np.random.default_rng(seed), num_blocks, look_ahead, start)
    cuts = sorted(np.random.default_rng(seed).integers(0, num_blocks + 1, 2))
    parts = blocks[: cuts[0]], blocks[cuts[0] : cuts[1]], blocks[cuts[1] :]
    ticks = [tick(start + 1 + n, 100 * n, blocks=part) for n, part in enumerate(parts)]
    checked([begin(), *ticks, evaluated(start + 3.3, 300), evaluated(start + 3.4, 300, "test"), commit(start, 1)])


def test_a_file_that_was_cut_is_read_as_far_as_it_goes(tmp_path):
    run = write_run(tmp_path / "run", [begin(), tick(1.0, 200)])
    with (run / "live.jsonl").open("a") as file:
        file.write('{"event":"tick","at":17')
    assert main([str(run), "--out", str(tmp_path / "other.json")]) == 0
    assert len(json.loads((tmp_path / "other.json").read_text())["traceEvents"]) > 2


def test_memory_does_not_grow_with_the_run(tmp_path):
    def lines(num):
        rng = np.random.default_rng(1)
        yield begin()
        for n in range(num):
            yield tick(n + 1.0, 100 * n, blocks=spans(rng, 2, start=n + 0.1))
        yield ended(num + 1.0)

    def peak(num):
        tracemalloc.start()
        write_trace(lines(num), tmp_path / "trace.json")
        _, found = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return found

    small = peak(20)
    assert peak(120) < small + 100_000
    assert (tmp_path / "trace.json").stat().st_size > 200_000


@pytest.mark.parametrize("make", ["nothing", "run"])
def test_a_folder_without_the_file_is_an_error(tmp_path, capsys, make):
    if make == "run":
        (tmp_path / "commits").mkdir()
    assert main([str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert ("has no live.jsonl" if make == "run" else "holds no run") in said
    assert not (tmp_path / "trace.json").exists()
