"""What a run leaves besides its commits: the dense model, metrics, and `result.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.models.state import dense_state, model_state
from pipeline.monitor.history import History, plain
from pipeline.records import Refusal
from pipeline.resources import Resources
from pipeline.storage.files import Files, tensors
from pipeline.storage.finish import fingerprint, table_hash


def table_and_model(r: Resources) -> tuple[str, int]:
    """The fingerprint, and the number of rows; all of them are in the log, since a commit was just taken or opened."""
    rows, num_rows = table_hash(r.places, r.log, r.chunk_RW, r.learner.rows.catch_up_on_host())
    return fingerprint(rows, dense_state(r.learner.model, r.learner.dense.optimizer)), num_rows


def earlier_result(run_dir: Path, r: Resources) -> dict[str, Any] | None:
    """That of an earlier session, if it is of these rows and this model."""
    earlier = _read(run_dir / "result.json")
    return earlier if earlier.get("fingerprint") == table_and_model(r)[0] else None


def write_result(
    name: str, run_dir: Path, files: Files, r: Resources, history: History, stopped: Refusal | None
) -> dict[str, Any]:
    """Write them. Returns the result."""
    digest, num_rows = table_and_model(r)
    result = plain({
        "name": name,
        "stopped": stopped.message if stopped else None,
        "rows": num_rows,
        "map_bytes": r.places.map.num_bytes,
        **history.report(),
        "tiers": history.tiers.report(
            {"device": r.sizes.device_rows, "host": r.sizes.host_rows}, r.row.num_bytes,
            r.places.chunks.present * r.log.chunk_bytes, r.sizes.disk_chunks * r.log.chunk_bytes,
        ),
        "disk": history.disk.report(r.row.num_bytes, history.tiers.written),
        "fingerprint": digest,
    })  # fmt: skip
    files.replace(run_dir / "model.safetensors", tensors(model_state(r.learner.model)))
    write_metrics(run_dir, files, history)
    # The last one: where it is, so are the others.
    files.replace(run_dir / "result.json", [(json.dumps(result, indent=1) + "\n").encode()])
    return dict(result)


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return {}


def write_metrics(run_dir: Path, files: Files, history: History) -> None:
    """`metrics.jsonl`: a line for each evaluation."""
    lines = "".join(json.dumps(plain(epoch)) + "\n" for epoch in history.epochs)
    files.replace(run_dir / "metrics.jsonl", [lines.encode()])
