"""Files of final spans, and scores, in lists outside the commits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.data.days import days_workflow, write_days
from support.runs.harness import make_driver

from pipeline.commits import manifest
from pipeline.commits.manifest import Commits, Manifest
from pipeline.data import waiting
from pipeline.data.identity import as_json, differences
from pipeline.data.source import Source
from pipeline.driver.driver import Driver
from pipeline.driver.resume import begun_like, begun_of
from pipeline.driver.session import extended
from pipeline.storage.files import Damaged, Files
from pipeline.verify import verify_command
from pipeline.workflow import Workflow

SIZES = {"device_rows": 400, "host_rows": 24, "chunk_rows": 4}
DAYS = 9


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit has at most two final files, and four scores."""
    for module, name, most in ((waiting, "MOST_FILES", 2), (waiting, "MOST_LISTED", 2), (manifest, "BLOCK", 4)):
        monkeypatch.setattr(module, name, most)


def workflow_of(root: Path, days: int = DAYS - 2) -> Workflow:
    train = tuple(f"train-{day}.parquet" for day in range(days))
    return days_workflow(root).with_settings({"data.train": train, "commit.keep": 16})


def run(root: Path, name: str, *extend: str) -> dict[str, Any]:
    driver = make_driver(workflow_of(root), root / name, extend=tuple(str(root / one) for one in extend), **SIZES)
    return driver.run() or {}


def newest(run_dir: Path) -> Path:
    return max((run_dir / "commits").glob("*.json"))


def nights(root: Path) -> dict[str, Any]:
    """Result of a run with lists, of which the files of earlier days are gone in the end."""
    run(root, "run")
    run(root, "run", f"train-{DAYS - 2}.parquet")
    for day in range(DAYS - 1):
        shutil.move(root / f"train-{day}.parquet", root / "gone" / f"train-{day}.parquet")
    return run(root, "run", f"train-{DAYS - 1}.parquet")


@pytest.mark.usefixtures("few")
def test_lists_change_no_bit_and_keep_commits_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_days(tmp_path, [5] * DAYS)
    (tmp_path / "gone").mkdir()
    result, written = nights(tmp_path), json.loads(newest(tmp_path / "run").read_bytes())["commit"]["state"]
    state = Manifest.of(newest(tmp_path / "run")).state
    assert (len(written["data"]["train"]["files"]), len(written["epochs"])) == (3, 1)
    assert len(state["epochs"]) == DAYS
    for day in range(DAYS - 1):
        shutil.move(tmp_path / "gone" / f"train-{day}.parquet", tmp_path / f"train-{day}.parquet")
    monkeypatch.undo()
    driver = make_driver(workflow_of(tmp_path, DAYS), tmp_path / "plain", **SIZES)
    plain = driver.run() or {}
    assert (result["fingerprint"], result["auc"]) == (plain["fingerprint"], plain["auc"])
    like = begun_like(tmp_path / "run", driver.setup.workflow.data).splits["train"]
    assert like.files == driver._source.identity["train"].files
    assert verify_command(tmp_path / "run", repair=False) == 0


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("name", "content", "what"),
    [("train-0.parquet", None, "has already trained on"), ("copy.parquet", "train-1.parquet", "is a copy of")],
)
def test_files_in_lists_are_known(tmp_path: Path, name: str, content: str | None, what: str) -> None:
    write_days(tmp_path, [5] * DAYS)
    run(tmp_path, "run")
    if content:
        shutil.copy(tmp_path / content, tmp_path / name)
        driver: Driver = make_driver(workflow_of(tmp_path), tmp_path / "run", extend=(str(tmp_path / name),), **SIZES)
        assert any(what in note for note in driver._source.notes)
        assert driver.agenda.end.span == DAYS - 2
        other = Source(driver.setup.workflow.data, 0, begun=driver._source.as_begun)
        assert not differences(as_json(driver._source.identity), as_json(other.identity))
        driver.close()
    else:
        with pytest.raises(ValueError, match=what):
            extended(workflow_of(tmp_path), begun_of(tmp_path / "run"), [str(tmp_path / name)], False, print)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"[]")], ids=["missing", "changed"])
@pytest.mark.parametrize("what", ["final", "epochs"])
def test_a_damaged_list_is_found_and_repaired(tmp_path: Path, what: str, damage: Any) -> None:
    write_days(tmp_path, [5] * DAYS)
    run(tmp_path, "run")
    run(tmp_path, "run", *[f"train-{DAYS - 2 + day}.parquet" for day in (0, 1)])
    run_dir = tmp_path / "run"
    states = [json.loads(path.read_bytes())["commit"]["state"] for path in sorted((run_dir / "commits").glob("*.json"))]
    lists = [str(one["data"]["train"].get("final") if what == "final" else one.get("lists")) for one in states]
    of_newest = states[-1]["data"]["train"]["final"]["lists"] if what == "final" else states[-1]["lists"]["epochs"]
    assert of_newest[-1] not in lists[0]
    damage(run_dir / f"lists/{of_newest[-1]}.json")
    with pytest.raises(Damaged, match=of_newest[-1]):
        [*begun_of(run_dir).final_files(), *Commits(run_dir, Files(), 1).all()]
    assert verify_command(run_dir, repair=False) == 1
    assert verify_command(run_dir, repair=True) == 0
    assert run(tmp_path, "run")["examples"] == 5 * DAYS
