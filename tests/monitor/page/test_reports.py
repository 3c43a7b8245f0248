"""Reports and comparisons: one file without a network, whose numbers are those of the run."""

import json
import re
import shutil

import numpy as np
import pytest
from conftest import make_workflow, write_data
from fake_live import quickstart
from harness import make_driver

from pipeline.monitor.live.lines import LIVE
from pipeline.monitor.page import compare, report, watch
from pipeline.monitor.page.compare import names_of
from pipeline.monitor.page.report import write_report
from pipeline.monitor.page.sample import MAX_CHUNKS, sample_rows
from pipeline.serving.opened import open_run
from pipeline.workflow import Workflow

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


def test_a_report_has_the_numbers_of_the_result_and_needs_no_network(finished):
    path = write_report(finished)
    assert path == finished / "report.html"
    assert embedded(path) == json.loads((finished / "result.json").read_text())
    assert path.stat().st_size < 5 * MIB
    assert without_network(path)
    text = path.read_text()
    for told in (
        "embedding_dim",
        "Euclidean norm",
        "numpy",
        json.loads((finished / "result.json").read_text())["fingerprint"],
    ):
        assert told in text


@pytest.mark.parametrize("changes", [{"epochs": 100}, {"fields": 26}])
def test_reports_of_long_and_wide_runs_are_small(finished, tmp_path, changes):
    run_dir = tmp_path / "run"
    shutil.copytree(finished, run_dir)
    quickstart(**changes).write(run_dir)
    assert write_report(run_dir).stat().st_size < 5 * MIB


def test_a_report_of_an_older_run_tells_what_other_files_have(finished, tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(finished, run_dir)
    (run_dir / LIVE).unlink()
    path = write_report(run_dir, tmp_path / "out.html")
    assert embedded(path)["examples"] == 800
    assert "since an older version trained it" in path.read_text()


def train_narrow(folder):
    workflow = make_workflow(write_data(folder / "data", num_train=60, num_keys=40))
    fields = workflow.model_dump(mode="json")
    fields["optimizer"]["rows"]["storage"]["weights"] = "bfloat16"
    narrow = Workflow.model_validate_json(json.dumps(fields))
    make_driver(narrow, folder / "run", device_rows=130, host_rows=24, chunk_rows=4).run()
    return folder / "run"


@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
def test_a_sample_of_all_chunks_has_the_counts_and_norms_of_all_rows(finished, tmp_path, monkeypatch, storage):
    monkeypatch.setattr("pipeline.monitor.page.sample.MAX_CHUNKS", 1 << 20)
    folder = finished if storage == "float32" else train_narrow(tmp_path)
    sample = sample_rows(folder)
    assert sample.num_chunks == sample.all_chunks
    with open_run(folder, "last") as run:
        looked_up = [run.rows(column, list(range(40))) for column in ("item", "user")]
    found = set(zip(sample.counts_N.tolist(), sample.norms_N.round(4).tolist(), strict=True))
    for rows in looked_up:
        norms = np.linalg.norm(np.array(rows["weights"].to_pylist(), np.float32)[:, :3], axis=1).round(4)
        rows_known = zip(rows["count"].to_pylist(), norms.tolist(), rows["known"].to_pylist(), strict=True)
        known = [(count, norm) for count, norm, is_known in rows_known if is_known]
        assert len(known) > 5
        assert set(known) <= found


def test_a_sample_is_of_few_chunks_the_same_each_time(finished):
    one, other = sample_rows(finished), sample_rows(finished)
    assert one.num_chunks == MAX_CHUNKS < one.all_chunks
    assert len(one.counts_N) <= 4 * MAX_CHUNKS
    assert 0 <= one.stale < 1
    assert one.norms_N.tobytes() == other.norms_N.tobytes()
    assert "64 of" in one.told


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
        (watch, ["empty"], "it has no live.jsonl, so it is no run"),
        (watch, ["s3://bucket/run"], "not on s3"),
        (watch, ["run", "--host", "192.0.2.1"], "cannot listen at port 0 of 192.0.2.1"),
        (report, ["nowhere"], "there is no such folder"),
        (report, ["empty"], "holds no run that has told anything"),
        (report, ["gs://bucket/run"], "not on gs"),
        (report, ["run", "--out", "nowhere/at/all.html"], "nowhere/at"),
        (compare, ["run"], "name 2 to 8 folders"),
        (compare, ["run", "empty"], "holds no run"),
    ],
)  # fmt: skip
def test_what_cannot_be_shown_is_refused_in_one_line(command, arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.nice", lambda more: None)
    (tmp_path / "empty").mkdir()
    quickstart().write(tmp_path / "run")
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error
    assert error.count("\n") == 1
