"""Reports and comparisons: one file without a network, whose numbers are those of the run."""

import json
import re
import shutil

import pytest
from conftest import make_workflow, write_data
from support.runs.harness import make_driver
from support.runs.live_lines import quickstart

from pipeline.monitor.page import compare, report, watch
from pipeline.monitor.page.compare import names_of
from pipeline.monitor.page.report import write_report

MIB = 1 << 20


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder of a run that went through three tiers."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    workflow = make_workflow(write_data(folder.parent / "data", num_train=400, num_keys=300))
    make_driver(workflow, folder, device_rows=330, host_rows=64, chunk_rows=4).run()
    return folder


def embedded(path):
    text = path.read_text()
    found = re.search(r'<script type="application/json" id="result">(.*?)</script>', text, re.DOTALL)
    return json.loads(found[1])


def without_network(path):
    """True if a page asks for nothing: all scripts and styles are in it."""
    text = re.sub(r"<script[^>]*>.*?</script>", lambda m: m[0].split(">")[0], path.read_text(), flags=re.DOTALL)
    return not re.search(r"""(src|href)=["'](?!data:)""", text)


def test_a_report_has_the_result_and_needs_no_network(finished):
    path = write_report(finished)
    assert path == finished / "report.html"
    assert embedded(path) == json.loads((finished / "result.json").read_text())
    assert path.stat().st_size < 5 * MIB
    assert without_network(path)
    text = path.read_text()
    for shown in ("embedding_dim", "numpy", json.loads((finished / "result.json").read_text())["fingerprint"]):
        assert shown in text


def test_a_report_of_a_long_and_wide_run_is_small(finished, tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(finished, run_dir)
    quickstart(epochs=100, fields=26).write(run_dir)
    assert write_report(run_dir).stat().st_size < 5 * MIB


def test_a_comparison_shows_the_settings_that_differ(finished, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(finished, other)
    quickstart(epochs=3).write(other)
    settings = json.loads((other / "workflow.json").read_text())
    settings["optimizer"]["rows"]["lr"] = 0.123
    (other / "workflow.json").write_text(json.dumps(settings))
    out = tmp_path / "compare.html"
    assert compare.main([str(finished), str(other), "--out", str(out)]) == 0
    text = out.read_text()
    assert "optimizer.rows.lr" in text
    assert "0.123" in text
    assert "optimizer.rows.beta1" not in text
    assert without_network(out)


def test_runs_are_named_by_what_differs_in_their_paths(tmp_path):
    a, b, c = (tmp_path / name for name in ("x/run", "y/run", "y/other"))
    assert names_of([a, b]) == ["x/run", "y/run"]
    assert names_of([a, c]) == ["run", "other"]


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        (watch, ["nowhere"], "there is no such folder"),
        (watch, ["empty"], "holds no run: it has no live.jsonl"),
        (watch, ["s3://bucket/run"], "an address of s3"),
        (watch, ["run", "--host", "192.0.2.1"], "cannot listen at port 0 of 192.0.2.1"),
        (report, ["nowhere"], "there is no such folder"),
        (report, ["empty"], "holds no run: it has no live.jsonl"),
        (report, ["gs://bucket/run"], "an address of gs"),
        (report, ["run", "--out", "nowhere/at/all.html"], "nowhere/at"),
        (compare, ["run"], "takes 2 to 8 folders of runs, got 1"),
        (compare, ["run", "empty"], "holds no run"),
    ],
)  # fmt: skip
def test_what_cannot_be_shown_is_refused_in_one_line(command, arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    quickstart().write(tmp_path / "run")
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error
    assert error.count("\n") == 1
