"""The story of a run: bounded, and no second or example is lost where lapses are merged."""

import pytest
from support.runs.live_lines import FakeRun, quickstart, resumed

from pipeline.monitor.live.lines import LIVE, Tick, follow_live, read_live
from pipeline.monitor.story import MAX_LAPSES, Story


def story_of(run):
    story = Story()
    story.add_all(run.lines)
    return story


@pytest.mark.parametrize("epochs", [1, 30, 150])
def test_a_bounded_story_has_all_examples_and_waits(epochs):
    run = FakeRun(epochs=epochs).begin().train().end()
    story = story_of(run)
    assert len(story.lapses) <= MAX_LAPSES
    last = next(line for line in reversed(run.lines) if isinstance(line, Tick))
    assert sum(i.examples for i in story.lapses) == run.total == last.examples
    for cause, seconds in last.waits.items():
        assert sum(i.waits[cause] for i in story.lapses) == pytest.approx(seconds, abs=1e-6)
    assert sum(i.moves["keys"] for i in story.lapses) == last.moves["keys"]
    assert [i.begin for i in story.lapses] == [0.0, *(i.end for i in story.lapses[:-1])]


def test_losses_are_means_of_those_that_are_merged():
    run = FakeRun(epochs=60).begin().train().end()
    losses = [line.loss for line in run.lines if isinstance(line, Tick)]
    story = story_of(run)
    assert story.versions["lapses"] > 0
    assert min(losses) < min(i.loss for i in story.lapses)
    weights = [i.seconds for i in story.lapses]
    mean = sum(i.loss * w for i, w in zip(story.lapses, weights, strict=True)) / sum(weights)
    assert mean == pytest.approx(sum(losses) / len(losses), rel=0.01)


def test_sessions_of_a_resumed_run_follow_each_other_in_run_time():
    story = story_of(resumed())
    (_, first), (begun, second) = story.begins
    assert first.examples == 0 < second.examples
    assert {i.session for i in story.lapses} == {0, 1}
    assert [i.begin for i in story.lapses[1:]] == [i.end for i in story.lapses[:-1]]
    resumes = next(i for i in story.lapses if i.session == 1)
    assert resumes.begin == begun
    # What a session that resumes moved before its first tick is unknown.
    assert resumes.moves is None
    assert story.lately().examples > 0


def test_an_evaluation_repeated_after_a_kill_counts_once():
    run = quickstart()
    story = story_of(run)
    before = len(story.evaluations)
    story.add(next(one for _, one in story.evaluations))
    assert len(story.evaluations) == before
    assert sum(bool(one.curves) for _, one in story.evaluations) == 2


def test_a_file_is_followed_through_torn_lines_and_a_fresh_run(tmp_path):
    folder = quickstart().write(tmp_path)
    whole = list(read_live(folder))
    following = follow_live(folder)
    assert next(following) == whole
    assert next(following) == []
    text = (folder / LIVE).read_text().splitlines(keepends=True)[-1]
    for piece in (text[:20], text[20:]):
        with (folder / LIVE).open("a") as file:
            file.write(piece)
        found = next(following)
    assert found == whole[-1:]
    (folder / LIVE).unlink()
    quickstart(epochs=1).write(tmp_path)
    assert next(following) is None
    assert len(next(following)) < len(whole)
