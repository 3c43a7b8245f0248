"""Seconds, CPU seconds and the share hidden behind training."""

import math
import pickle
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.monitor import history
from pipeline.monitor.history import CALLS_KEPT, StageTimes
from pipeline.records import StageCall

BASE = 1_000_000.0
intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=12)


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
    monkeypatch.setattr(history, "CALLS_KEPT", 100)
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
