"""What several workers say of the same tasks, put together as one worker would say it."""

from dataclasses import replace

import pytest

from pipeline.cluster.merge import Merge
from pipeline.records import Block, BlockResult, Refusal, SplitSums, StageCall, StageResult


def block(number, split="validation"):
    return Block(number, split, 0, number, 1, 0, 8, 8, 0, number == 3)


def reported(stage, number, of, loss, weight, closed=None):
    trained = BlockResult(block(of), loss, {}, weight, closed)
    return StageResult(stage, number, StageCall(stage, number, 0.0, 1.0, 0.0), trained=trained)


@pytest.fixture
def seen():
    return []


@pytest.fixture
def merge(small_workflow, seen, monkeypatch):
    """Its metrics are the numbers of examples of all workers."""

    def with_metrics(self, trained, parts):
        return replace(trained, metrics={"examples": sum(part.clippable for part in parts)})

    monkeypatch.setattr(Merge, "_with_metrics", with_metrics)
    return Merge(small_workflow(), lambda *_: iter(()), seen.append)


def test_a_result_belongs_to_its_block_whichever_task_reports_it(merge):
    """On a GPU `write_back` of block 4 reports block 3, which closes a split."""
    first, second = (
        reported("write_back", 4, 3, loss, weight, SplitSums(clippable=weight))
        for loss, weight in ((1.0, 1.0), (4.0, 2.0))
    )
    done = merge.together([first, second])
    assert (done.number, done.trained.block.number, done.trained.loss) == (4, 3, 3.0)


def test_a_refusal_precedes_a_pause_and_names_its_worker(merge):
    """Those that stop since another one did come after it."""
    refusals = [Refusal(block(5), "pause", "stopped"), None, Refusal(block(5), "disk", "full", 7)]
    done = merge.together([StageResult("plan", 5, refusal=refusal) for refusal in refusals])
    assert (done.refusal.what, done.refusal.message, done.refusal.needed) == ("disk", "worker 2: full", 7)


def test_the_earliest_refusal_counts_even_if_it_is_a_pause(merge):
    refusals = [Refusal(block(6), "disk", "full"), Refusal(block(5), "pause", "stopped"), Refusal(block(7), "map", "")]
    done = merge.together([StageResult("plan", 5, refusal=refusal) for refusal in refusals])
    assert (done.refusal.block.number, done.refusal.message) == (5, "worker 1: stopped")


def test_gpu_calls_are_of_the_first_worker_and_losses_of_all(merge, seen):
    """A worker that planned further than another has more of them."""
    calls = [StageResult("gpu upload", n, StageCall("gpu upload", n, 0.0, 1.0, 0.0)) for n in range(3)]
    ends = [reported("train", 3, 3, loss, 1.0) for loss in (1.0, 3.0)]
    merge.end([[*calls[:1], ends[0]], [*calls, ends[1]]])
    assert [done.stage for done in seen] == ["gpu upload", "train"]
    assert seen[1].trained.loss == 2.0


def test_metrics_of_a_split_come_when_the_stretch_ends(merge, seen):
    """Block 3 is reported with block 4, and block 4 by the drain."""
    merge.report(merge.together([reported("write_back", 4, 3, 1.0, 1.0, SplitSums(clippable=n)) for n in (1, 2)]))
    assert [done.trained for done in seen] == [None]
    merge.end(
        [
            [reported("train", 4, 4, 1.0, 1.0, SplitSums(clippable=10))],
            [reported("train", 4, 4, 1.0, 1.0, SplitSums(clippable=20))],
        ]
    )
    found = {done.trained.block.number: done.trained.metrics for done in seen if done.trained}
    assert found == {3: {"examples": 3}, 4: {"examples": 30}}
    assert sum(done.trained is not None for done in seen) == 2


def test_a_task_has_the_longest_wait_of_any_worker(merge):
    """The slow worker that all others wait for waits for nobody."""
    waits = [{"other workers": 0.1, "disk": 0.2}, {"other workers": 0.7}]
    calls = [StageCall("train", 5, 0.0, 1.0, 0.0, parts=tuple(parts.items())) for parts in waits]
    done = merge.together([StageResult("train", 5, call) for call in calls])
    assert dict(done.call.parts) == {"other workers": 0.7, "disk": 0.2}
