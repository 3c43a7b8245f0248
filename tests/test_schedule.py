"""What the schedule hands to an executor: edges, a bounded window, and how it ends."""

import pytest
from support.oracle.reference import Reference
from support.runs.harness import run

from pipeline.records import Block, Refusal, StageResult
from pipeline.schedule import FAR_AHEAD, BlockSchedule, SerialExecutor, edges
from pipeline.stages import STAGES
from pipeline.worker.placement import OnHost

WITHOUT_UPLOAD = tuple(stage for stage in STAGES if stage != "upload")


class Recorder:
    """An executor in which tasks are answered when asked for; keeps what it was given, and what is not answered yet."""

    def __init__(self, answer=StageResult):
        self.after, self.flying, self.settled = {}, {}, None
        self.answered_at_submit = {}
        self._answer, self._answered = answer, set()

    def submit(self, stage, number, after):
        assert (stage, number) not in self.after, "submitted twice"
        assert self.settled is None, "submitted after the end"
        self.after[stage, number] = after
        self.answered_at_submit[stage, number] = set(self._answered)
        self.flying[stage, number] = len(self.flying)
        return stage, number

    def result(self, future):
        del self.flying[future]
        self._answered.add(future)
        return self._answer(*future)

    def settle(self, futures):
        self.settled = futures


def refusal_of(number):
    block = Block(
        number=number, split="train", epoch=0, first_batch=0, num_batches=1, first_example=0, num_examples=1,
        batch_size=1, first_step=0, closes_split=False,
    )  # fmt: skip
    return Refusal(block, "window", "too large")


def run_all(executor, blocks=range(30), look_ahead=2, stages=STAGES, watch=lambda done: None):
    return BlockSchedule(blocks, look_ahead, stages, executor, watch).run()


TABLE = [
    ("read", 10, 2, {("read", 9), ("train", 5)}),
    ("dedup", 10, 2, {("dedup", 9), ("read", 10)}),
    ("unite", 10, 2, {("unite", 9), ("dedup", 10)}),
    ("scan", 10, 2, {("scan", 9), ("plan", 9)}),
    ("plan", 10, 2, {("plan", 9), ("scan", 10), ("unite", 10), ("unite", 11), ("unite", 12)}),
    ("prefetch", 10, 2, {("prefetch", 9), ("plan", 10), ("write_back", 7)}),
    ("upload", 10, 2, {("upload", 9), ("prefetch", 10)}),
    ("train", 10, 2, {("train", 9), ("upload", 10)}),
    ("write_back", 10, 2, {("write_back", 9), ("train", 10)}),
    ("read", 10, 0, {("read", 9), ("train", 9)}),
    ("plan", 10, 0, {("plan", 9), ("scan", 10), ("unite", 10)}),
    ("prefetch", 10, 0, {("prefetch", 9), ("plan", 10), ("write_back", 9)}),
    ("read", 10, 4, {("read", 9), ("train", 1)}),
    ("plan", 0, 1, {("plan", -1), ("scan", 0), ("unite", 0), ("unite", 1)}),
    ("prefetch", 10, 4, {("prefetch", 9), ("plan", 10), ("write_back", 5)}),
]


@pytest.mark.parametrize(
    ("stage", "i", "look_ahead", "after"), TABLE, ids=[f"{e[0]}-{e[1]}-look-ahead-{e[2]}" for e in TABLE]
)
def test_the_edges_of_a_task_are_exactly_those_of_the_design(stage, i, look_ahead, after):
    found = edges(stage, i, look_ahead)
    assert set(found) == after
    assert len(found) == len(after)


@pytest.mark.parametrize("look_ahead", [0, 1, 2, 4])
@pytest.mark.parametrize("first", [0, 17])
def test_every_edge_reaches_the_executor_unless_already_answered(look_ahead, first):
    executor = Recorder()
    blocks = range(first, first + 25)
    assert run_all(executor, blocks, look_ahead) is None
    assert set(executor.after) == {(stage, i) for stage in STAGES for i in blocks}
    for (stage, i), after in executor.after.items():
        needed = {task for task in edges(stage, i, look_ahead) if task[1] in blocks}
        assert needed <= set(after) | executor.answered_at_submit[stage, i]
        assert set(after) <= needed


@pytest.mark.parametrize("look_ahead", [0, 1, 2, 4])
def test_blocks_in_flight_are_bounded_and_use_the_look_ahead(look_ahead):
    """A long run holds no more blocks than a window or two; and never so few that the look-ahead is lost."""
    executor = Recorder()
    maximum = {"all": 0, "moving": 0}

    def watch(done):
        numbers = {i for _, i in executor.flying}
        moving = {i for stage, i in executor.flying if stage not in FAR_AHEAD}
        maximum["all"] = max(maximum["all"], len(numbers))
        maximum["moving"] = max(maximum["moving"], len(moving))

    run_all(executor, range(60), look_ahead, watch=watch)
    assert look_ahead + 1 < maximum["moving"] <= 2 * look_ahead + 3
    assert maximum["moving"] + look_ahead <= maximum["all"] <= 4 * look_ahead + 3
    assert not executor.flying


def test_train_waits_for_prefetch_without_an_upload_stage():
    executor = Recorder()
    run_all(executor, stages=WITHOUT_UPLOAD)
    assert {stage for stage, _ in executor.after} == set(WITHOUT_UPLOAD)
    for i in range(30):
        assert ("prefetch", i) in executor.after["train", i]


@pytest.mark.parametrize("num_blocks", [1, 2, 3, 7])
def test_a_run_shorter_than_the_window_passes_every_stage(num_blocks):
    executor = Recorder()
    watched = []
    run_all(executor, range(5, 5 + num_blocks), look_ahead=4, watch=watched.append)
    assert len(watched) == num_blocks * len(STAGES) == len(executor.after)


def test_all_stages_of_one_worker_equal_the_plain_trainer(small_workflow, monkeypatch):
    stages = tuple(stage for stage in STAGES if stage != "unite")
    monkeypatch.setattr(OnHost, "idle", frozenset())
    workflow = small_workflow(storage={"host_policy": "foresight"})
    result = run(workflow, device_rows=130, host_rows=24)
    assert set(result["stages"]) == set(stages)
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()


def test_a_refusal_is_returned_after_all_earlier_blocks():
    refused = 12
    executor = Recorder(
        lambda stage, i: StageResult(stage, i, refusal=refusal_of(i) if (stage, i) == ("plan", 12) else None)
    )
    watched = []
    refusal = run_all(executor, range(100), watch=watched.append)
    assert refusal.block.number == refused
    assert not executor.flying, "something was in flight when the schedule returned"
    seen = {(done.stage, done.number) for done in watched}
    assert {(stage, i) for stage in STAGES for i in range(refused)} <= seen
    assert max(i for _, i in executor.after) < refused + 13, "submitted on and on behind a refusal"


def test_the_first_of_several_refusals_is_returned():
    executor = Recorder(
        lambda stage, i: StageResult(stage, i, refusal=refusal_of(i) if stage == "plan" and i > 5 else None)
    )
    assert run_all(executor, range(30)).block.number == 6


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("task", [("read", 0), ("train", 8), ("write_back", 29)], ids=str)
def test_an_error_of_a_task_is_raised_after_the_others_settle(error, task):
    def answer(stage, i):
        if (stage, i) == task:
            raise error("no more")
        return StageResult(stage, i)

    executor = Recorder(answer)
    with pytest.raises(error, match="no more"):
        run_all(executor)
    assert set(executor.settled) >= set(executor.flying)


def test_the_serial_executor_calls_nothing_after_an_exception():
    called = []

    def call(stage, i):
        called.append((stage, i))
        if (stage, i) == ("plan", 3):
            raise OSError("no more")
        return StageResult(stage, i)

    with pytest.raises(OSError, match="no more"):
        run_all(SerialExecutor(call))
    assert called[-1] == ("plan", 3)
