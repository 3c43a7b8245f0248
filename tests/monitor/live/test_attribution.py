"""Every second that training waits has one cause: the one that held it up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.oracle.virtual_time import ON_HOST, block_of, waits_of

from pipeline.monitor.live.waits import Waits, what_binds
from pipeline.records import StageCall
from pipeline.schedule import edges
from pipeline.stages import STAGES

BLOCKS = [block_of(number) for number in range(40)]
CAUSES = {"read": "read", "dedup": "dedup", "plan": "plan", "prefetch": "host copy", "write_back": "host copy"}


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("stage", CAUSES)
def test_a_stage_slower_than_training_is_what_training_waits_for(stage, in_turn):
    """Each block takes as long as the slow stage, and training 1 s of that."""
    waits, end = waits_of(BLOCKS, lambda s, _: 5.0 if s == stage else 1.0 if s == "train" else 0.0, in_turn=in_turn)
    waited = {cause: seconds for cause, seconds in waits.seconds.items() if cause != "train" and seconds}
    expected = 40 * 5.0 if in_turn else 40 * 4.0
    assert waits.seconds["train"] == pytest.approx(40.0)
    assert waited == pytest.approx({CAUSES[stage]: expected}, abs=15.0), "but for the first and the last blocks"
    assert sum(waits.seconds.values()) == pytest.approx(end - waits.began)


def test_slow_training_waits_only_for_the_first_blocks():
    waits, _ = waits_of(BLOCKS, lambda stage, _: 5.0 if stage == "train" else 0.5)
    assert waits.seconds["train"] == 200.0
    assert waits.seconds["read"] == pytest.approx(0.5 * 3), "up to the last block of the first window"
    assert waits.seconds["hand-over"] == 0


@given(
    seconds=st.lists(st.floats(0.0, 3.0), min_size=len(ON_HOST) * 12, max_size=len(ON_HOST) * 12),
    look_ahead=st.integers(1, 3), in_turn=st.booleans(),
)  # fmt: skip
def test_causes_and_training_add_up_to_the_wall_seconds(seconds, look_ahead, in_turn):
    """Training counts in full, whatever the other stages take, and no wait is counted twice."""
    takes = dict(zip(((stage, n) for stage in ON_HOST for n in range(12)), seconds, strict=True))
    waits, end = waits_of(BLOCKS[:12], lambda stage, n: takes[stage, n], look_ahead, in_turn=in_turn)
    assert waits.seconds["train"] == pytest.approx(sum(takes["train", n] for n in range(12)))
    assert sum(waits.seconds.values()) == pytest.approx(end - waits.began)
    assert waits.seconds["hand-over"] == pytest.approx(0, abs=1e-6), "a task begins when the last one before it ends"
    assert min(waits.seconds.values()) >= 0


def test_a_wait_for_prefetch_is_divided_by_what_prefetch_did():
    parts = lambda stage, n: (("disk", 3.0), ("host copy", 1.0)) if stage == "prefetch" else ()  # noqa: E731
    waits, _ = waits_of(BLOCKS, lambda stage, n: {"prefetch": 4.0, "train": 1.0}.get(stage, 0.0), parts=parts)
    assert waits.seconds["disk"] == pytest.approx(3 * waits.seconds["host copy"])
    assert waits.seconds["disk"] + waits.seconds["host copy"] == pytest.approx(40 * 3.0, abs=5)


def test_waiting_for_other_workers_is_not_training():
    parts = lambda stage, n: (("other workers", 0.75),) if stage == "train" else ()  # noqa: E731
    waits, _ = waits_of(BLOCKS, lambda stage, n: 1.0 if stage == "train" else 0.0, parts=parts)
    assert waits.seconds["other workers"] == pytest.approx(30.0)
    assert waits.seconds["train"] == pytest.approx(10.0)


def test_scoring_is_a_wait_for_evaluation():
    blocks = [block_of(n, "train" if n < 30 else "test") for n in range(40)]
    waits, _ = waits_of(blocks, lambda stage, n: 1.0 if stage == "train" else 0.0)
    assert waits.seconds["train"] == pytest.approx(30.0)
    assert waits.seconds["evaluation"] == pytest.approx(10.0)


def test_a_task_that_could_begin_and_does_not_is_a_hand_over():
    waits = Waits(edges, STAGES, overlaps=True, on_gpu=False, now=0.0)
    waits.begin_stretch(BLOCKS[:1], 0, 0.0)
    at = 0.0
    for stage in ON_HOST:
        waits.add(StageCall(stage, 0, at + 0.25, at + 1.25, 0.0))
        at += 1.25
    waits.end_stretch(at)
    # One quarter before each of five stages; that before the first belongs to the start, that of the last to the end.
    assert waits.seconds["hand-over"] == pytest.approx(0.25 * 4 + 0.25)
    assert waits.seconds["start"] == pytest.approx(0.25)


def test_time_between_stretches_has_the_cause_it_is_given():
    waits, end = waits_of(BLOCKS[:3], lambda stage, n: 1.0)
    waits.spent("commit", end + 7.0)
    waits.begin_stretch(BLOCKS[3:6], 2, end + 8.0)
    assert (waits.seconds["commit"], waits.seconds["start"]) == (7.0, 1.0)


@pytest.mark.parametrize("offset", [-1e6, 1e6])
def test_a_worker_with_another_clock_is_attributed_by_its_clock(offset):
    """Its times are only compared with each other."""
    waits = Waits(edges, STAGES, overlaps=True, on_gpu=False, now=50.0)
    waits.begin_stretch(BLOCKS[:8], 0, 50.0)
    at = 50.0 + offset
    for number in range(8):
        for stage in ON_HOST:
            waits.add(StageCall(stage, number, at, at + 1.0, 0.0))
            at += 1.0
    waits.end_stretch(50.0 + 8 * len(ON_HOST) + 1)
    assert waits.seconds["train"] == pytest.approx(8.0)
    waits.spent("commit", 120.0)
    assert waits.seconds["commit"] == pytest.approx(120.0 - (50 + 8 * len(ON_HOST) + 1))


def test_on_a_gpu_its_own_work_is_training_and_copies_are_waits():
    """The stage `train` only gives the GPU its work. Its times come last, when the pipeline has drained."""
    waits = Waits(edges, STAGES, overlaps=True, on_gpu=True, now=0.0)
    waits.begin_stretch(BLOCKS[:10], 0, 0.0)
    of_gpu = []
    for number in range(10):
        at = 4.0 * number
        for stage in ("read", "dedup", "plan", "prefetch", "upload", "train"):
            waits.add(StageCall(stage, number, at, at + 0.25, 0.0))
            at += 0.25
        waits.add(StageCall("write_back", number, at, at + 2.5, 0.0))
        of_gpu += [
            StageCall("gpu upload", number, at - 0.25, at + 0.5, 0.0),
            StageCall("gpu train", number, at + 0.5, at + 2.5, 0.0),
        ]
    for call in of_gpu:
        waits.add(call)
    waits.end_stretch(40.0)
    assert waits.seconds["train"] == pytest.approx(20.0)
    assert waits.seconds["device copy"] == pytest.approx(10 * (0.25 + 0.75)), "upload, and the copy itself"
    assert [waits.seconds[cause] for cause in ("read", "dedup", "plan", "host copy")] == pytest.approx([2.5] * 4)
    assert sum(waits.seconds.values()) == pytest.approx(40.0)


@pytest.mark.parametrize(
    ("waits", "said"),
    [
        ({"train": 97.0, "read": 2.0, "plan": 1.0}, ["waited 3%", "its own steps take the rest"]),
        ({"train": 69.0, "commit": 9.0, "disk": 22.0}, ["waited 31%", ": 22% for rows from", "disk, 9% for commits"]),
        ({"train": 45.0, "read": 21.0, "plan": 8.0, "commit": 7.0, "evaluation": 6.9, "start": 6.4, "end": 5.7},
         ["waited 55%", ": 21% for reading", ", 8% for planning", ", 7% for commits, and 19% for 3 other things"]),
        ({"train": 40.0, "read": 30.0, "disk": 15.0, "plan": 10.0, "commit": 5.0}, ["60%", ", and 5% for commits"]),
        ({"train": 30.0, "read": 29.0}, []),
    ],
)  # fmt: skip
def test_causes_are_named_by_their_size_and_small_ones_are_not(waits, said):
    sentence = what_binds(waits, sum(waits.values()))
    assert all(part in sentence for part in said), sentence
    assert bool(sentence) == bool(said)
