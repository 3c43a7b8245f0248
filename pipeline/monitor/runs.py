"""python -m pipeline runs [FOLDER]: a table of the runs in a folder: models, metrics, and the settings that differ."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

BESIDE = ("name", "data.root", "model.kind")
"""Settings that are not told as different: the first two are of a place, the last one has a column of its own."""
MAX_DIFFERENT = 8
"""Maximum number of settings in which runs differ that get a column each."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run directory, read."""

    folder: str
    settings: Mapping[str, Any]
    """Values of the workflow by their dotted paths."""
    validation: Mapping[str, Any]
    """Best evaluation of the validation split, by AUC; empty if there is none."""
    test: Mapping[str, Any]
    """Last evaluation of the test split; empty if there is none."""
    is_over: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 on success, 2 if there is no such folder or no run in it."""
    parser = argparse.ArgumentParser(prog="python -m pipeline runs", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs"), help="default: runs")
    folder: Path = parser.parse_args(argv).folder
    runs = list(find_runs(folder))
    if not runs:
        print(f"error: {folder}: there is no run in it", file=sys.stderr)
        return 2
    Console(width=None if sys.stdout.isatty() else 200).print(table_of_runs(runs))
    return 0


def find_runs(folder: Path) -> Iterator[Run]:
    """Read the runs that a folder holds, or the one that it is, in the order of their names."""
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    for path in [folder, *inside]:
        if (path / "commits").is_dir() and (path / "workflow.json").is_file():
            settings = dict(_flat(json.loads((path / "workflow.json").read_bytes())))
            metrics = path / "metrics.jsonl"
            epochs = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.is_file() else []
            of = {split: [e for e in epochs if e["split"] == split] for split in ("validation", "test")}
            best: dict[str, Any] = max(of["validation"], key=lambda e: e.get("auc") or 0.0, default={})
            last = of["test"][-1] if of["test"] else {}
            yield Run(str(path), settings, best, last, is_finished(path))


def result_of(run_dir: Path) -> dict[str, Any] | None:
    """Read the `result.json` of a run; None if it has none that can be read."""
    try:
        return dict(json.loads((run_dir / "result.json").read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def is_finished(run_dir: Path) -> bool:
    """True if a run has the result of its newest commit, and no full disk or map stopped it early."""
    result = result_of(run_dir)
    newest = max((int(path.stem) for path in (run_dir / "commits").glob("*.json") if path.stem.isdigit()), default=None)
    return result is not None and not result.get("stopped") and result.get("commit") == newest


def different_settings(runs: Sequence[Run]) -> list[str]:
    """Paths of the settings in which runs differ, in the order of the workflow's fields."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    shown = (name for name in names if name not in BESIDE)
    return [name for name in shown if len({json.dumps(run.settings.get(name)) for run in runs}) > 1]


def table_of_runs(runs: Sequence[Run]) -> Table:
    """Table with a row for each run."""
    different = different_settings(runs)
    columns = different[:MAX_DIFFERENT]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("run", "model", *columns, "validation auc", "logloss", "test auc", "logloss", "state"):
        table.add_column(name, justify="left" if name in ("run", "model", *columns, "state") else "right")
    for run in runs:
        settings = [_cell(run.settings.get(name)) for name in columns]
        scores = [_score(split.get(name)) for split in (run.validation, run.test) for name in ("auc", "logloss")]
        model = str(run.settings.get("model.kind", "")).rpartition(".")[2]
        table.add_row(run.folder, model, *settings, *scores, "finished" if run.is_over else "not finished")
    if more := different[MAX_DIFFERENT:]:
        table.caption = f"they differ in {len(more)} more settings: {', '.join(more)}"
    return table


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Pairs of path and value of all settings; lists are values."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _flat(inner, f"{path}.{name}" if path else name)
    else:
        yield path, value


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.5f}"


if __name__ == "__main__":
    sys.exit(main())
