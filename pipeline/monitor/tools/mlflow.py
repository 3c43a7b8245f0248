"""pipeline to-mlflow RUN: log the settings, metrics and results of a run to MLflow."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.arguments import mlflow_arguments
from pipeline.machine.command import run_command
from pipeline.monitor.command import check_extra, check_run
from pipeline.monitor.live.lines import Begin, read_live
from pipeline.monitor.runs import flat_settings, result_of
from pipeline.monitor.tools.reader import Curves, allowed_name
from pipeline.storage.files import checksum

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

ARTIFACTS = ("workflow.json", "result.json", "report.html")
IDENTITY = "pipeline.run"
"""Tag that identifies the run, so that the command finds what it logged earlier."""
METRICS_AT_ONCE, PARAMS_AT_ONCE, MAX_PARAM = 1000, 100, 500
"""Limits of MLflow: items per call, and characters per parameter. The artifact workflow.json has the full values."""
STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 on success, 2 if the folder contains no run or MLflow is not installed or rejects a
    request, 130 after an interrupt."""
    args = mlflow_arguments().parse_args(argv)
    log = partial(log_run, args.run, args.follow, args.tracking_uri, args.experiment)
    return run_command(log, "what was read is logged", heeds=True)


def log_run(run_dir: Path, follow: bool, tracking_uri: str | None, experiment: str | None) -> str:
    """Log a run, or only what is new if it was logged before. Returns a line that says where. Raises ValueError, with
    MLflow's message, if MLflow rejects a request."""
    check_run(run_dir)
    check_extra("mlflow")
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    begin = next((line for line in read_live(run_dir) if isinstance(line, Begin)), None)
    if begin is None:
        raise ValueError(f"{run_dir} has no session yet; wait until its training has begun")
    name = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or begin.name
    try:
        client = MlflowClient(tracking_uri)
        run = _run_of(client, name, run_dir, begin)
        num_points = _log(client, run, run_dir, follow)
    except MlflowException as error:
        raise ValueError(f"MLflow: {' '.join(str(error).split())}") from error
    return f"logged to MLflow: {num_points:,} new points of run {run.info.run_id} in experiment {name}"


def _run_of(client: MlflowClient, experiment: str, run_dir: Path, begin: Begin) -> Run:
    """Find the MLflow run of an earlier call, or create one."""
    found = client.get_experiment_by_name(experiment)
    where = found.experiment_id if found else client.create_experiment(experiment)
    identity = checksum(f"{begin.name} {begin.at!r}".encode())
    earlier = client.search_runs([where], f"tags.`{IDENTITY}` = '{identity}'", max_results=1)
    if earlier:
        return earlier[0]
    tags = {IDENTITY: identity, "pipeline.run_dir": str(run_dir.resolve()), "pipeline.device": begin.device}
    return client.create_run(where, int(1000 * begin.at), tags, run_dir.resolve().name)


def _log(client: MlflowClient, run: Run, run_dir: Path, follow: bool) -> int:
    """Log settings, points, results and files. Returns the number of points."""
    from mlflow.entities import Metric, Param, RunTag

    run_id, num_points = run.info.run_id, 0
    client.update_run(run_id, "RUNNING")
    params = []
    for name, value in flat_settings(json.loads((run_dir / "workflow.json").read_bytes())):
        text = value if isinstance(value, str) else json.dumps(value)
        # MLflow keeps the first value of each setting, even if a later session used another.
        if allowed_name(name) not in run.data.params:
            params.append(Param(allowed_name(name), text[:MAX_PARAM]))
    for n in range(0, len(params), PARAMS_AT_ONCE):
        client.log_batch(run_id, params=params[n : n + PARAMS_AT_ONCE])
    last_steps = {name: max(m.step for m in client.get_metric_history(run_id, name)) for name in run.data.metrics}
    curves = Curves(last_steps)
    try:
        for points in curves.batches(run_dir, follow):
            metrics = [Metric(point.name, point.value, int(1000 * point.at), point.step) for point in points]
            for n in range(0, len(metrics), METRICS_AT_ONCE):
                client.log_batch(run_id, metrics[n : n + METRICS_AT_ONCE])
            num_points += len(points)
    finally:
        result = result_of(run_dir) or {}
        tags = {f"data.{split}": of["digest"] for split, of in result.get("data", {}).items() if "digest" in of}
        tags |= {"fingerprint": result["fingerprint"]} if "fingerprint" in result else {}
        client.log_batch(run_id, tags=[RunTag(f"pipeline.{allowed_name(name)}", tag) for name, tag in tags.items()])
        for name in ARTIFACTS:
            if (run_dir / name).is_file():
                client.log_artifact(run_id, str(run_dir / name))
    if curves.ended:
        client.set_terminated(run_id, STATUS[curves.ended.how], int(1000 * curves.ended.at))
    return num_points
