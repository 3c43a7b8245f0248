"""What a run leaves besides its commits: the dense model, metrics, and `result.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.crew import Crew
from pipeline.monitor.history import History, plain
from pipeline.records import Refusal
from pipeline.storage.files import Files, tensors
from pipeline.worker import Report

SUMMED = ("map_bytes", "device_rows", "host_rows", "disk_bytes", "disk_cap_bytes")


def table_and_model(crew: Crew) -> tuple[str, int]:
    """The fingerprint, and the number of rows, of all workers; all of them are in the log, since a commit was just
    taken or opened."""
    hashes = crew.each("table_hash")
    table = sum(hashed for hashed, _ in hashes) % (1 << 128)
    return crew.first("fingerprint", table), sum(num_rows for _, num_rows in hashes)


def earlier_result(run_dir: Path, crew: Crew) -> dict[str, Any] | None:
    """That of an earlier session, if it is of these rows and this model."""
    earlier = _read(run_dir / "result.json")
    return earlier if earlier.get("fingerprint") == table_and_model(crew)[0] else None


def write_result(
    name: str, run_dir: Path, files: Files, crew: Crew, history: History, stopped: Refusal | None
) -> dict[str, Any]:
    """Write them. Returns the result."""
    digest, num_rows = table_and_model(crew)
    reports: list[Report] = crew.each("report")
    all_of = {field: sum(getattr(report, field) for report in reports) for field in SUMMED}
    row_bytes = reports[0].row_bytes
    result = plain({
        "name": name,
        "stopped": stopped.message if stopped else None,
        "rows": num_rows,
        "map_bytes": all_of["map_bytes"],
        **history.report(),
        "tiers": history.tiers.report(
            {"device": all_of["device_rows"], "host": all_of["host_rows"]}, row_bytes, all_of["disk_bytes"],
            all_of["disk_cap_bytes"],
        ),
        "disk": history.disk.report(row_bytes, history.tiers.written),
        "workers": workers_report(reports, history),
        "fingerprint": digest,
    })  # fmt: skip
    files.replace(run_dir / "model.safetensors", tensors(crew.first("model")))
    write_metrics(run_dir, files, history)
    # The last one: where it is, so are the others.
    files.replace(run_dir / "result.json", [(json.dumps(result, indent=1) + "\n").encode()])
    return dict(result)


def workers_report(reports: Sequence[Report], history: History) -> list[dict[str, Any]]:
    """What each of several workers sent to others in this session, by kind, and per step of it."""
    if len(reports) == 1:
        return []
    steps = max(1, history.steps)
    return [
        {
            kind: {"bytes": sent[0], "messages": sent[1], "bytes_per_step": sent[0] / steps}
            for kind, sent in report.traffic.items()
        }
        for report in reports
    ]


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return {}


def write_metrics(run_dir: Path, files: Files, history: History) -> None:
    """`metrics.jsonl`: a line for each evaluation."""
    lines = "".join(json.dumps(plain(epoch)) + "\n" for epoch in history.epochs)
    files.replace(run_dir / "metrics.jsonl", [lines.encode()])
