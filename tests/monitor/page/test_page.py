"""The page of a run of any kind: no empty plot, no value that is no number, and updates that send what is new."""

import pytest
from bokeh.document import Document
from bokeh.models import Div
from bokeh.plotting import figure
from conftest import make_workflow, write_data
from support.depth import some
from support.runs.harness import make_driver
from support.runs.live_lines import FakeRun, quickstart, resumed

from pipeline.monitor.live.lines import LIVE, Begin, Evaluated, Tick
from pipeline.monitor.page.headline import state_of
from pipeline.monitor.page.page import cards_of, page, show
from pipeline.monitor.page.time_use import binding
from pipeline.monitor.story import FollowedStory, Story
from pipeline.settings.optimizer import Plateau
from pipeline.storage.lock import RunLock

RUNS = {
    "finished": quickstart,
    "26 fields": lambda: quickstart(fields=26),
    "two workers": lambda: quickstart(workers=2),
    "three labels": lambda: quickstart(labels=("click", "like", "<b>buy")),
    "100 epochs": lambda: quickstart(epochs=100, per_epoch=400_000),
    "killed": lambda: FakeRun().begin().train(0.5),
    "resumed": resumed,
    "no evaluation": lambda: FakeRun(evaluates=False).begin().train().end(),
    "one tick": lambda: FakeRun(per_epoch=30_000, epochs=1, evaluates=False).begin().train(),
    "begun": lambda: FakeRun().begin(),
    "failed": lambda: FakeRun().begin().train(0.2).end("failed", "the disk is full"),
    "empty": lambda: FakeRun(),
}


def figures(document):
    return [model for root in document.roots for model in root.references() if isinstance(model, figure)]


def texts(document):
    return " ".join(m.text for root in document.roots for m in root.references() if isinstance(m, Div))


def columns(model):
    return [column for renderer in model.renderers for column in renderer.data_source.data.values()]


@pytest.mark.parametrize(
    "name",
    some(RUNS, "26 fields", "two workers", "three labels", "resumed", "no evaluation", "one tick", "begun", "failed"),
)
def test_a_page_has_no_empty_plot_and_no_value_that_is_no_number(name, tmp_path):
    document = page(RUNS[name]().write(tmp_path))
    assert len(document.roots) == 17
    shown = figures(document)
    assert all(any(len(column) for column in columns(model)) for model in shown)
    assert (len(shown) == 0) == (name in ("begun", "empty"))
    text = texts(document)
    assert "nan" not in text
    assert "None" not in text
    assert "<b>buy" not in text
    if name in ("no evaluation", "begun"):
        assert "No evaluation yet" in text
    if name in ("26 fields", "100 epochs", "two workers"):
        assert len(shown) == 11


def test_no_two_panels_of_a_page_have_one_name(tmp_path):
    """The template places panels by name: with two of one a browser waits for ever."""
    quickstart().write(tmp_path)
    names = [card.panel.root.name for card in cards_of(tmp_path, live=True)]
    assert len(set(names)) == len(names)


def test_scores_of_spans_are_drawn_on_the_page(tmp_path):
    run = FakeRun(evaluates=False).begin().train(0.5).evaluate("span").train(0.9).evaluate("span")
    shown = figures(page(run.write(tmp_path)))
    for metric in ("auc", "ne", "calibration"):
        scored = [line.metrics[metric] for line in run.lines if isinstance(line, Evaluated)]
        sources = [r.data_source.data for model in shown for r in model.renderers if metric in r.data_source.data]
        assert scored in [list(data[metric]) for data in sources]


@pytest.mark.prove
def test_lines_one_by_one_show_what_all_of_them_show(tmp_path, monkeypatch):
    for limit in ("MAX_LAPSES", "MAX_COMMITS"):
        monkeypatch.setattr(f"pipeline.monitor.story.{limit}", 12)
    run = quickstart(epochs=3)
    once, stepwise = page(run.write(tmp_path)), Document()
    story, cards = Story(), cards_of(tmp_path, live=True)
    for card in cards:
        stepwise.add_root(card.panel.root)
    for line in run.lines:
        story.add(line)
        show(stepwise, story, cards)
    assert texts(stepwise) == texts(once)
    for one, other in zip(figures(stepwise), figures(once), strict=True):
        assert one.title.text == other.title.text
        for a, b in zip(columns(one), columns(other), strict=True):
            assert len(a) == len(b)
            assert [str(value) for value in a] == [str(value) for value in b]


def test_a_tick_sends_the_new_points_alone(tmp_path):
    run = quickstart()
    story, cards, document = Story(), cards_of(tmp_path, live=True), Document()
    story.add_all(run.lines[:40])
    for card in cards:
        document.add_root(card.panel.root)
    show(document, story, cards)
    sent = []
    document.on_change(sent.append)
    story.add(next(line for line in run.lines[40:] if isinstance(line, Tick)))
    show(document, story, cards)
    kinds = [event.kind for event in sent]
    assert "ColumnsStreamed" in kinds
    # The blocks of the timeline are others each time.
    whole = [e for e in sent if e.kind == "ModelChanged" and e.attr not in ("text", "factors", "height")]
    assert {e.attr for e in whole} <= {"data"}
    assert len(whole) <= 2


def test_a_story_waits_for_a_run_and_follows_a_fresh_one(tmp_path):
    followed = FollowedStory(tmp_path / "run")
    assert not followed.read().begins
    quickstart(epochs=3).write(tmp_path / "run")
    story = followed.read()
    assert story.ended
    assert len(story.lapses) > 40
    (tmp_path / "run" / LIVE).unlink()
    FakeRun(epochs=1).begin().train(0.1).write(tmp_path / "run")
    for _ in range(3):
        story = followed.read()
    assert not story.ended
    assert len(story.lapses) < 10


def test_the_state_of_a_silent_run_is_that_of_its_process(tmp_path):
    story = Story()
    story.add_all(FakeRun(now=1000.0).begin().lines)
    assert state_of(story, tmp_path / "run", 1001.0)[0] == "running"
    assert state_of(story, tmp_path / "run", 1100.0)[0] == "killed"
    with RunLock(tmp_path / "run"):
        assert state_of(story, tmp_path / "run", 1100.0)[0] == "running"


@pytest.mark.parametrize(
    ("disk", "said"), [(0.01, "Training waited 1% of the time"), (0.4, "40% for rows from and to disk")]
)
def test_what_binds_is_said_in_words(disk, said):
    run = quickstart()
    begin, ticks = run.lines[1], [line for line in run.lines if isinstance(line, Tick)]
    assert isinstance(begin, Begin)
    waits = {"train": ticks[-1].seconds * (1 - disk), "disk": ticks[-1].seconds * disk}
    story = Story()
    story.add_all([begin, ticks[-1].model_copy(update={"waits": waits})])
    assert said in binding(story)


def test_a_run_that_ended_early_is_shown_as_done(tmp_path):
    """Its table fits: the test of its best epoch alone reads from disk."""
    plateau = Plateau(stop_after=1, min_gain=1.0)
    workflow = make_workflow(write_data(tmp_path / "data"), epochs=9, plateau=plateau)
    result = make_driver(workflow, tmp_path / "run").run()
    assert result["epochs"][-1]["epoch"] == 1
    assert result["tiers"]["disk"]["hits"] == result["tiers"]["disk"]["rows_read"] > 0
    shown = texts(page(tmp_path / "run"))
    assert "<b>100 %</b><span>135 examples in 2 epochs: it ended early" in shown
    assert "The whole table fits on the device: no row had to leave it" in shown
    shown = texts(page(quickstart().write(tmp_path / "other")))
    assert "no row had to leave" not in shown
    assert "ended early" not in shown
