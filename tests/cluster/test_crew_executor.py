"""What workers say of the same task, put together; no cluster runs."""

from types import SimpleNamespace

import pytest

from pipeline.cluster import dask_crew as crews
from pipeline.cluster.dask_crew import DaskCrew
from pipeline.cluster.executor import CrewExecutor
from pipeline.records import Block, Closed, Done, Progressed, Span


def block(number, split="validation"):
    return Block(number, split, 0, number, 1, 0, 8, 8, 0, number == 3)


def told(stage, number, of, loss, weight, closed=None):
    trained = Progressed(block(of), loss, {}, weight, closed)
    return Done(stage, number, Span(stage, number, 0.0, 1.0, 0.0), trained=trained)


@pytest.fixture
def executor():
    return CrewExecutor(None, ["a", "b"], "token", lambda futures: futures)


def test_what_a_block_came_to_is_taken_for_the_block_that_told_it(executor):
    """On a GPU `write_back` of block 4 tells of block 3, which closes a split."""
    first, second = (
        told("write_back", 4, 3, loss, weight, Closed(int(weight))) for loss, weight in ((1.0, 1.0), (4.0, 2.0))
    )
    done = executor.together([first, second])
    assert (done.number, done.trained.block.number, done.trained.loss) == (4, 3, 3.0)
    assert {number: [part.examples for part in parts] for number, parts in executor.closed.items()} == {3: [1, 2]}


def test_spans_of_gpus_are_matched_with_losses_of_others(executor):
    """A worker that planned further than another has more of them."""
    spans = [Done("gpu upload", n, Span("gpu upload", n, 0.0, 1.0, 0.0)) for n in range(3)]
    ends = [told("train", 3, 3, loss, 1.0) for loss in (1.0, 3.0)]
    drained = executor.drained([[*spans[:1], ends[0]], [*spans, ends[1]]])
    assert [done.stage for done in drained] == ["gpu upload", "train"]
    assert drained[1].trained.loss == 2.0


def test_an_evaluation_on_gpus_has_no_metrics_or_they_are_told_of_another_block(monkeypatch, small_workflow, tmp_path):
    """The run of a crew, its stages left out: block 3 is told of with block 4, and block 4 by the drain."""
    crew = DaskCrew.__new__(DaskCrew)
    crew._pool = SimpleNamespace(client=None, addresses=["a", "b"])
    crew._watch = SimpleNamespace(results=lambda futures: futures)
    crew._token, crew._by_mail = "token", False
    drains = [[told("train", 4, 4, 1.0, 1.0, Closed(10))], [told("train", 4, 4, 1.0, 1.0, Closed(20))]]
    crew.each = lambda method, *args: [["read"]] * 2 if method == "start" else drains
    crew._metrics = lambda trained, parts: {"examples": sum(part.examples for part in parts)}

    class Scheduled:
        def __init__(self, numbers, look_ahead, stages, executor, watch):
            self.executor, self.watch = executor, watch

        def run(self):
            dones = [told("write_back", 4, 3, 1.0, 1.0, Closed(n)) for n in (1, 2)]
            self.watch(self.executor.result(dones))

    monkeypatch.setattr(crews, "Schedule", Scheduled)
    seen = []
    crew.run([block(3), block(4)], 1, seen.append)
    found = {done.trained.block.number: done.trained.metrics for done in seen if done.trained}
    assert found == {3: {"examples": 3}, 4: {"examples": 30}}
    assert sum(done.trained is not None for done in seen) == 2
