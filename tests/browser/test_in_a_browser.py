"""The page, reports and comparisons in a real browser: no error, every plot has data, readable on a screen and a phone.

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
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import pytest
from conftest import make_workflow, write_data
from support.faults.hostile_names import FOLDER, NAMES, write_hostile
from support.runs.browser import CHROMIUM, Browser, wait_for
from support.runs.live_lines import FakeRun, quickstart

from pipeline.monitor.live.lines import LIVE
from pipeline.monitor.page import compare
from pipeline.monitor.page.report import write_report
from pipeline.storage.durable import own_checksum

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium"),
    pytest.mark.timeout(600),
]

ROOT = Path(__file__).parents[2]
SIZES = [(1280, False), (1280, True), (390, False), (390, True)]
GONE = (
    "WebSocket connection to",
    "ERR_CONNECTION_REFUSED",
    "Lost websocket",
    "connection was lost",
    "Failed to connect",
)
"""What a browser says by itself when a server goes."""
MAX_SHARE = 0.03
"""Most CPU seconds of a server's process for a second with a page open."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def tab(browser):
    opened = browser.tab()
    yield opened
    opened.close()


@contextmanager
def command(*arguments, **options):
    """A process of a command, and what it prints line by line; it is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, cwd=ROOT, **options,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def link_of(process):
    """The link of the page that a command prints."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if found := re.search(r"http://\S+/(pipeline)?(?=\s)", line):
            return found[0]
    raise AssertionError("".join(lines))


def check(tab, name, errors=True):
    """What must hold of any page at this moment."""
    figures = [figure for figure in tab.figures() if figure["visible"]]
    assert figures
    assert not [figure["title"] for figure in figures if not figure["drawn"]]
    assert tab.overflow() <= 0
    text = tab.text()
    assert "nan" not in text.lower().replace("nanosecond", "").split()
    if errors:
        assert not tab.errors
    if folder := os.environ.get("SHOTS"):
        tab.screenshot(Path(folder) / f"{name}.png")
    return text


def check_at_all_sizes(tab, url, name):
    for width, dark in SIZES:
        tab.resize(width, 844 if width < 600 else 900, dark)
        tab.open(url)
        check(tab, f"{name}_{width}{'_dark' if dark else ''}")
        paper = tab.value("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, re.findall(r"\d+", paper)[:3])) < 60) == dark


def test_a_watched_run_is_followed_and_readable_at_all_sizes(tab, tmp_path):
    run = FakeRun(epochs=3).begin().train(0.5)
    folder, num_written = run.write(tmp_path / "run"), len(run.lines)
    with command("watch", folder) as process:
        url = link_of(process)
        check_at_all_sizes(tab, url, "watched")
        tab.resize(1280)
        tab.open(url)
        text = check(tab, "killed")
        assert "killed" in text
        run.begin(back=0.1).train().evaluate("test").end()
        with (folder / LIVE).open("a") as file:
            file.writelines(f"{line.model_dump_json()}\n" for line in run.lines[num_written:])
        tab.until(
            "document.querySelector('#head') && Bokeh.documents[0].get_model_by_name('head').text.includes('finished')"
        )
        tab.rest(1.5)
        text = check(tab, "finished")
        assert "session 2" in text


def test_an_open_page_takes_few_seconds_of_its_server(tab, tmp_path):
    run = FakeRun(epochs=20).begin().train(0.5)
    folder, num_written = run.write(tmp_path / "run"), len(run.lines)
    with command("watch", folder) as process, (folder / LIVE).open("a") as file:
        tab.open(link_of(process))
        tab.rest(3)
        server, seconds = psutil.Process(process.pid), 20
        before = sum(server.cpu_times()[:2])
        for _ in range(seconds):
            run.tick()
            file.writelines(f"{line.model_dump_json()}\n" for line in run.lines[num_written:])
            file.flush()
            num_written = len(run.lines)
            tab.rest(1)
        share = (sum(server.cpu_times()[:2]) - before) / seconds
        check(tab, "busy")
    assert share <= MAX_SHARE


def test_a_page_says_when_its_server_is_gone(tab, tmp_path):
    folder = quickstart().write(tmp_path / "run")
    with command("watch", folder) as process:
        tab.open(link_of(process))
        check(tab, "served")
    tab.until("document.body.classList.contains('lost')")
    assert tab.value("getComputedStyle(document.querySelector('.gone')).display") == "block"
    tab.rest(1)
    assert not [error for error in tab.errors if not any(words in error for words in GONE)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_shows_its_page_on_dasks_server_until_killed(tab, tmp_path, workers):
    workflow = make_workflow(write_data(tmp_path / "data", num_train=4000), epochs=4000)
    file = tmp_path / "workflow.py"
    made = f"Workflow.model_validate_json({workflow.model_dump_json()!r})"
    file.write_text(f"from pipeline.workflow import Workflow\nworkflow = {made}\n")
    arguments = ["run", file, "--run-dir", tmp_path / "run", *(["--workers", 2] if workers > 1 else [])]
    with command(*arguments) as process:
        tab.open(link_of(process))
        tab.until("Bokeh.documents[0].get_model_by_name('found').children.length > 1")
        tab.until("Bokeh.documents[0].get_model_by_name('loss').children.length > 1")
        tab.rest(3)
        text = check(tab, f"dask_{workers}")
        assert "running" in text
        assert "small" in text
        process.send_signal(signal.SIGKILL)
        process.wait()
        tab.until("document.body.classList.contains('lost')")
        check(tab, f"dask_{workers}_killed", errors=False)
    with command("watch", tmp_path / "run") as watching:
        tab.open(link_of(watching))
        wait_for(lambda: "killed" in tab.text(), "the run's death", tab.rest)
        check(tab, f"watched_{workers}_killed")


def test_a_report_and_a_comparison_open_without_a_network(tab, tmp_path):
    folder = quickstart(epochs=100, fields=26, per_epoch=400_000, labels=("click", "like")).write(tmp_path / "run")
    (folder / "result.json").write_text(json.dumps(RESULT))
    path = write_report(folder)
    check_at_all_sizes(tab, path.as_uri(), "report")
    assert json.loads(tab.value("document.getElementById('result').textContent")) == RESULT
    assert {url.partition(":")[0] for url in tab.requests} <= {"file", "data"}
    other = quickstart(epochs=3, workers=2).write(tmp_path / "other")
    out = tmp_path / "compare.html"
    assert compare.main([str(folder), str(other), "--out", str(out)]) == 0
    check_at_all_sizes(tab, out.as_uri(), "compare")
    assert {url.partition(":")[0] for url in tab.requests} <= {"file", "data"}


def test_names_that_are_markup_are_text_in_a_browser(tab, tmp_path):
    folder, other = write_hostile(tmp_path), write_hostile(tmp_path, 1)
    out = tmp_path / "compare.html"
    assert compare.main([str(folder), str(other), "--out", str(out)]) == 0

    def check_hostile(url, names):
        tab.open(url)
        text = check(tab, "hostile")
        for name in names:
            assert " ".join(name.replace("\0", "").split()) in " ".join(text.split())
        assert not {"a", "img", "iframe", "mjx-container"} & {*tab.elements()}
        assert all(asked.startswith(("file:", "data:", "blob:", url)) for asked in tab.requests), tab.requests

    check_hostile(write_report(folder).as_uri(), NAMES)
    check_hostile(out.as_uri(), [FOLDER])
    with command("watch", folder) as process:
        link = link_of(process)
        check_hostile(link, NAMES)
        evil = Request(link, headers={"Host": "evil.example"})
        with pytest.raises(HTTPError, match="403"):
            urlopen(evil)


RESULT = {
    "name": "quickstart", "stopped": None, "commit": 22, "rows": 214_041, "map_bytes": 3_588_416, "auc": 0.78644841524,
    "logloss": 0.4563385, "gauc": None, "split": "test", "examples": 2_000_000, "seconds": 51.85680483200122,
    "examples_per_second": 38567.744512592595, "stages": {"read": 1.8, "train": 29.4}, "ready": 0.5,
    "cpu_seconds": {"read": 0.4, "train": 5.5}, "hidden": {"read": 0.64}, "epochs": [], "workers": [],
    "tiers": {"device": {"hits": 2_408_089, "hit_rate": 0.62, "rows_in": 1_317_437, "rows_out": 1_302_176}},
    "disk": {"commits": 22, "written_bytes": 741_998_592, "write_amplification": 3.9}, "fingerprint": "</script>",
    "data": {"train": {"files": [{"size": 52_452_433, "row_groups": [[8, 65_536]]}], "digest": "03e208761036be50"}},
}  # fmt: skip
"""A result.json; its fingerprint would end a script that it is in."""
RESULT["checksum"] = own_checksum(RESULT)
