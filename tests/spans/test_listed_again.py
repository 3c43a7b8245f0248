"""A file that is replaced while a command runs counts, once, unless training on it has begun."""

import json
import os
from pathlib import Path

import pytest
from support.data.days import days_workflow, write_days

from pipeline.driver.driver import Driver
from pipeline.run import main

OFTEN = {"commit.every_blocks": 1, "schedule.block_batches": 1, "data.shuffle_window": 8}


@pytest.mark.parametrize(
    ("settings", "method", "seeds", "code"),
    [({"storage.device_policy": "clock"}, "run", (7,), 0), ({"storage.device_policy": "foresight"}, "run", (7,), 0),
     ({}, "run", (7, 8), 1), (OFTEN, "commit", (7,), 1)],
    ids=["clock", "foresight", "twice", "begun"],
)  # fmt: skip
def test_a_file_replaced_while_it_waits_counts(tmp_path, monkeypatch, capsys, settings, method, seeds, code):
    monkeypatch.chdir(tmp_path)
    write_days(Path(), [20, 30, 20])
    Path("days.json").write_text(days_workflow(tmp_path).with_settings(settings).model_dump_json())
    deliveries, original = iter(seeds), getattr(Driver, method)

    def after_a_delivery(driver, *args):
        is_due = method == "run" or ((block := args[0].begin) and block.span == 1 and block.first_batch)
        if is_due and (seed := next(deliveries, 0)):
            os.replace(write_days(Path(f"made-{seed}"), [1, 30], seed)[1], "train-1.parquet")
        return original(driver, *args)

    monkeypatch.setattr(Driver, method, after_a_delivery)
    assert main(["days.json", "--serial", "--out", "run"]) == code
    assert "train-1.parquet was changed during the run" in capsys.readouterr().err
    if code == 0:
        assert main(["days.json", "--serial", "--out", "fresh"]) == 0
        results = [json.loads(Path(run, "result.json").read_text()) for run in ("run", "fresh")]
        assert results[0]["fingerprint"] == results[1]["fingerprint"]
