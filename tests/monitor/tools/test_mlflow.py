"""`pipeline to-mlflow`: MLflow's own client finds the settings, each point once, the tags and the files."""

import json

import pytest
from support.depth import some
from support.runs.session_lines import BEGAN, append, begin, tick, two_sessions, write_run

from pipeline.__main__ import main
from pipeline.monitor.tools.reader import Curves

pytestmark = pytest.mark.filterwarnings("ignore")
"""Warnings of MLflow's own packages."""

SETTINGS = {
    "name": "small",
    "seed": 7,
    "data": {"root": "data", "categories": [{"name": "x" * 300}, {"name": "y" * 300}]},
}


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Address of a local store that keeps what is logged twice; nothing is sent anywhere."""
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return f"file://{tmp_path}/store"


def logged(store, experiment="small"):
    """The one run of an experiment, and its metrics."""
    from mlflow import MlflowClient

    client = MlflowClient(store)
    (run,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    metrics = {
        name: [(m.step, m.value, m.timestamp) for m in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
    return run, metrics, {file.path for file in client.list_artifacts(run.info.run_id)}


def expected(lines):
    curves, found = Curves(), {}
    for line in lines:
        for point in curves.of(line):
            found.setdefault(point.name, []).append((point.step, point.value, int(1000 * point.at)))
    return found


@pytest.mark.parametrize("kind", some(("file", "sqlite"), "file"))
def test_mlflow_reads_a_run_and_the_same_run_after_it_went_on(tmp_path, store, capsys, kind):
    lines = two_sessions()
    store = store if kind == "file" else f"sqlite:///{tmp_path}/store.db"
    run = write_run(tmp_path / "run", lines[:8])
    (run / "workflow.json").write_text(json.dumps(SETTINGS))
    for _ in range(2):
        assert main(["to-mlflow", str(run), "--tracking-uri", store]) == 0
        found, metrics, files = logged(store)
        assert metrics == expected(lines[:8])
        assert (found.info.status, files) == ("RUNNING", {"workflow.json"})
    result = {"fingerprint": "abc", "data": {"train": {"digest": "123"}}}
    (run / "result.json").write_text(json.dumps(result))
    (run / "workflow.json").write_text(json.dumps(SETTINGS | {"seed": 8}))
    append(run, lines[8:])
    assert main(["to-mlflow", str(run), "--tracking-uri", store, "--follow"]) == 0
    found, metrics, files = logged(store)
    assert metrics == expected(lines)
    assert (found.info.status, found.info.run_name) == ("FINISHED", "run")
    assert (found.info.start_time, found.info.end_time) == (int(1000 * BEGAN), int(1000 * (BEGAN + 86_404)))
    assert files == {"workflow.json", "result.json"}
    params = found.data.params
    assert (params["name"], params["seed"], params["data.root"]) == ("small", "7", "data")
    assert len(params["data.categories"]) == 500
    tags = {name: value for name, value in found.data.tags.items() if name.startswith("pipeline.")}
    assert tags.pop("pipeline.run")
    assert tags == {
        "pipeline.run_dir": str(run), "pipeline.device": "cpu", "pipeline.fingerprint": "abc",
        "pipeline.data.train": "123",
    }  # fmt: skip
    assert f"run {found.info.run_id} in experiment small" in capsys.readouterr().out


def test_a_fresh_run_in_the_same_folder_is_another_one(tmp_path, store):
    from mlflow import MlflowClient

    for at in (BEGAN, BEGAN + 500):
        run = write_run(tmp_path / "run", [begin(at), tick(1.0, 100, at)])
        (run / "workflow.json").write_text(json.dumps(SETTINGS))
        assert main(["to-mlflow", str(run), "--tracking-uri", store, "--experiment", "mine"]) == 0
        run.rename(tmp_path / f"{at}")
    client = MlflowClient(store)
    assert len(client.search_runs([client.get_experiment_by_name("mine").experiment_id])) == 2


def test_what_mlflow_refuses_is_an_error_of_one_line(tmp_path, store, capsys):
    run = write_run(tmp_path / "run", two_sessions())
    (run / "workflow.json").write_text(json.dumps(SETTINGS))
    assert main(["to-mlflow", str(run), "--tracking-uri", "nowhere://x"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: MLflow: ")
    assert len(said.splitlines()) == 1


def test_a_run_whose_training_has_not_begun_is_refused(tmp_path, store, capsys):
    run = write_run(tmp_path / "run", [tick(1.0, 10)])
    assert main(["to-mlflow", str(run), "--tracking-uri", store]) == 2
    assert "has no session yet; wait until its training has begun" in capsys.readouterr().err
