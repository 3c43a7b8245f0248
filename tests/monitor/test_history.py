"""What a run has come to, over all its sessions: metrics, seconds, and the part of them hidden behind training."""

import json
import math
import pickle
import random
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runs.live_lines import FakeRun, quickstart, resumed

from pipeline.metrics.totals import DiskTotals
from pipeline.monitor import history as module
from pipeline.monitor.history import CALLS_KEPT, History, StageTimes, json_value
from pipeline.monitor.live.lines import LIVE, Tick, read_live
from pipeline.monitor.story import MAX_LAPSES, Story, thinned
from pipeline.records import Block, BlockResult, Moves, StageCall, StageResult

BASE = 1_000_000.0
intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=12)


def block(split="train", epoch=0, num_examples=10):
    return Block(0, split, epoch, 0, 1, 0, num_examples, 10, 0, False)


def evaluated(auc, epoch=0, split="validation"):
    return StageResult(
        "train", 0, trained=BlockResult(block(split, epoch), 0.5, {"auc": auc, "logloss": 0.6, "examples": 10})
    )


def trained(ready=0):
    return StageResult("train", 0, StageCall("train", 0, 1.0, 2.0, 0.5, ready), trained=BlockResult(block(), 0.5, {}))


def test_training_metrics_do_not_count_as_evaluations():
    history = History()
    history.add(evaluated(0.9, split="train"))
    assert (history.report()["split"], history.report()["auc"], history.validated("auc")) == (None, None, [])
    history.add(evaluated(0.7))
    history.add(evaluated(0.95, epoch=1, split="train"))
    assert [epoch["auc"] for epoch in history.epochs] == [0.9, 0.7, 0.95]
    assert (history.report()["split"], history.report()["auc"], history.validated("auc")) == ("validation", 0.7, [0.7])


def test_a_resumed_session_counts_on_from_the_earlier_one():
    first = History()
    planned = StageResult("plan", 0, moves=Moves(keys=7, new=7, device_to_disk=3))
    for done in (trained(2), trained(), evaluated(0.7), planned):
        first.add(done)
    first.disk.commits, first.disk.rows_merged = 3, 11
    second = History()
    second.load(json.loads(json.dumps(first.state())))
    assert (second.trained, second.epochs, second.disk) == (20, first.epochs, first.disk)
    assert second.tiers.counts() == first.tiers.counts()
    second.add(trained())
    assert (second.trained, first.trained) == (30, 20)
    assert second.times.seconds == {"train": 1.0}, "times are those of one session"
    assert second.report()["examples"] == 30
    assert second.report()["auc"] == 0.7


def test_seconds_include_earlier_sessions_and_exclude_waiting():
    first = History()
    time.sleep(0.05)
    first.begin()
    assert first.seconds < 0.05
    second = History()
    second.load(first.state() | {"seconds": 100.0})
    assert 100.0 <= second.seconds < 101.0
    assert second.report()["examples_per_second"] == pytest.approx(0.0)


def test_a_number_that_json_cannot_hold_becomes_null():
    history = History()
    history.add(evaluated(math.nan))
    assert json.loads(json.dumps(history.state(), allow_nan=False))["epochs"][0]["auc"] is None
    assert json_value({"a": [1.0, -math.inf, {"b": math.nan}], "c": "nan", "d": (1,)}) == {
        "a": [1.0, None, {"b": None}], "c": "nan", "d": (1,),
    }  # fmt: skip


def test_write_amplification_counts_evicted_and_changed_rows():
    totals = DiskTotals(commits=2, rows_changed=60, rows_merged=10, written_bytes=20_000)
    report = totals.report(100, evicted_rows=40)
    assert report["rewritten_bytes"] == 1000
    assert report["write_amplification"] == 2.0
    assert math.isnan(DiskTotals().report(100, 0)["write_amplification"])


def test_a_clock_that_is_set_back_counts_as_zero_seconds(monkeypatch):
    history, now = History(), time.perf_counter()
    monkeypatch.setattr(time, "perf_counter", lambda: now - 3600)
    assert history.state()["seconds"] == 0
    assert math.isnan(history.report()["examples_per_second"])


def call(stage, start, stop, cpu=0.0, ready=0):
    return StageCall(stage, 0, BASE + start, BASE + stop, cpu, ready)


def test_seconds_are_summed_by_stage():
    calls = [call("read", 0, 2, cpu=1.5), call("train", 1, 5, cpu=3), call("read", 2, 5, cpu=0.5)]
    assert list(StageTimes(calls).seconds.items()) == [("read", 5.0), ("train", 4.0)]
    assert StageTimes(calls).cpu_seconds == {"read": 2.0, "train": 3.0}


@settings(max_examples=100, deadline=None)
@given(intervals, intervals)
def test_hidden_share_equals_counting_seconds(trains, reads):
    busy = {second for start, length in trains for second in range(start, start + length)}
    inside = sum(second in busy for start, length in reads for second in range(start, start + length))
    total = sum(length for _, length in reads)
    calls = [call("train", start, start + length) for start, length in trains]
    calls += [call("read", start, start + length) for start, length in reads]
    share = StageTimes(calls).hidden().get("read", math.nan)
    assert share == pytest.approx(inside / total if total else math.nan, nan_ok=True)


def test_without_training_nothing_is_hidden():
    assert StageTimes([call("read", 0, 1)]).hidden() == {"read": 0.0}
    assert StageTimes([]).hidden() == {}
    assert math.isnan(StageTimes([call("read", 0, 1, ready=3)]).ready())


def test_ready_is_taken_from_train_only():
    assert StageTimes([call("train", 0, 1, ready=2), call("read", 0, 1), call("train", 1, 2, ready=1)]).ready() == 1.5


def test_gpu_stages_are_hidden_behind_the_training_of_the_gpu():
    """`train` returns at once; it is the GPU's training that hides the rest."""
    calls = [call("train", 0, 1), call("gpu train", 1, 5), call("gpu upload", 0, 2), call("gpu copy back", 2, 4)]
    assert StageTimes(calls).hidden() == {"train": 0.0, "gpu upload": 0.5, "gpu copy back": 1.0}


@pytest.mark.parametrize("seed", range(5))
def test_sums_made_on_the_way_equal_those_made_at_the_end(monkeypatch, seed):
    """Calls come in the order in which blocks are retired: some are summed up before the next ones begin."""
    rng, at, calls = random.Random(seed), dict.fromkeys(("read", "plan", "train"), 0.0), []
    for _ in range(200):
        for stage in at:
            start = max(at[stage], max(at.values()) - 30) + rng.choice([0, 0, 0.5, 2])
            at[stage] = start + rng.choice([0, 1, 7])
            calls.append(call(stage, start, at[stage]))
    whole = StageTimes(calls)
    monkeypatch.setattr(module, "CALLS_KEPT", 100)
    parts = StageTimes(calls)
    assert len(pickle.dumps(parts)) < len(pickle.dumps(whole)), "only the last calls are kept"
    assert parts.hidden() == pytest.approx(whole.hidden())


def test_memory_of_times_does_not_grow_with_blocks():
    times = StageTimes()

    def add(first):
        for number in range(first, first + CALLS_KEPT):
            for stage in ("read", "plan", "train"):
                times.add(call(stage, number, number + 0.5))

    add(0)
    tracemalloc.start()
    add(CALLS_KEPT)
    before = tracemalloc.get_traced_memory()[0]
    add(2 * CALLS_KEPT)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 10 * CALLS_KEPT, "bytes"
    assert times.hidden() == {"read": pytest.approx(1.0), "plan": pytest.approx(1.0)}


def story_of(run):
    return Story().add_all(run.lines)


@pytest.mark.parametrize("epochs", [1, 30, 150])
def test_a_bounded_story_has_all_examples_and_waits(epochs):
    run = FakeRun(epochs=epochs).begin().train().end()
    story = story_of(run)
    assert len(story.lapses) <= MAX_LAPSES
    last = next(line for line in reversed(run.lines) if isinstance(line, Tick))
    for lapses in (story.lapses, thinned(story.lapses, 7)):
        assert sum(i.examples for i in lapses) == run.total == last.examples
        for cause, seconds in last.waits.items():
            assert sum(i.waits[cause] for i in lapses) == pytest.approx(seconds, abs=1e-6)
        assert sum(i.moves["keys"] for i in lapses) == last.moves["keys"]
        assert [i.begin for i in lapses] == [0.0, *(i.end for i in lapses[:-1])]
    assert len(lapses) <= 7


def test_losses_are_means_of_those_that_are_merged():
    run = FakeRun(epochs=60).begin().train().end()
    losses = [line.loss for line in run.lines if isinstance(line, Tick)]
    story = story_of(run)
    assert len(losses) > MAX_LAPSES >= len(story.lapses)
    assert min(losses) < min(i.loss for i in story.lapses)
    weights = [i.seconds for i in story.lapses]
    mean = sum(i.loss * w for i, w in zip(story.lapses, weights, strict=True)) / sum(weights)
    assert mean == pytest.approx(sum(losses) / len(losses), rel=0.01)


def test_sessions_of_a_resumed_run_follow_each_other_in_run_time():
    run = resumed()
    story = story_of(run)
    first, second = (line.examples for line in run.lines if line.event == "begin")
    assert first == 0 < second == story.begin.examples
    assert [i.begin for i in story.lapses[1:]] == [i.end for i in story.lapses[:-1]]
    assert [0.0, story.lapses[-1].end] == [story.starts[0], story.run_time]
    resumes = next(i for i in story.lapses if i.begin == story.starts[1])
    # What a session that resumes moved before its first tick is unknown.
    assert resumes.moves == {}
    assert story.lately().examples > 0


def test_a_story_of_many_sessions_stays_bounded():
    run = FakeRun(epochs=900)
    for _ in range(700):
        run.begin().tick()
    story = story_of(run)
    assert len(story.lapses) <= MAX_LAPSES
    assert sum(i.examples for i in story.lapses) == run.done


def test_an_evaluation_repeated_after_a_kill_counts_once():
    story = story_of(quickstart())
    before = len(story.evaluations)
    story.add(story.evaluations[0])
    assert len(story.evaluations) == before


def test_a_file_with_a_torn_line_is_read_up_to_it(tmp_path):
    run = quickstart()
    folder = run.write(tmp_path)
    with (folder / LIVE).open("a") as file:
        file.write(run.lines[3].model_dump_json()[:30])
    assert list(read_live(folder)) == run.lines
