"""The story of a run: bounded, and no second or example is lost where lapses are merged."""

import pytest
from support.runs.live_lines import FakeRun, quickstart, resumed

from pipeline.monitor.live.lines import LIVE, Tick, read_live
from pipeline.monitor.story import MAX_LAPSES, Story, thinned


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
