"""pipeline to-mlflow RUN: log the settings, metrics and results of a run to MLflow."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.arguments import mlflow_arguments
from pipeline.monitor.live.lines import Begin, Ended, LiveLine, read_live
from pipeline.monitor.runs import flat_settings, result_of
from pipeline.monitor.tools.reading import check_extra, read_run
from pipeline.monitor.tools.scalars import ScalarPoint, Scalars, allowed_name, line_batches
from pipeline.storage.files import checksum

if TYPE_CHECKING:
    from mlflow import MlflowClient

ARTIFACTS = ("workflow.json", "result.json", "report.html")
IDENTITY = "pipeline.run"
"""Tag that tells which run this is, so that the command finds what it logged before."""
METRICS_AT_ONCE, PARAMS_AT_ONCE = 1000, 100
"""Limits of MLflow for one call."""
MAX_PARAM = 500
"""Characters of a value that every version of MLflow takes; workflow.json, an artifact, has all."""
STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 on success, 2 if the folder holds no run that can be read, MLflow is not installed
    or does not take what it is sent, 130 after an interrupt."""
    args = mlflow_arguments().parse_args(argv)
    return read_run(args.run, lambda: log_run(args.run, args.follow, args.tracking_uri, args.experiment))


def log_run(run_dir: Path, follow: bool, tracking_uri: str | None, experiment: str | None) -> str:
    """Log a run, or what is new of one that was logged before. Returns a line that says where. Raises ValueError with
    MLflow's message if it refuses something."""
    check_extra("mlflow", "mlflow")
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    begin = next((line for line in read_live(run_dir) if isinstance(line, Begin)), None)
    if begin is None:
        raise ValueError(f"{run_dir} has no session yet; wait until its training has begun")
    try:
        client = MlflowClient(tracking_uri)
        name = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or begin.name
        return _Logged(client, name, run_dir, begin).log(follow)
    except MlflowException as error:
        raise ValueError(f"MLflow: {' '.join(str(error).split())}") from error


class _Logged:
    """A run in MLflow."""

    def __init__(self, client: MlflowClient, experiment: str, run_dir: Path, begin: Begin) -> None:
        """Find the run of an earlier call, or make one."""
        self._client, self._experiment, self._run_dir, self._begin = client, experiment, run_dir, begin
        found = client.get_experiment_by_name(experiment)
        where = found.experiment_id if found else client.create_experiment(experiment)
        identity = checksum(f"{begin.name} {begin.at!r}".encode())
        earlier = client.search_runs([where], f"tags.`{IDENTITY}` = '{identity}'", max_results=1)
        run = earlier[0] if earlier else client.create_run(
            where, start_time=_milliseconds(begin.at), tags={IDENTITY: identity}, run_name=run_dir.resolve().name
        )  # fmt: skip
        self._id, self._params = run.info.run_id, dict(run.data.params)
        self._scalars = Scalars({
            tag: max(metric.step for metric in client.get_metric_history(self._id, tag)) for tag in run.data.metrics
        })  # fmt: skip
        self._num_scalars = 0

    def log(self, follow: bool) -> str:
        self._log_settings()
        self._tag({"run_dir": str(self._run_dir.resolve()), "device": self._begin.device})
        self._client.update_run(self._id, "RUNNING")
        ended: Ended | None = None
        try:
            for lines in line_batches(self._run_dir, follow):
                ended = _end_of(lines, ended)
                self._log_scalars(scalar for line in lines for scalar in self._scalars.of(line))
        finally:
            self._log_results()
        if ended:
            self._client.set_terminated(self._id, STATUS[ended.how], _milliseconds(ended.at))
        return f"logged to MLflow: {self._num_scalars:,} new points of run {self._id} in experiment {self._experiment}"

    def _log_settings(self) -> None:
        """Log the settings of the workflow. MLflow keeps the first value of each; one that a later session changed gets
        a tag."""
        from mlflow.entities import Param

        settings = dict(_params(self._run_dir))
        new = iter([Param(name, value) for name, value in settings.items() if name not in self._params])
        while batch := list(islice(new, PARAMS_AT_ONCE)):
            self._client.log_batch(self._id, params=batch)
        changed = {n: value for n, value in settings.items() if self._params.get(n, value) != value}
        self._tag({f"changed.{name}": value for name, value in changed.items()})

    def _log_scalars(self, scalars: Iterable[ScalarPoint]) -> None:
        from mlflow.entities import Metric

        metrics = (Metric(s.tag, s.value, _milliseconds(s.at), s.step) for s in scalars)
        while batch := list(islice(metrics, METRICS_AT_ONCE)):
            self._client.log_batch(self._id, metrics=batch)
            self._num_scalars += len(batch)

    def _log_results(self) -> None:
        result = result_of(self._run_dir) or {}
        digests = {f"data.{split}": of["digest"] for split, of in result.get("data", {}).items() if "digest" in of}
        fingerprint = {"fingerprint": result["fingerprint"]} if "fingerprint" in result else {}
        self._tag(fingerprint | digests)
        for name in ARTIFACTS:
            if (self._run_dir / name).is_file():
                self._client.log_artifact(self._id, str(self._run_dir / name))

    def _tag(self, tags: Mapping[str, str]) -> None:
        for name, value in tags.items():
            self._client.set_tag(self._id, f"pipeline.{allowed_name(name)}", value)


def _params(run_dir: Path) -> Iterator[tuple[str, str]]:
    """Names and values of the settings of a run's workflow."""
    for name, value in flat_settings(json.loads((run_dir / "workflow.json").read_bytes())):
        text = value if isinstance(value, str) else json.dumps(value)
        yield allowed_name(name), text if len(text) <= MAX_PARAM else f"{text[: MAX_PARAM - 4]} ..."


def _end_of(lines: Iterable[LiveLine], before: Ended | None) -> Ended | None:
    """The end of the last session; None while it goes on."""
    for line in lines:
        before = line if isinstance(line, Ended) else None if isinstance(line, Begin) else before
    return before


def _milliseconds(at: float) -> int:
    return int(1000 * at)


if __name__ == "__main__":
    sys.exit(main())
