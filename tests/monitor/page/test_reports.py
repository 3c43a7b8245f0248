"""report.html: one file without a network, written while a run trains and by the command."""

import json
import os
import re
import shutil
from itertools import pairwise

import pytest
from conftest import make_workflow, write_data
from support.runs.harness import make_driver
from support.runs.live_lines import FakeRun, quickstart

from pipeline.arguments import REPORT
from pipeline.monitor.live.lines import LIVE, Ended
from pipeline.monitor.page import page as of_page
from pipeline.monitor.page.page import MOST_SHARE, SECONDS_A_WRITE, ReportFile, write_report
from pipeline.verify import verify

KIB = 1 << 10


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder of a run that went through three tiers."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    workflow = make_workflow(write_data(folder.parent / "data", num_train=400, num_keys=300))
    make_driver(workflow, folder, device_rows=330, host_rows=64, chunk_rows=4).run()
    return folder


def without_times(text):
    """A page without the times that depend on when it is written."""
    return re.sub(r"written [^<]*|<time>.*?</time>", "", text)


def test_the_report_of_a_run_is_that_of_the_command(finished, tmp_path):
    own, result = (finished / REPORT).read_text(), json.loads((finished / "result.json").read_text())
    assert "http-equiv=refresh" not in own
    for text in ("embedding_dim", "numpy", result["fingerprint"], f"{result['auc']:.6f}", ">finished<"):
        assert text in own
    assert len(own) < 100 * KIB
    path = write_report(finished, tmp_path / "copy.html")
    assert without_times(path.read_text()) == without_times(own)
    assert verify(finished) == 0


def test_a_report_of_a_long_run_with_many_columns_is_small(finished, tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(finished, run_dir)
    (run_dir / LIVE).unlink()
    settings = json.loads((run_dir / "workflow.json").read_text())
    settings["data"]["categories"] = [{"name": f"column {n}"} for n in range(3000)]
    (run_dir / "workflow.json").write_text(json.dumps(settings))
    quickstart(epochs=100, labels=("click", "like")).write(run_dir)
    assert write_report(run_dir).stat().st_size < 300 * KIB


class Clock:
    """A clock that each write of a report advances by `cost` seconds."""

    def __init__(self, monkeypatch, cost):
        self.now, self.writes = 1000.0, []
        page = of_page.page

        def slow_page(*args):
            self.writes.append((self.now, args[-1]))
            self.now += cost
            return page(*args)

        monkeypatch.setattr(of_page, "page", slow_page)

    def __call__(self):
        return self.now


@pytest.mark.parametrize("cost", [0.001, 0.5])
def test_a_report_takes_at_most_its_share_of_the_time(tmp_path, monkeypatch, cost):
    clock = Clock(monkeypatch, cost)
    run = quickstart(epochs=10)
    file = ReportFile(tmp_path, {}, clock)
    for line in run.lines:
        file.add(line)
        clock.now += 1.0
    moments = [at for at, _ in clock.writes[:-1]]
    gaps = [later - earlier - cost for earlier, later in pairwise(moments)]
    wanted = max(SECONDS_A_WRITE, cost / MOST_SHARE)
    assert all(wanted - 0.01 < gap < wanted + 1.01 for gap in gaps)
    assert [every for _, every in clock.writes] == [5, *[round(wanted)] * len(gaps), None]
    assert ">finished<" in (tmp_path / REPORT).read_text()


def test_a_clock_that_is_set_back_stops_no_report(tmp_path, monkeypatch):
    clock, run = Clock(monkeypatch, 0.0), FakeRun().begin().train(0.1)
    file = ReportFile(tmp_path, {}, clock)
    for line in run.lines:
        file.add(line)
        clock.now -= 3600.0
    assert len(clock.writes) == len(run.lines)


def test_the_report_of_a_resumed_run_shows_earlier_sessions(tmp_path):
    run = FakeRun().begin().train(0.5)
    run.write(tmp_path)
    file, before = ReportFile(tmp_path, {}), len(run.lines)
    for line in run.begin(back=0.1).train().end().lines[before:]:
        file.add(line)
    text = (tmp_path / REPORT).read_text()
    assert "session 2" in text
    assert 'class="marks"' in text


def test_a_report_that_cannot_be_written_ends_no_run(tmp_path):
    (tmp_path / "run" / REPORT / "in the way").mkdir(parents=True)
    run = quickstart()
    file = ReportFile(tmp_path / "run", {})
    for line in run.lines:
        file.add(line)
    assert isinstance(run.lines[-1], Ended)
    assert os.listdir(tmp_path / "run" / REPORT) == ["in the way"]


def test_a_partly_written_report_is_removed_by_the_next_session(tmp_path):
    workflow = make_workflow(write_data(tmp_path / "data", num_train=60, num_keys=20))
    make_driver(workflow, tmp_path / "run").run()
    (tmp_path / "run" / f"{REPORT}.partial").write_text("<html")
    assert verify(tmp_path / "run") == 0
    make_driver(workflow, tmp_path / "run").run()
    assert not (tmp_path / "run" / f"{REPORT}.partial").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "there is no such folder"),
        (["empty"], "holds no run: it has no live.jsonl"),
        (["gs://bucket/run"], "an address of gs"),
        (["run", "--out", "nowhere/at/all.html"], "nowhere/at"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    quickstart().write(tmp_path / "run")
    assert of_page.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error
    assert error.count("\n") == 1
