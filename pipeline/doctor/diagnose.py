"""Diagnosis: one pass over the files, and all checks on its sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.doctor.calibration import find_calibration
from pipeline.doctor.constant_column import find_constant_columns
from pipeline.doctor.copied_column import find_copied_columns
from pipeline.doctor.drift import find_drift
from pipeline.doctor.finding import Finding
from pipeline.doctor.importance import find_importance
from pipeline.doctor.label_rate import find_label_rates
from pipeline.doctor.leak import find_leaks
from pipeline.doctor.look_at_rows import look_at_rows
from pipeline.doctor.second_epoch import find_second_epoch
from pipeline.doctor.seen import SeenRows, judged_rows
from pipeline.doctor.shared_rows import find_shared_rows
from pipeline.doctor.time_order import find_time_order
from pipeline.doctor.unscaled_number import find_unscaled_numbers
from pipeline.doctor.unseen_keys import find_unseen_keys
from pipeline.driver.resume import begun_of
from pipeline.monitor.runs import metrics_lines
from pipeline.workflow import Workflow


def diagnose(workflow: Workflow, run_dir: Path | None, say: Callable[[str], None]) -> list[Finding]:
    """Find faults, then remarks. `run_dir`: a run of the workflow; None: omit the checks that need a model. `say`:
    called with lines that report what was read.

    Raises ValueError if the files do not fit the workflow, or `run_dir` is not a run.
    """
    seen = look_at_rows(workflow, None if run_dir is None else begun_of(run_dir))
    say(_looked_at(seen))
    if run_dir is None:
        say("without a run, checks that need a model are left out (second_epoch, importance, calibration)")
    evaluations = [] if run_dir is None else metrics_lines(run_dir)
    validation_N = seen.rows_of("validation")
    rate = float(seen.labels_NT[validation_N, 0].mean()) if validation_N.any() else 0.0
    found = [
        *find_leaks(seen, _model_auc(workflow, evaluations)),
        *find_shared_rows(seen),
        *find_time_order(seen),
        *find_constant_columns(seen),
        *find_copied_columns(seen),
        *find_unscaled_numbers(seen, workflow),
        *find_label_rates(seen),
        *find_second_epoch(evaluations, rate),
        *find_unseen_keys(seen),
        *find_drift(seen),
        *(_of_model(seen, workflow, run_dir, say) if run_dir else ()),
    ]
    return sorted(found, key=lambda finding: finding.level != "fault")


def _of_model(seen: SeenRows, workflow: Workflow, run_dir: Path, say: Callable[[str], None]) -> list[Finding]:
    """Remarks that need the model of a run."""
    # This import takes seconds and is not needed for a workflow without a run.
    from pipeline.serving.opened import open_run

    judged = judged_rows(seen, workflow.data.features)
    if judged is None:
        say("without test and validation, checks that judge the model are left out (importance, calibration)")
        return []
    with open_run(run_dir, workflow=workflow) as run:
        rows = f"{judged.num_rows:,} rows of {judged.split}"
        sequences = workflow.data.sequences
        times = len(judged.features) + len(sequences) + 2
        say(f"commit {run.commit} of {run_dir}: scoring {rows} {times} times")
        return [*find_importance(judged, run, sequences), *find_calibration(seen, judged, run)]


def _looked_at(seen: SeenRows) -> str:
    parts = []
    for split in ("train", "validation", "test"):
        files = [file for file in seen.files if file.split == split]
        if files:
            parts.append(f"{sum(file.num_seen for file in files):,} of {split} ({len(files)} files)")
    whole = "all" if seen.num_rows == seen.total_rows else f"{seen.num_rows:,} of {seen.total_rows:,}"
    return f"read {whole} rows: {', '.join(parts)}; {len(seen.features)} features"


def _model_auc(workflow: Workflow, evaluations: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, str]]:
    """The model's AUC by label, and the split it is from: test, or otherwise the best validation."""
    labels, found = workflow.data.labels, dict[str, tuple[float, str]]()
    for label in labels:
        name = f"auc_{label}" if len(labels) > 1 else "auc"
        for split in ("validation", "test"):
            values = [line[name] for line in evaluations if line.get("split") == split and line.get(name) is not None]
            if values:
                found[label] = max(values), split
    return found
