"""One run, from an opened workflow to its result: stretches of the pipeline, and what is left at the end."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from pipeline.agenda import Agenda
from pipeline.cluster import DaskExecutor, dashboard_link, local_client
from pipeline.data.source import Source
from pipeline.memory import keep_freed_memory
from pipeline.models.learner import dense_state
from pipeline.monitor.progress import Progress
from pipeline.monitor.tiers import TierTotals
from pipeline.monitor.timeline import cpu_seconds, hidden_share, mean_ready, stage_seconds
from pipeline.records import Block, Done, Progressed, Refusal, Span
from pipeline.rehearse import reductions
from pipeline.resources import PipelineError, Resources
from pipeline.schedule import Executor, Schedule, SerialExecutor
from pipeline.storage.finish import fingerprint, flush, table_hash
from pipeline.storage.sizes import Fit
from pipeline.workflow import Workflow


class Driver:
    """Hands block numbers to the executor and keeps what comes back."""

    def __init__(
        self, workflow: Workflow, source: Source, fit: Fit, run_dir: Path, client: Any = None, progress: Any = None
    ) -> None:
        """`client`: a Dask client whose only worker lives in this process; without one the run is serial."""
        self.workflow = workflow
        self.run_dir = run_dir
        self.agenda = Agenda(source.num_examples, workflow.schedule.batch_size, workflow.schedule.epochs)
        self.resources = Resources(workflow, source, fit.sizes, run_dir)
        self._look_ahead, self._block_batches = fit.look_ahead, fit.block_batches
        self._client = client
        self._progress = progress or Progress(self.agenda.total_examples)
        self.spans: list[Span] = []
        self.tiers = TierTotals()
        self.epochs: list[dict[str, Any]] = []
        self._examples = 0
        self._trained = 0
        self._ready = 0

    def run(self) -> dict[str, Any]:
        """Train, evaluate, write everything; returns the result, which is also in `result.json`."""
        try:
            start = time.perf_counter()
            with self._progress:
                if self._client:
                    self._progress.line(f"dashboard: {dashboard_link(self._client)}")
                stopped = self._train()
            result = self._finish(time.perf_counter() - start, stopped)
        finally:
            self.resources.close()
        if stopped:
            raise PipelineError(
                f"stopped before block {stopped.block.number} (epoch {stopped.block.epoch}, batch "
                f"{stopped.block.first_batch}): {stopped.message}. All blocks before it are in {self.run_dir}"
            )
        return result

    def _train(self) -> Refusal | None:
        """All stretches of the run; the refusal that no smaller window mends, if there was one."""
        begin: Block | None = None
        while refusal := self._stretch(begin):
            if refusal.what != "window" or not self._reduce(refusal):
                return refusal
            begin = refusal.block
        return None

    def _stretch(self, begin: Block | None) -> Refusal | None:
        """Run the pipeline from block `begin` to the end, or to the block that `plan` refuses."""
        blocks = list(self.agenda.blocks(self._block_batches, begin))
        self.resources.start(blocks, self._look_ahead)
        numbers = range(blocks[0].number, blocks[-1].number + 1)
        with self._executor() as executor:
            return Schedule(numbers, self._look_ahead, self.resources.stages, executor, self._watch).run()

    @contextmanager
    def _executor(self) -> Iterator[Executor]:
        if self._client is None:
            yield SerialExecutor(lambda stage, number: self.resources.run(stage, number, time.process_time))
            return
        executor = DaskExecutor(self._client, self.resources.run)
        try:
            yield executor
        finally:
            executor.close()

    def _reduce(self, refusal: Refusal) -> bool:
        """Take a smaller look-ahead, then smaller blocks; False if both are at their least."""
        batches = self._block_batches if self._look_ahead else min(self._block_batches, refusal.block.num_batches)
        smaller = reductions(self._look_ahead, batches)[1:]
        if not smaller:
            return False
        self._look_ahead, self._block_batches = smaller[0]
        self._progress.line(
            f"look-ahead {self._look_ahead}, blocks of {self._block_batches} batches from here: {refusal.message}"
        )
        return True

    def _watch(self, done: Done) -> None:
        if done.span:
            self.spans.append(done.span)
        if done.moves:
            self.tiers.add(done.moves)
        if done.span and done.stage == "train":
            self._ready = done.span.ready
        if done.trained:
            self._watch_trained(done.trained)

    def _watch_trained(self, trained: Progressed) -> None:
        block = trained.block
        self._examples += block.num_examples
        self._trained += block.num_examples if block.trains else 0
        self._progress.update(self._examples, trained.loss, self._ready)
        if trained.metrics:
            metrics = {"epoch": block.epoch + 1, "split": block.split, **trained.metrics}
            self.epochs.append(metrics)
            shown = ", ".join(f"{k} {v:.5f}" for k, v in metrics.items() if isinstance(v, float))
            self._progress.line(f"epoch {block.epoch + 1} {block.split}: {shown}")
            with open(self.run_dir / "metrics.jsonl", "a") as file:
                file.write(json.dumps(_plain(metrics)) + "\n")

    def _finish(self, seconds: float, stopped: Refusal | None = None) -> dict[str, Any]:
        """Write the table, the dense model and the result."""
        r = self.resources
        flush(r.places, r.device, r.host, r.log, r.chunk_RW)
        rows, num_rows = table_hash(r.places, r.log, r.row, r.chunk_RW)
        dense = dense_state(r.learner.model, r.learner.optimizer)
        model = {
            name: np.ascontiguousarray(value.numpy(force=True)) for name, value in r.learner.model.state_dict().items()
        }
        save_file(model, self.run_dir / "model.safetensors")
        last = self.epochs[-1] if self.epochs else {}
        result = {
            "name": self.workflow.name,
            "auc": last.get("auc"),
            "logloss": last.get("logloss"),
            "split": last.get("split"),
            "stopped": stopped.message if stopped else None,
            "examples": self._trained,
            "seconds": seconds,
            "examples_per_second": self._trained / seconds,
            "rows": num_rows,
            "map_bytes": r.places.map.num_bytes,
            "stages": stage_seconds(self.spans),
            "cpu_seconds": cpu_seconds(self.spans),
            "hidden": hidden_share(self.spans),
            "ready": mean_ready(self.spans),
            "tiers": self.tiers.report(
                {"device": r.sizes.device_rows, "host": r.sizes.host_rows},
                r.row.num_bytes,
                r.places.tail * (r.row.num_bytes + 8),
                r.sizes.disk_rows * (r.row.num_bytes + 8),
            ),
            "epochs": self.epochs,
            "fingerprint": fingerprint(rows, dense),
        }
        result = _plain(result)
        (self.run_dir / "result.json").write_text(json.dumps(result, indent=1) + "\n")
        return result


def run_workflow(workflow: Workflow, source: Source, fit: Fit, run_dir: Path, serial: bool = False) -> dict[str, Any]:
    """Run in an empty directory, which is left with table.zarr, the dense model, the workflow, metrics and result."""
    keep_freed_memory()
    (run_dir / "workflow.json").write_text(workflow.model_dump_json(indent=1) + "\n")
    if serial:
        return Driver(workflow, source, fit, run_dir).run()
    with local_client() as client:
        return Driver(workflow, source, fit, run_dir, client).run()


def _plain(value: Any) -> Any:
    """As JSON can say it: a number that is not finite becomes null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
