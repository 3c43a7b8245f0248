"""The report of a run of any kind: its numbers are those of the run, and it is small, whole and written in time."""

import re
from html.parser import HTMLParser

import pytest
from conftest import make_workflow, write_data
from support.depth import some
from support.faults.hostile_names import NAMES, write_hostile
from support.runs.harness import make_driver
from support.runs.live_lines import FakeRun, quickstart, resumed

from pipeline.monitor.live.lines import Evaluated, Tick
from pipeline.monitor.page.curves import time_use
from pipeline.monitor.page.headline import state_of
from pipeline.monitor.page.page import page, write_report
from pipeline.monitor.page.plots import MAX_POINTS
from pipeline.monitor.story import Story
from pipeline.settings.optimizer import Plateau
from pipeline.storage.lock import RunLock

RUNS = {
    "finished": quickstart,
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


def shown(run, folder, **options):
    """The page of these lines."""
    return page(folder / "run", Story().add_all(run.lines), {"model.kind": "DeepFM"}, None, **options)


@pytest.mark.parametrize(
    "name", some(RUNS, "two workers", "three labels", "resumed", "no evaluation", "one tick", "begun", "failed")
)
def test_a_page_has_no_empty_plot_and_no_value_that_is_no_number(name, tmp_path):
    text = shown(RUNS[name](), tmp_path)
    assert "<title>quickstart - pipeline</title>" in text or name == "empty"
    plots = text.count("<figure>")
    curves = re.findall('points="([^"]*)"', text)
    assert all(curves)
    assert max((len(points.split()) for points in curves), default=0) <= MAX_POINTS
    assert plots == (0 if name in ("begun", "empty") else 3 if name in ("no evaluation", "one tick", "failed") else 7)
    assert not re.search(r"\b(nan|None|inf)\b", text)
    assert "<b>buy" not in text
    assert ("No evaluation yet" in text) == (plots < 7)
    assert len(text) < 100_000


def test_the_plots_of_a_metric_have_its_values(tmp_path):
    run = FakeRun(evaluates=False).begin().train(0.5).evaluate("span").train(0.9).evaluate("span")
    text = shown(run, tmp_path)
    for line in (line for line in run.lines if isinstance(line, Evaluated)):
        for metric in ("auc", "logloss", "ne", "calibration"):
            assert f"<title>span, {line.epoch}: {line.metrics[metric]:.5f}</title>" in text
            assert f"<td>{line.metrics[metric]:.5f}</td>" in text
    assert "span 1, before training on it" in text


def test_errors_of_numeric_labels_are_plotted_in_place_of_aucs(tmp_path):
    run = FakeRun().begin().train(0.5)
    run.add(run.lines[-2].model_copy(update={"metrics": {"mse": 4.0, "rmse": 2.0, "mae": 1.5, "r2": 0.3}}))
    run.lines = [line for line in run.lines if not isinstance(line, Evaluated) or "mse" in line.metrics]
    text = shown(run, tmp_path)
    assert "<dt>RMSE</dt><dd><b>2.0000</b>" in text
    assert "<h2>RMSE</h2>" in text
    assert "<h2>AUC</h2>" not in text


def test_the_state_of_a_silent_run_is_that_of_its_process(tmp_path):
    story = Story().add_all(FakeRun(now=1000.0).begin().lines)
    assert state_of(story, tmp_path / "run", 1001.0)[0] == "running"
    assert state_of(story, tmp_path / "run", 1100.0)[0] == "killed"
    with RunLock(tmp_path / "run"):
        assert state_of(story, tmp_path / "run", 1100.0)[0] == "running"


@pytest.mark.parametrize(
    ("seconds", "disk", "said"),
    [(60, 0.01, "<p><b>Training waited 1% "), (60, 0.4, "<p><b>Training waited 40% "), (59, 0.4, "<p class=")],
)
def test_what_limits_the_speed_of_a_minute_is_said_in_words(seconds, disk, said):
    run = quickstart()
    begin, ticks = run.lines[1], [line for line in run.lines if isinstance(line, Tick)]
    waits = {"train": seconds * (1 - disk), "disk": seconds * disk}
    story = Story().add_all([begin, ticks[-1].model_copy(update={"seconds": seconds, "waits": waits})])
    assert time_use(story, story.lapses).startswith(said)


def test_only_a_page_that_is_rewritten_is_reloaded(tmp_path):
    run = FakeRun().begin().train(0.5)
    assert "<meta http-equiv=refresh content=7>" in shown(run, tmp_path, every=7)
    assert "http-equiv=refresh" not in shown(run, tmp_path)


def test_a_run_that_ended_early_is_shown_as_done(tmp_path):
    plateau = Plateau(stop_after=1, min_gain=1.0)
    workflow = make_workflow(write_data(tmp_path / "data"), epochs=9, plateau=plateau)
    make_driver(workflow, tmp_path / "run").run()
    text = (tmp_path / "run" / "report.html").read_text()
    assert "<b>100 %</b>135 examples in 2 epochs: it ended early" in text
    assert "ended early" not in shown(quickstart(), tmp_path)


class Markup(HTMLParser):
    """Tags and attributes of a document, and its text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = set(), [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]

    def handle_data(self, data):
        self.text += data


def test_a_report_shows_names_as_text_and_asks_for_nothing(tmp_path):
    markup = Markup(write_report(write_hostile(tmp_path)).read_bytes().decode())
    assert not markup.tags & {"a", "img", "script", "iframe", "object", "form", "use", "image", "foreignobject"}
    assert {tag: value for tag, name, value in markup.attributes if name in ("src", "href")} == {"link": "data:,"}
    assert not [name for _, name, _ in markup.attributes if name.startswith("on") or name == "srcdoc"]
    assert ("meta", "content", "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'") in (
        markup.attributes
    )
    assert "url(" not in markup.text
    for name in NAMES:
        assert markup.text.count(name) >= 5, "run, device, message, label, setting"
