"""`run --track`: MLflow's client and TensorBoard's reader find what a run logs, and no failure of either ends a run."""

import pytest
from support.runs.harness import make_driver

from pipeline.__main__ import main
from pipeline.api import Observer
from pipeline.errors import PipelineError
from pipeline.monitor import command, track
from pipeline.monitor.track import Tracker
from pipeline.verify import main as verify
from pipeline.workflow import Commit

pytestmark = pytest.mark.filterwarnings("ignore")
"""Warnings of MLflow's and TensorBoard's own packages."""

NUM_TRAIN, BLOCK = 90, 12


class Fails(Observer):
    """Fails at a number of training examples."""

    def __init__(self, at):
        self.left = at

    def on_stage(self, done):
        if done.trained:
            self.left -= done.trained.block.num_examples
            if self.left <= 0:
                raise OSError("the disk is gone")


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    """A local store of MLflow; nothing is sent anywhere. Each block has a point."""
    pytest.importorskip("mlflow", reason="needs the extra track")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/store")
    monkeypatch.setattr(track, "SECONDS", 0.0)


def train(workflow, run_dir, tool, *observers):
    driver = make_driver(workflow, run_dir)
    driver.runner.observers += [Tracker(tool, run_dir), *observers]
    return driver.run()


def of_mlflow(run_dir):
    """Settings, points by name, and results of the one run of the experiment."""
    from mlflow import MlflowClient

    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    points = {n: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, n)] for n in run.data.metrics}
    return str(run.data.params), points, f"{run.info.status.lower()} {run.data.tags}"


def of_tensorboard(run_dir):
    from tensorboard.backend.event_processing import event_accumulator as reader

    sizes = {reader.SCALARS: 0, reader.TENSORS: 0}
    found = reader.EventAccumulator(str(run_dir / "tensorboard"), size_guidance=sizes).Reload()
    texts = (found.Tensors(f"{name}/text_summary")[-1].tensor_proto.string_val[0] for name in ("settings", "result"))
    points = {name: [(one.step, one.value) for one in found.Scalars(name)] for name in found.Tags()["scalars"]}
    settings, result = (text.decode() for text in texts)
    return settings, points, result


@pytest.mark.parametrize(("tool", "read"), [("mlflow", of_mlflow), ("tensorboard", of_tensorboard)])
def test_a_run_that_failed_goes_on_in_the_same_log(small_workflow, tmp_path, tool, read):
    workflow = small_workflow().model_copy(update={"commit": Commit(every_blocks=3)})
    with pytest.raises(PipelineError, match="the disk is gone"):
        train(workflow, tmp_path / "run", tool, Fails(at=5 * BLOCK))
    result = train(workflow, tmp_path / "run", tool)
    settings, points, ended = read(tmp_path / "run")
    assert all(text in settings for text in ("optimizer.rows.lr", "schedule.batch_size", "0.05"))
    assert "finished" in ended
    assert result["fingerprint"] in ended
    for split in ("validation", "test"):
        auc = [epoch["auc"] for epoch in result["epochs"] if epoch["split"] == split]
        steps = [NUM_TRAIN, 2 * NUM_TRAIN][-len(auc) :]
        assert points[f"auc/{split}"] == [*zip(steps, (pytest.approx(value, rel=1e-6) for value in auc), strict=True)]
    steps = {*range(BLOCK, NUM_TRAIN, BLOCK), NUM_TRAIN}
    steps |= {NUM_TRAIN + step for step in steps}
    # MLflow has the points of what is trained again twice; TensorBoard's reader drops the first ones.
    for name in ("loss", "examples_per_second"):
        assert {step for step, _ in points[name]} == steps
        assert all(value > 0 for _, value in points[name])


def test_a_server_that_is_away_is_named_once(small_workflow, tmp_path, monkeypatch, capsys):
    expected = make_driver(small_workflow(), tmp_path / "alone").run()["fingerprint"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert train(small_workflow(), tmp_path / "run", "mlflow")["fingerprint"] == expected
    (said,) = (line for line in capsys.readouterr().err.splitlines() if "warning: " in line)
    assert said.startswith("warning: mlflow: ")
    assert said.endswith("; the rest of the run is not logged")


def test_a_server_that_hangs_delays_a_run_only_at_its_end(small_workflow, tmp_path, monkeypatch, capsys):
    import threading

    answer = threading.Event()
    monkeypatch.setattr(track, "to_mlflow", lambda *_: answer.wait(60))
    monkeypatch.setattr(track, "END_SECONDS", 0.1)
    assert train(small_workflow(), tmp_path / "run", "mlflow")
    assert "warning: mlflow: no answer for 0 s" in capsys.readouterr().err
    answer.set()


@pytest.mark.parametrize("tool", ["mlflow", "tensorboard"])
def test_a_missing_package_is_named_before_anything_runs(refused, workflow_file, monkeypatch, tool):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    said = refused(workflow_file, "--track", tool)
    assert f"the package {tool} is not installed: pip install 'ctr-pipeline[track]'" in said


def test_what_a_log_leaves_in_a_run_is_known_to_verify(workflow_file, tmp_path, capsys):
    for tool, epochs in (("tensorboard", 1), ("mlflow", 2)):
        options = ["--serial", "--track", tool, "--set", f"schedule.epochs={epochs}"]
        assert main(["run", str(workflow_file), *options]) == 0
    run_dir = tmp_path / "runs" / "tiny"
    assert {"tensorboard", "mlflow_run"} <= {path.name for path in run_dir.iterdir()}
    capsys.readouterr()
    assert verify([str(run_dir)]) == 0
    said = capsys.readouterr().out
    assert "tensorboard" not in said
    assert "mlflow_run" not in said
