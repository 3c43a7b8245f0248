"""Reports in a real browser: no error, nothing from the network, readable on a screen and a phone, and up to date while
a run trains.

SHOTS=folder in the environment leaves pictures there.
"""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import make_workflow, write_data
from support.faults.hostile_names import NAMES, RESULT, write_hostile
from support.runs.browser import CHROMIUM, Browser, wait_for
from support.runs.live_lines import quickstart

from pipeline.arguments import REPORT
from pipeline.monitor.page.page import write_report

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium"),
    pytest.mark.timeout(600),
]

ROOT = Path(__file__).parents[2]
SIZES = [(1200, False), (1200, True), (390, False), (390, True)]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def tab(browser):
    opened = browser.tab()
    yield opened
    opened.close()


def check(tab, name):
    """Check what holds of any report at any moment, and return its text."""
    assert tab.overflow() <= 0
    assert not tab.errors
    assert {url.partition(":")[0] for url in tab.requests} <= {"file", "data"}
    assert tab.value("[...document.querySelectorAll('figure svg')].every((plot) => plot.clientWidth > 250)")
    text = tab.text()
    assert "nan" not in text.lower().split()
    if folder := os.environ.get("SHOTS"):
        tab.screenshot(Path(folder) / f"{name}.png")
    return text


@contextmanager
def training(folder):
    """Process of a run that trains for long in the run directory `folder`; it is killed at the end."""
    workflow = make_workflow(write_data(folder.parent / "data", num_train=4000), epochs=4000)
    file = folder.parent / "workflow.py"
    made = f"Workflow.model_validate_json({workflow.model_dump_json()!r})"
    file.write_text(f"from pipeline.workflow import Workflow\nworkflow = {made}\n")
    command = [sys.executable, "-m", "pipeline", "run", str(file), "--serial", "--out", str(folder)]
    with (
        open(folder.parent / "said", "w") as said,
        subprocess.Popen(command, stdout=said, stderr=said, cwd=ROOT) as run,
    ):
        try:
            yield run
        finally:
            run.kill()


def test_a_report_is_readable_at_all_sizes_without_a_network(tab, tmp_path):
    folder = quickstart(epochs=30, per_epoch=400_000, labels=("click", "like")).write(tmp_path / "run")
    (folder / "result.json").write_text(json.dumps(RESULT))
    path = write_report(folder)
    for width, dark in SIZES:
        tab.resize(width, 844 if width < 600 else 900, dark)
        tab.open(path.as_uri())
        text = check(tab, f"report_{width}{'_dark' if dark else ''}")
        for shown in ("quickstart", "finished", "examples/s", "Training waited", "validation, epoch 30, like"):
            assert shown in text
        assert tab.value("document.querySelectorAll('figure').length") == 7
        paper = tab.value("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, re.findall(r"\d+", paper)[:3])) < 60) == dark


def test_names_that_are_markup_are_text_in_a_browser(tab, tmp_path):
    tab.open(write_report(write_hostile(tmp_path)).as_uri())
    text = " ".join(check(tab, "hostile").split())
    for name in NAMES:
        assert " ".join(name.replace("\0", "").split()) in text
    assert not {"a", "img", "iframe", "script"} & {*tab.elements()}


def test_a_report_follows_a_run_until_its_end(tab, tmp_path):
    path = tmp_path / "run" / REPORT
    with training(tmp_path / "run") as run:
        wait_for(path.exists, "the report")
        tab.open(path.as_uri())
        assert "running" in check(tab, "begins")
        tab.value("window.before = true")
        tab.until("window.before === undefined && document.querySelectorAll('figure').length >= 3")
        assert "running" in check(tab, "trains")
        run.send_signal(signal.SIGINT)
        tab.until("document.querySelector('.state').textContent == 'interrupted'")
        run.wait()
    check(tab, "ended")
    tab.value("window.before = true")
    tab.rest(8)
    assert tab.value("window.before"), "it was loaded again"
