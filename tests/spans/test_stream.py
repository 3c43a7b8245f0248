"""Runs over spans in time: the bits of a plain trainer, however the days came."""

from __future__ import annotations

from pathlib import Path

from support.data.days import days_workflow, write_days
from support.oracle.reference import Reference
from support.runs.harness import make_driver

THREE_TIERS = {"device_rows": 130, "host_rows": 24, "chunk_rows": 4}


def test_a_run_over_days_equals_the_plain_trainer(tmp_path: Path) -> None:
    write_days(tmp_path, [20, 13, 0, 31])
    workflow = days_workflow(tmp_path)
    result = make_driver(workflow, tmp_path / "run", **THREE_TIERS).run()
    reference = Reference(workflow).train()
    assert result["fingerprint"] == reference.fingerprint()
    assert [(e["split"], e["span"]) for e in result["epochs"]] == [("span", f"2026-11-2{d}") for d in (0, 1, 3)]


def test_days_one_by_one_equal_one_run_over_all(tmp_path: Path) -> None:
    files = write_days(tmp_path, [20, 13, 0, 31])
    workflow = days_workflow(tmp_path)
    one_by_one = workflow.with_settings({"data.train": (files[0].name,)})
    make_driver(one_by_one, tmp_path / "run", **THREE_TIERS).run()
    for file in files[1:]:
        result = make_driver(one_by_one, tmp_path / "run", extend=(str(file),), **THREE_TIERS).run()
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()
    assert len(result["epochs"]) == 3
