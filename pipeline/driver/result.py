"""The output files of a run other than its commits: the dense model, metrics, workflow, and `result.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.cluster.crew import Crew
from pipeline.commits.manifest import Manifest
from pipeline.commits.run_state import EpochMetrics
from pipeline.data.identity import Identity, as_json, digest_of, files_in
from pipeline.monitor.history import AGAIN, History, json_value, last_evaluation, last_judged
from pipeline.monitor.report import base_logloss, miscalibrated, of_labels
from pipeline.records import Refusal
from pipeline.settings import Amount, Count, Digest, Strict, read_json
from pipeline.spans.rows import counted
from pipeline.storage.durable import own_checksum
from pipeline.storage.files import checksum, checksum_of, tensors
from pipeline.storage.folder import Folder
from pipeline.worker.worker import Report, Worker
from pipeline.workflow import Workflow

MODEL, METRICS, WORKFLOW, RESULT = "model.safetensors", "metrics.jsonl", "workflow.json", "result.json"
OUTPUTS = (MODEL, METRICS, WORKFLOW, RESULT)
OptionalAmount = Amount | None


class TierReport(Strict):
    """Totals of a tier; see `TierTotals.report`."""

    capacity_rows: Count | None = None
    capacity_bytes: Count | None = None
    used_bytes: Count | None = None
    hits: Count
    hit_rate: OptionalAmount
    rows_in: Count
    rows_out: Count
    bytes: Count
    rows_read: Count


class DiskReport(Strict):
    """Totals of commits; see `DiskTotals.report`."""

    commits: Count
    commit_seconds: Amount
    rows_changed: Count
    rows_merged: Count
    written_bytes: Count
    rewritten_bytes: Count
    write_amplification: OptionalAmount


class Result(Strict):
    """Contents of `result.json`."""

    name: str
    stopped: str | None
    commit: Count | None
    rows: Count
    map_bytes: Count
    auc: OptionalAmount
    logloss: float | None
    gauc: OptionalAmount
    split: str | None
    examples: Count
    seconds: Amount
    examples_per_second: OptionalAmount
    stages: dict[str, Amount]
    cpu_seconds: dict[str, Amount]
    hidden: dict[str, OptionalAmount]
    ready: OptionalAmount
    epochs: list[EpochMetrics]
    tiers: dict[str, TierReport]
    disk: DiskReport
    workers: list[dict[str, dict[str, Amount]]]
    """Bytes and messages that each worker sent, by kind; empty for a single worker."""
    data: dict[str, dict[str, Any]]
    fingerprint: str
    baselines: dict[str, dict[str, Any]] | None = None
    """See `baselines_of`; omitted without an evaluation of a binary label."""
    files: dict[str, Digest]
    checksum: Digest
    warnings: list[str] | None = None
    """Warnings about the last evaluation, if it is a test with a poor calibration; omitted if there are none."""
    cut_sequences: Count | None = None
    """See `Report.cut`; omitted without sequences."""
    out_of_place: list[dict[str, Any]] | None = None
    """See `counted`; omitted if there are none."""


def _warnings(epochs: Sequence[Mapping[str, Any]]) -> list[str]:
    last = last_judged(epochs)
    return miscalibrated(last) if last.get("split") == "test" else []


SUMMED = ("map_bytes", "device_rows", "host_rows", "disk_bytes", "disk_cap_bytes")


def table_and_model(crew: Crew) -> tuple[str, int]:
    """Return the fingerprint of the run and its number of rows. All rows must be in the log: call after taking or
    opening a commit."""
    hashes = crew.each(Worker.table_hash)
    table = sum(hashed for hashed, _ in hashes) % (1 << 128)
    return crew.first(Worker.fingerprint, table), sum(num_rows for _, num_rows in hashes)


def earlier_result(
    run_dir: Path, crew: Crew, history: History, num_examples: Mapping[str, int], identity: Identity
) -> dict[str, Any] | None:
    """Return the result of an earlier session if it is unchanged, agrees with the newest commit, includes a test of the
    current test split (if any), and has the fingerprint of the current rows and model; else None."""
    earlier = read_result(run_dir)
    if earlier is None or not agrees(earlier, json_value(history.epochs), history.trained):
        return None
    if not earlier["stopped"] and not is_tested(earlier, num_examples, identity):
        return None
    return earlier if earlier["fingerprint"] == table_and_model(crew)[0] else None


def is_tested(result: Mapping[str, Any], num_examples: Mapping[str, int], identity: Identity) -> bool:
    """True if a result includes a test of the current test split, or the split has no examples."""
    tests = [epoch for epoch in result["epochs"] if epoch["split"] == "test"]
    return not num_examples.get("test") or any(
        test.get("data", identity["test"].digest) == identity["test"].digest for test in tests
    )


def agrees(result: Mapping[str, Any], epochs: Sequence[Mapping[str, Any]], trained: int) -> bool:
    """True if a result has the same evaluations and number of trained examples as a commit. It may also include a test
    of the best epoch, which follows the last commit."""
    tests = result["epochs"][len(epochs) :]
    before = [epoch["split"] for epoch in epochs]
    return (
        result["examples"] == trained
        and result["epochs"][: len(epochs)] == epochs
        and (not tests or ("test" not in before and [test.get("split") for test in tests] == ["test"]))
        and all(result[name] == value for name, value in last_evaluation(result["epochs"]).items())
    )


def baselines_of(epochs: Sequence[Mapping[str, Any]], first_label: str) -> dict[str, dict[str, Any]]:
    """Split of the last evaluation, and its logloss of always predicting the mean label, for each binary label. Metrics
    of a run with a single label do not name it."""
    last = last_judged(epochs)
    common, by_label = of_labels(last)
    return {
        label: {"split": last["split"], "base_rate": base}
        for label, of in (by_label or {first_label: common}).items()
        if (base := base_logloss(of)) is not None
    }


def write_result(
    workflow: Workflow, crew: Crew, history: History, stopped: Refusal | None, newest: Manifest | None,
    identity: Identity, run_dir: Path,
) -> dict[str, Any]:  # fmt: skip
    """Make the result of a run. `newest`: its newest commit; `identity`: identity of this session's data; `run_dir`:
    its folder, with lists of files."""
    # If this session ran nothing, the metrics are of the data of the newest commit.
    data: Mapping[str, Any] = newest.state["data"] if newest and not history.ran else as_json(identity)
    digest, num_rows = table_and_model(crew)
    reports = crew.each(Worker.report)
    all_of = {field: sum(getattr(report, field) for report in reports) for field in SUMMED}
    row_bytes = reports[0].row_bytes
    result = json_value({
        "name": workflow.name,
        "stopped": stopped.message if stopped else None,
        "commit": newest.number if newest else None,
        "rows": num_rows,
        "map_bytes": all_of["map_bytes"],
        **history.report(),
        "tiers": history.tiers.report(
            {"device": all_of["device_rows"], "host": all_of["host_rows"]}, row_bytes, all_of["disk_bytes"],
            all_of["disk_cap_bytes"],
        ),
        "disk": history.disk.report(row_bytes, history.tiers.written),
        "workers": workers_report(reports, history),
        "data": {split: {"digest": digest_of(data[split]), **data[split]} for split in data},
        "fingerprint": digest,
        **({"baselines": found} if (found := baselines_of(history.epochs, workflow.data.labels[0])) else {}),
        **({"warnings": said} if (said := _warnings(history.epochs)) else {}),
        **({} if None in (cut := [report.cut for report in reports]) else {"cut_sequences": sum(filter(None, cut))}),
        **({"out_of_place": moved} if (moved := counted(files_in(data["train"], run_dir))) else {}),
    })  # fmt: skip
    return dict(result)


def write_outputs(folder: Folder, crew: Crew, result: dict[str, Any]) -> dict[str, Any]:
    """Write the model, the metrics and the result to the run directory, except files that are already up to date.
    Returns the result with the checksums of the other files and its own."""
    run_dir = folder.path
    left = {MODEL: tensors(crew.first(Worker.model)), METRICS: [lines_of(result["epochs"])]}
    sums = {name: checksum(*buffers) for name, buffers in left.items()} | {WORKFLOW: checksum_of(run_dir / WORKFLOW)}
    result = {name: value for name, value in result.items() if name != "checksum"} | {"files": sums}
    result["checksum"] = own_checksum(result)
    # Written last: if it exists, so do the others.
    left[RESULT] = [(json.dumps(result, indent=1) + "\n").encode()]
    for name, buffers in left.items():
        if not (run_dir / name).is_file() or checksum_of(run_dir / name) != checksum(*buffers):
            folder.files.replace(run_dir / name, buffers)
    return result


def read_result(run_dir: Path) -> dict[str, Any] | None:
    """Read `result.json`; None if missing, invalid, or modified after it was written."""
    try:
        content = (run_dir / RESULT).read_bytes()
        read_json(Result, content)
        result: dict[str, Any] = json.loads(content)
        return result if result["checksum"] == own_checksum(result) else None
    except (OSError, ValueError):
        return None


def check_outputs(run_dir: Path, newest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield (name, problem) for each damaged output file of a finished run. Outputs of a commit older than `newest` are
    not compared with it: the run has continued and will replace them at its end."""
    if not (run_dir / RESULT).exists():
        return
    result = read_result(run_dir)
    if result is None:
        yield RESULT, "is damaged, or was changed"
    elif result["commit"] == newest.number:
        if not agrees(result, newest.state["epochs"], newest.state["trained"]):
            yield RESULT, f"does not agree with commit {newest.number}"
        if not (run_dir / MODEL).is_file():
            yield MODEL, "is missing"
        elif checksum_of(run_dir / MODEL) != result["files"].get(MODEL):
            yield MODEL, f"its checksum is not that of {RESULT}"
        # A run that continues appends lines, and marks scores of spans that it scores again.
        path, mark = run_dir / METRICS, f', "{AGAIN}": true'.encode()
        known = path.read_bytes().replace(mark, b"") if path.is_file() else b""
        if not path.is_file() or not known.startswith(lines_of(result["epochs"]).replace(mark, b"")):
            yield METRICS, f"does not have the metrics of {RESULT}"


def workers_report(reports: Sequence[Report], history: History) -> list[dict[str, Any]]:
    """Bytes and messages that each worker sent in this session, by kind, and bytes per step; empty for one worker."""
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


def lines_of(epochs: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(json_value(dict(epoch))) + "\n" for epoch in epochs).encode()
