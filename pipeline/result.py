"""What a run leaves besides its commits: the dense model, metrics, and `result.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.crew import Crew
from pipeline.data.identity import Identity, as_json
from pipeline.monitor.history import History, plain
from pipeline.records import Refusal
from pipeline.storage.files import Files, checksum, checksum_of, tensors
from pipeline.worker import Report

MODEL, METRICS, WORKFLOW, RESULT = "model.safetensors", "metrics.jsonl", "workflow.json", "result.json"
LEFT = (MODEL, METRICS, WORKFLOW, RESULT)
SUMMED = ("map_bytes", "device_rows", "host_rows", "disk_bytes", "disk_cap_bytes")


def table_and_model(crew: Crew) -> tuple[str, int]:
    """The fingerprint, and the number of rows, of all workers; all of them are in the log, since a commit was just
    taken or opened."""
    hashes = crew.each("table_hash")
    table = sum(hashed for hashed, _ in hashes) % (1 << 128)
    return crew.first("fingerprint", table), sum(num_rows for _, num_rows in hashes)


def earlier_result(run_dir: Path, crew: Crew) -> dict[str, Any] | None:
    """Return the result of an earlier session, if it is as it was written, and of these rows and this model."""
    earlier = read_result(run_dir)
    return earlier if earlier and earlier["fingerprint"] == table_and_model(crew)[0] else None


def write_result(
    name: str, crew: Crew, history: History, stopped: Refusal | None, commit: int | None, identity: Identity
) -> dict[str, Any]:
    """The result of a run whose newest commit has this number."""
    digest, num_rows = table_and_model(crew)
    reports: list[Report] = crew.each("report")
    all_of = {field: sum(getattr(report, field) for report in reports) for field in SUMMED}
    row_bytes = reports[0].row_bytes
    data = as_json(identity)
    result = plain({
        "name": name,
        "stopped": stopped.message if stopped else None,
        "commit": commit,
        "rows": num_rows,
        "map_bytes": all_of["map_bytes"],
        **history.report(),
        "tiers": history.tiers.report(
            {"device": all_of["device_rows"], "host": all_of["host_rows"]}, row_bytes, all_of["disk_bytes"],
            all_of["disk_cap_bytes"],
        ),
        "disk": history.disk.report(row_bytes, history.tiers.written),
        "workers": workers_report(reports, history),
        "data": {split: {"digest": identity[split].digest, **data[split]} for split in data},
        "fingerprint": digest,
    })  # fmt: skip
    return dict(result)


def leave(run_dir: Path, files: Files, crew: Crew, result: dict[str, Any]) -> dict[str, Any]:
    """Have the model, the metrics and the result in the run directory as they should be: what is, is not touched.
    Returns the result, with the checksums of the others and its own."""
    left = {MODEL: tensors(crew.first("model")), METRICS: [lines_of(result["epochs"])]}
    sums = {name: checksum(*buffers) for name, buffers in left.items()} | {WORKFLOW: checksum_of(run_dir / WORKFLOW)}
    result = {name: value for name, value in result.items() if name != "checksum"} | {"files": sums}
    result["checksum"] = own_checksum(result)
    # The last one: where it is, so are the others.
    left[RESULT] = [(json.dumps(result, indent=1) + "\n").encode()]
    for name, buffers in left.items():
        if not (run_dir / name).is_file() or checksum_of(run_dir / name) != checksum(*buffers):
            files.replace(run_dir / name, buffers)
    return result


def read_result(run_dir: Path) -> dict[str, Any] | None:
    """Return what `leave` left, if nobody has changed it since."""
    try:
        result = json.loads((run_dir / RESULT).read_bytes())
        return result if result["checksum"] == own_checksum(result) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def own_checksum(result: Mapping[str, Any]) -> str:
    """Return the checksum of all values of a result but itself."""
    return checksum(json.dumps({name: value for name, value in result.items() if name != "checksum"}).encode())


def check_left(run_dir: Path, newest: int) -> Iterator[tuple[str, str]]:
    """Name and what is wrong with each file that a finished run has left. `newest`: number of the newest commit; where
    the run goes on since, the files are of an older one, and replaced at its end."""
    if not (run_dir / RESULT).exists():
        return
    result = read_result(run_dir)
    if result is None:
        yield RESULT, "is not what was written"
    elif result["commit"] == newest:
        if not (run_dir / MODEL).is_file():
            yield MODEL, "is missing"
        elif checksum_of(run_dir / MODEL) != result["files"][MODEL]:
            yield MODEL, f"its checksum is not that of {RESULT}"
        # A run that goes on adds lines.
        path = run_dir / METRICS
        if not path.is_file() or not path.read_bytes().startswith(lines_of(result["epochs"])):
            yield METRICS, f"does not have the metrics of {RESULT}"


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


def write_metrics(run_dir: Path, files: Files, history: History) -> None:
    """`metrics.jsonl`: a line for each evaluation."""
    files.replace(run_dir / METRICS, [lines_of(history.epochs)])


def lines_of(epochs: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(plain(dict(epoch))) + "\n" for epoch in epochs).encode()
