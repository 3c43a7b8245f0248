"""Going back to the commit before a span, and training again: to the bits of a run that never went back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.data.days import days_workflow, write_days
from support.depth import some
from support.faults.kills import killed_anywhere
from support.runs.harness import make_driver, printed

from pipeline.commits.manifest import Commits
from pipeline.commits.reading import hold
from pipeline.driver.rewind import rewind
from pipeline.run import main
from pipeline.storage.files import Files
from pipeline.verify import verify
from pipeline.workflow import Workflow

SIZES = {"device_rows": 130, "host_rows": 24, "chunk_rows": 16}
DAYS = [20, 13, 9, 31, 12, 18]
NAMES = [f"2026-11-2{day}" for day in range(len(DAYS))]
CASES = {
    "days": {},
    "two passes": {"epochs": 2},
    "without scores": {"metrics": {"score_spans": False}},
    "late labels": {"label_delay": "36 h"},
}


def train(workflow: Workflow, run_dir: Path, files: list[Path], **sizes: int) -> dict[str, Any]:
    """Result after each of these days was added in a separate call, if the run does not have it yet."""
    first = workflow.with_settings({"data.train": (files[0].name,)})
    result = make_driver(first, run_dir, **SIZES | sizes).run()
    newest = Commits(run_dir, Files(), 1).all()[-1]
    known = {file["path"] for file in newest.state["data"]["train"]["files"]}
    for file in files:
        if file.name not in known:
            result = make_driver(first, run_dir, extend=(str(file),), **SIZES | sizes).run()
    assert result is not None
    return result


def kept(workflow: Workflow, keep: int = 7) -> Workflow:
    return workflow.with_settings({"storage.keep_spans": keep})


def made(folder: Path, case: str) -> tuple[Workflow, list[Path], Path, dict[str, Any]]:
    """Workflow, files, folder and result of a run that is never rewound."""
    files = write_days(folder / "data", DAYS)
    workflow = kept(days_workflow(folder / "data", **CASES[case]))
    return workflow, files, folder / "run", train(workflow, folder / "run", files)


@pytest.fixture(scope="module", params=some(CASES, "without scores", "late labels"))
def base(request, tmp_path_factory):
    return made(tmp_path_factory.mktemp("base"), request.param)


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    return made(tmp_path_factory.mktemp("days"), "days")


def figures(result: dict[str, Any]) -> list[Any]:
    return [result[name] for name in ("fingerprint", "examples", "epochs")]


@pytest.mark.parametrize("day", some([0, 1, 3], 0, 3))
def test_a_rewound_run_ends_with_the_bits_of_the_undisturbed(tmp_path, base, day):
    workflow, files, left, expected = base
    run_dir = Path(shutil.copytree(left, tmp_path / "run"))
    if not day and not workflow.metrics.score_spans:
        with pytest.raises(ValueError, match="before this span is not kept; begin again with --fresh"):
            rewind(run_dir, NAMES[day])
        return
    assert f"undone: {NAMES[day]}" in rewind(run_dir, NAMES[day])[0]
    state = Commits(run_dir, Files(), 1).all()[-1].state
    assert state["trained"] == workflow.schedule.epochs * sum(DAYS[:day])
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["span"] for line in lines] == [entry["span"] for entry in state["epochs"]]
    assert not (run_dir / "result.json").exists()
    assert verify(run_dir) == 0
    assert figures(train(workflow, run_dir, files)) == figures(expected)


def contents(folder: Path) -> dict[str, bytes]:
    """Bytes of every file that a commit names."""
    found = [path for name in ("commits", "table.zarr") for path in (folder / name).rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.prove
def test_a_killed_rewind_leaves_a_commit_and_can_be_repeated(tmp_path, days):
    workflow, files, left, expected = days
    whole = Path(shutil.copytree(left, tmp_path / "whole"))
    rewind(whole, NAMES[2])
    seen: dict[tuple[int, ...], Path] = {}

    def work(folder: Path) -> None:
        if not any(folder.iterdir()):
            shutil.copytree(left, folder, dirs_exist_ok=True)
        elif (numbers := tuple(Commits(folder, Files(), 1).numbers())) not in seen:
            seen[numbers] = Path(shutil.copytree(folder, tmp_path / f"went-on-{len(seen)}"))
        rewind(folder, NAMES[2])

    for folder in killed_anywhere(tmp_path, work):
        assert contents(folder) == contents(whole)
        assert not (folder / "result.json").exists()
    ends = [numbers[-1] for numbers in seen]
    assert len(ends) > 4, "the run was never between two of the commits"
    for folder in [*seen.values(), whole]:
        assert figures(train(workflow, folder, files)) == figures(expected)


def test_a_rewind_is_refused_while_a_reader_holds_a_commit(tmp_path, days):
    run_dir = Path(shutil.copytree(days[2], tmp_path / "run"))
    before = contents(run_dir)
    with hold(run_dir, "last") as held, pytest.raises(ValueError, match=f"holds commit {held.number}; end it first"):
        rewind(run_dir, NAMES[1])
    assert contents(run_dir) == before
    rewind(run_dir, NAMES[1])


NOT_KEPT = {
    4: ([0, 4, 5, 6], f"the nearest earlier one is before {NAMES[0]}; or begin again with --fresh"),
    3: ([4, 5, 6], "is not kept; begin again with --fresh"),
}


@pytest.mark.parametrize("keep", NOT_KEPT)
def test_a_commit_that_is_not_kept_is_answered_by_another(tmp_path, days, keep):
    workflow, files, *_ = days
    train(kept(workflow, keep), tmp_path / "run", files)
    before, said = NOT_KEPT[keep]
    assert [*Commits(tmp_path / "run", Files(), 1).before_spans()] == before
    with pytest.raises(ValueError, match=said):
        rewind(tmp_path / "run", NAMES[2])


def test_the_disk_cap_deletes_the_oldest_kept_commit_first(tmp_path, days):
    workflow, _, _, expected = days
    first = workflow.with_settings({"data.train": ("train-*.parquet",)})
    driver = make_driver(first, tmp_path / "run", **SIZES, disk_chunks=32)
    result = driver.run()
    assert figures(result) == figures(expected)
    assert "kept for --rewind, is deleted" in printed(driver)
    assert [*Commits(tmp_path / "run", Files(), 1).before_spans()] == [4, 5, 6]


def test_kept_spans_are_in_a_workflow_only_if_they_are_set(days):
    assert '"keep_spans":7' in days[0].model_dump_json()
    assert "keep_spans" not in kept(days[0], 0).model_dump_json()


def test_the_command_goes_back_and_the_next_one_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    files = write_days(tmp_path / "data", DAYS[:3])
    workflow = kept(days_workflow(tmp_path / "data")).with_settings({"data.train": (files[0].name,)})
    (tmp_path / "days.json").write_text(workflow.model_dump_json())
    run = ["days.json", "--serial", "--out", "run"]
    for extend in ([], ["--extend", str(files[1])], ["--extend", str(files[2])]):
        assert main([*run, *extend]) == 0
    expected = json.loads(Path("run/result.json").read_text())
    for span, code, said in (
        (NAMES[1], 0, "went back to commit 3, before span 2026-11-21; undone: 2026-11-21, 2026-11-22\n"),
        (NAMES[1], 0, "nothing to undo: span 2026-11-21 is not trained on in commit 3"),
        ("2026-12-01", 0, "nothing to undo"),
        ("2026-11-02", 2, "the run has no such span; its last ones are 2026-11-20, 2026-11-21"),
    ):
        capsys.readouterr()
        assert main([*run, "--rewind", span]) == code
        assert said in "".join(capsys.readouterr())
    assert main([*run, "--rewind", NAMES[1], "--extend", "data"]) == 2
    assert "give --extend in the next command" in capsys.readouterr().err
    assert main(run) == 0
    assert main([*run, "--extend", str(files[2])]) == 0
    assert figures(json.loads(Path("run/result.json").read_text())) == figures(expected)
