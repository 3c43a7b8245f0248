"""Several workers over spans: the same bits, however the days came."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.data.days import days_workflow, write_days
from support.runs.dask_crew import crew_driver

from pipeline.cluster.crew import WorkerSpec
from pipeline.cluster.pool import WorkerPool
from pipeline.data.source import Source
from pipeline.driver.resume import begun_of
from pipeline.settings.optimizer import DenseAdam, KStep, Optimizer
from pipeline.workflow import Workers, Workflow

SIZES = {"device_rows": 130, "host_rows": 6, "ring_rows": 300, "chunk_rows": 2}


def in_calls(workflow: Workflow, calls: list[list[Path]], run_dir: Path, pool: WorkerPool) -> dict[str, Any] | None:
    first = workflow.with_settings({"data.train": tuple(str(file) for file in calls[0])})
    for number, files in enumerate(calls):
        if number:
            calls[0][0].write_bytes(b"no reader opens a file of a final span again")
        begun = replace(begun_of(run_dir), extend=tuple(map(str, files)) if number else ())
        source = Source(first.data, first.seed, metrics=first.metrics, begun=begun)
        result = crew_driver(first, run_dir, pool, source=source, **SIZES).run()
    return result


@pytest.mark.prove
@pytest.mark.parametrize("merge", [None, KStep(k=3)])
def test_two_workers_give_the_same_bits_for_days_one_by_one(tmp_path: Path, merge: KStep | None) -> None:
    files = write_days(tmp_path, [20, 13, 0, 31])
    workflow = days_workflow(tmp_path).model_copy(update={
        "workers": Workers(shards=4, silent_seconds=20.0, timeout_seconds=60.0, check_collectives=True),
        "optimizer": Optimizer(dense=DenseAdam(lr=0.01, eps=1e-4), merge=merge),
    })  # fmt: skip
    with closing(WorkerPool(WorkerSpec(2))) as pool:
        at_once = in_calls(workflow, [files], tmp_path / "at-once", pool)
        one_by_one = in_calls(workflow, [[file] for file in files], tmp_path / "one-by-one", pool)
    assert at_once is not None
    assert one_by_one is not None
    assert one_by_one["fingerprint"] == at_once["fingerprint"]
    assert [e["auc"] for e in one_by_one["epochs"]] == [e["auc"] for e in at_once["epochs"]]
