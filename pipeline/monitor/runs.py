"""python -m pipeline runs [FOLDER]: a table of the runs in a folder, best first: metrics, and the settings that
differ."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.monitor.runs_table import RunsTable

FILE_COLUMNS = 100
"""Width of the table where there is neither a terminal nor COLUMNS."""
SPEED_ONLY = ("schedule.block_batches", "schedule.look_ahead", "schedule.threads")
"""Settings of the schedule that change little but the speed."""


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
    seconds: float | None
    """Time that the training took up to its last commit; None before the first one."""
    is_over: bool

    @property
    def data(self) -> str:
        """One word for the data: the last folder of their root, or else the workflow's name."""
        return Path(self.settings.get("data.root") or "").name or str(self.settings.get("name"))

    @property
    def labels(self) -> list[str]:
        return list(self.settings["data.labels"])

    @property
    def rank(self) -> tuple[str, float]:
        """Sort key: runs of the same data together, the best AUC of the test, or else of the validation, first."""
        auc = self.test.get("auc") or self.validation.get("auc")
        return self.data, -auc if auc is not None else math.inf


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 on success, 2 if there is no such folder or no run in it."""
    parser = argparse.ArgumentParser(prog="python -m pipeline runs", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs"), help="default: runs")
    parser.add_argument("--json", action="store_true", help="one JSON object a run, with all settings that differ")
    args = parser.parse_args(argv)
    runs = sorted(find_runs(args.folder), key=lambda run: run.rank)
    if not runs:
        print(f"error: {args.folder}: there is no run in it", file=sys.stderr)
        return 2
    if args.json:
        different = different_settings(runs)
        print("\n".join(json.dumps(run_as_json(run, different)) for run in runs))
    else:
        print(table_of_runs(args.folder, runs, shutil.get_terminal_size((FILE_COLUMNS, 24)).columns))
    return 0


def find_runs(folder: Path) -> Iterator[Run]:
    """Read the runs that a folder holds, or the one that it is, in the order of their names."""
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    for path in [folder, *inside]:
        if (path / "commits").is_dir() and (path / "workflow.json").is_file():
            settings = dict(flat_settings(json.loads((path / "workflow.json").read_bytes())))
            metrics = path / "metrics.jsonl"
            epochs = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.is_file() else []
            of = {split: [e for e in epochs if e["split"] == split] for split in ("validation", "test")}
            best: dict[str, Any] = max(of["validation"], key=lambda e: e.get("auc") or 0.0, default={})
            last = of["test"][-1] if of["test"] else {}
            yield Run(str(path), settings, best, last, _seconds(path), is_finished(path))


def result_of(run_dir: Path) -> dict[str, Any] | None:
    """Read the `result.json` of a run; None if it has none that can be read."""
    try:
        return dict(json.loads((run_dir / "result.json").read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def is_finished(run_dir: Path) -> bool:
    """True if a run has the result of its newest commit, and no full disk or map stopped it early."""
    result = result_of(run_dir)
    return result is not None and not result.get("stopped") and result.get("commit") == _newest_commit(run_dir)


def _newest_commit(run_dir: Path) -> int | None:
    return max((int(path.stem) for path in (run_dir / "commits").glob("*.json") if path.stem.isdigit()), default=None)


def _seconds(run_dir: Path) -> float | None:
    if is_finished(run_dir):
        return (result_of(run_dir) or {}).get("seconds")
    try:
        manifest = json.loads((run_dir / "commits" / f"{_newest_commit(run_dir):06}.json").read_bytes())
        return float(manifest["commit"]["state"]["seconds"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def different_settings(runs: Sequence[Run]) -> list[str]:
    """Paths of the settings in which runs differ, in the order of the workflow's fields, but for name and place."""
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in ("name", "data.root"))
    return [name for name in names if variety(runs, name) > 1]


def variety(runs: Sequence[Run], name: str) -> int:
    """Number of values that a setting has in these runs."""
    return len({json.dumps(run.settings.get(name)) for run in runs})


def run_as_json(run: Run, different: Sequence[str]) -> dict[str, Any]:
    """The JSON object of a run."""
    return {
        "run_dir": run.folder, "name": run.settings.get("name"), "data": run.data, "finished": run.is_over,
        "seconds": run.seconds, "validation": run.validation, "test": run.test,
        "settings": {name: run.settings[name] for name in different if name in run.settings},
    }  # fmt: skip


def table_of_runs(folder: Path, runs: Sequence[Run], width: int) -> str:
    """Table with a line for each run, at most `width` wide unless names and AUCs alone are wider, and a line that
    names the settings that it leaves out."""
    table = RunsTable(width)
    table.must("run", [Path(run.folder).resolve().name for run in runs], left=True)
    different, words = different_settings(runs), list(dict.fromkeys(run.data for run in runs))
    lists = [name for name in different if _is_list(runs, name)]
    settings = sorted((name for name in different if name not in lists), key=lambda name: _matters(runs, name))
    (test, *tests), (validation, *validations) = _scores(runs, "test", "auc"), _scores(runs, "validation", "auc")
    for head, cells in (test, validation):
        if {*cells} != {"-"}:
            table.must(head, cells)
    if not all(run.is_over for run in runs):
        table.must("state", ["finished" if run.is_over else "not finished" for run in runs], left=True)
    if len(words) > 1:
        table.may("data", [run.data for run in runs], left=True)
    # What comes first finds room first.
    for name in settings[:2]:
        _add_setting(table, runs, name)
    for head, cells in (*tests, *validations):
        table.may(head, cells)
    table.may("seconds", ["-" if run.seconds is None else f"{run.seconds:,.0f}" for run in runs])
    for name in settings[2:]:
        _add_setting(table, runs, name)
    for head, cells in (*_scores(runs, "test", "logloss"), *_scores(runs, "validation", "logloss")):
        table.may(head, cells)
    kinds = dict.fromkeys(_text(run.settings.get("model.kind")) for run in runs)
    same = f" of {', '.join(kinds)}" * (len(kinds) == 1) + f" on {', '.join(words)}" * (len(words) == 1)
    told = f"{folder}: {len(runs)} run{'s' * (len(runs) > 1)}{same}" + ", best first" * (len(runs) > 1)
    hidden = [*table.left_out, *(name for name in lists if any(_differ_within(runs, name)))]
    more = f"left out, since it would be too wide (--json has all): {', '.join(hidden)}" if hidden else ""
    return "\n".join([told, "", str(table), *textwrap.wrap(more, width)])


def _add_setting(table: RunsTable, runs: Sequence[Run], name: str) -> None:
    table.may(".\n".join(name.split(".", 1)), [_text(run.settings.get(name)) for run in runs], left=True)


def _scores(runs: Sequence[Run], split: str, metric: str) -> list[tuple[str, list[str]]]:
    """Head and cells of a column for each label; a run's first label is in the first one, and is named there if all
    have the same."""
    firsts = {run.labels[0] for run in runs}
    others = dict.fromkeys(label for run in runs for label in run.labels[1:])
    first = f"{metric}_{min(firsts)}" if others and len(firsts) == 1 else metric
    names = {first: metric} | {f"{metric}_{label}": f"{metric}_{label}" for label in others}
    short = "test" if split == "test" else "valid"
    return [(f"{short}\n{head}", [_score(run, split, name) for run in runs]) for head, name in names.items()]


def _score(run: Run, split: str, metric: str) -> str:
    value = (run.test if split == "test" else run.validation).get(metric)
    return "-" if value is None else f"{value:.5f}"


def _is_list(runs: Sequence[Run], name: str) -> bool:
    """True for a list of the data, of which the word for the data says enough, and for synthetic data's settings."""
    lists = any(isinstance(run.settings.get(name), list) for run in runs)
    return name.startswith("data.") and (lists or name.startswith("data.synthetic"))


def _differ_within(runs: Sequence[Run], name: str) -> list[int]:
    """For each data whose runs differ in a setting: the number of its values, less one."""
    of = [[run for run in runs if run.data == data] for data in dict.fromkeys(run.data for run in runs)]
    return [variety(same, name) - 1 for same in of if variety(same, name) > 1]


def _matters(runs: Sequence[Run], name: str) -> tuple[bool, int, int]:
    """Sort key of a setting: what changes the model before what only changes speed and space; then what was varied most
    on the same data; then what differs most."""
    harmless = name.split(".")[0] in ("storage", "commit", "workers", "device", "metrics")
    return harmless or name in SPEED_ONLY, -sum(_differ_within(runs, name)), -variety(runs, name)


def flat_settings(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Pairs of path and value of all settings; lists are values."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from flat_settings(inner, f"{path}.{name}" if path else name)
    else:
        yield path, value


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value.rpartition(".")[2] if value.startswith("pipeline.models.") else value
    text = json.dumps(value)
    return text if len(text) <= 24 else f"{text[:21]}..."


if __name__ == "__main__":
    sys.exit(main())
