"""A run that is killed, after which a file of the span at hand is another one: until a commit has rows of the span, the
new content counts; from then on it is refused, or rewritten."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from spans.test_year import Log, workflow_of
from support.depth import some
from support.faults.killed_after_commit import Killed, killed_after

from pipeline.commits.manifest import Commits
from pipeline.run import main
from pipeline.storage.files import Files

POINTS = {"before its score": 0, "after it": 1, "batch 0": 2, "pass 0": 3, "between passes": 4, "pass 1": 5}
"""Number of commits after which the second command is killed."""
RUN = ["days.json", "--serial", "--extend", "in", "--known-ok", "--out"]


def changed(log: Log, change: str) -> None:
    rows = log.files["d001.parquet"] or ()
    if change == "added":
        log.put(log.rows([0] * 5), "new.parquet")
    elif change == "replaced":
        log.put(log.rows([0] * 30), "d001.parquet")
    else:
        log.remove("d001.parquet")
        if change == "renamed":
            log.put(log.rows([0] * 2) + rows, "new.parquet")


def fingerprint(run: str) -> str:
    return str(json.loads(Path(run, "result.json").read_text())["fingerprint"])


@pytest.mark.parametrize(
    ("point", "change", "policy"),
    some(
        [*product(POINTS, ("replaced", "renamed", "added", "gone"), ("clock", "foresight"))],
        ("before its score", "renamed", "clock"), ("after it", "replaced", "foresight"),
        ("batch 0", "replaced", "foresight"), ("pass 1", "added", "clock"), several=True,
    ),
)  # fmt: skip
def test_a_change_after_a_kill_counts_or_is_refused(tmp_path, monkeypatch, capsys, point, change, policy):
    monkeypatch.chdir(tmp_path)
    log, workflow = Log(tmp_path), workflow_of(tmp_path, 1)
    often = {"commit.every_blocks": 1, "schedule.epochs": 2, "schedule.block_batches": 3}
    often = workflow.with_settings(often | {"storage.device_policy": policy, "storage.host_policy": policy})
    Path("days.json").write_text(often.model_dump_json())
    log.put(log.rows([0] * 25))
    assert main([*RUN, "run"]) == 0
    log.put(log.rows([1] * 12))
    with killed_after(POINTS[point]), pytest.raises(Killed):
        main([*RUN, "run"])
    trained = Commits(Path("run"), Files(), 1).all()[-1].state["trained"]
    assert (trained > 0) == (POINTS[point] > 1)
    before = dict(log.files)
    changed(log, change)
    capsys.readouterr()
    code, said = main([*RUN, "run"]), "".join(capsys.readouterr())
    if not trained:
        assert code == (4 if change == "gone" else 0)
        if change != "gone":
            assert main([*RUN, "fresh"]) == 0
            assert fingerprint("run") == fingerprint("fresh")
        return
    assert code in (1, 2), said
    assert ("new.parquet, row 0: span 2026-11-20 is late" if change == "added" else "d001.parquet") in said
    for name in {*log.files} - {*before}:
        log.remove(name)
    log.put(before["d001.parquet"], "d001.parquet")
    assert main([*RUN, "run"]) == 0
    assert main([*RUN, "fresh"]) == 0
    assert fingerprint("run") == fingerprint("fresh")
