"""pipeline runs [FOLDER]: tables of the runs in a folder, best first, with metrics and the settings that differ. Runs
evaluated on different data are in separate tables."""

from __future__ import annotations

import json
import math
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.arguments import runs_arguments
from pipeline.monitor.runs_table import RunsTable

FILE_COLUMNS = 100
"""Width of the table if there is neither a terminal nor COLUMNS."""
SPEED_ONLY = ("schedule.block_batches", "schedule.look_ahead", "schedule.threads")
"""Settings of the schedule that affect mainly speed."""
SPLITS = ("test", "validation", "span")
"""Evaluations in order of preference: a run is judged by the first one that it has."""


@dataclass(frozen=True, slots=True)
class Run:
    """Content of a run directory."""

    folder: str
    settings: Mapping[str, Any]
    """Values of the workflow by dotted path."""
    validation: Mapping[str, Any]
    """Evaluation of the validation split after the epoch that was tested, or else after the epoch of the commit named
    best, or else the last one; empty if there is none."""
    test: Mapping[str, Any]
    """Last evaluation of the test split; empty if there is none."""
    span: Mapping[str, Any]
    """Scores of the last span, before it was trained on; empty if there are none."""
    judged_by: Sequence[Any]
    """Values that must be equal for the metrics of two runs to be comparable: split or span and its files, label,
    weight."""
    num_judged: tuple[int, int] | None
    """Numbers of files and examples in that split; None if unknown."""
    seconds: float | None
    """Training time up to the last commit; None before the first one."""
    is_over: bool

    @property
    def data(self) -> str:
        """Short name of the data: the last folder of its root, or else the name of the workflow."""
        return Path(self.settings.get("data.root") or "").name or str(self.settings.get("name"))

    @property
    def labels(self) -> list[str]:
        return list(self.settings["data.labels"])

    @property
    def judged(self) -> Mapping[str, Any]:
        """Evaluation by which the run is judged."""
        return self.test or self.validation or self.span

    @property
    def title(self) -> str:
        """Name of the data by which the run is judged."""
        split, _, label, weight = self.judged_by
        sizes = ""
        if self.num_judged:
            files, examples = self.num_judged
            sizes = f", {files} file{'s' * (files != 1)}, {examples:,} examples"
        name = split if split.startswith("span ") else f"{split} split"
        return f"{name} of {self.data}, label {label}{f' weighted by {weight}' if weight else ''}{sizes}"

    @property
    def rank(self) -> float:
        """Sort key that puts the highest AUC of the split that runs are judged by first, or the lowest error of a
        numeric label."""
        auc, error = self.judged.get("auc"), self.judged.get("rmse")
        return -auc if auc is not None else math.inf if error is None else error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 on success, 2 if there is no such folder or no run in it."""
    args = runs_arguments().parse_args(argv)
    runs, damaged = find_runs(args.folder)
    for reason in damaged:
        print(f"warning: not listed: {reason}", file=sys.stderr)
    if not runs:
        print(f"error: {args.folder}: it holds no run{' that can be read' * bool(damaged)}", file=sys.stderr)
        return 2
    groups = list(groups_of(runs))
    if args.json:
        different = different_settings(runs)
        print("\n".join(json.dumps(run_as_json(run, different)) for group in groups for run in group))
    else:
        print(tables_of_runs(args.folder, groups, shutil.get_terminal_size((FILE_COLUMNS, 24)).columns))
    return 0


def find_runs(folder: Path) -> tuple[list[Run], list[str]]:
    """Read the runs in a folder, or the run that the folder is, in order of name. Also returns why other runs cannot be
    read."""
    runs, damaged = [], []
    for path in [folder, *(sorted(folder.iterdir()) if folder.is_dir() else ())]:
        if (path / "commits").is_dir() and (path / "workflow.json").is_file():
            try:
                runs.append(run_in(path))
            except (ValueError, OSError) as error:
                damaged.append(str(error))
    return runs, damaged


def groups_of(runs: Sequence[Run]) -> Iterator[list[Run]]:
    """Yield groups of comparable runs, each with the best run first."""
    keys = dict.fromkeys(json.dumps(run.judged_by) for run in sorted(runs, key=lambda run: (run.data, run.title)))
    for key in keys:
        yield sorted((run for run in runs if json.dumps(run.judged_by) == key), key=lambda run: run.rank)


def run_in(path: Path) -> Run:
    """Read a run directory. Raises ValueError, with the file and the fault, if a file is damaged."""
    settings = settings_of(path)
    labels = settings["data.labels"]
    epochs, result = metrics_lines(path), result_of(path)
    if result is None and (path / "result.json").is_file():
        raise ValueError(
            f"{path / 'result.json'} is damaged: it is not a JSON object; the run's command writes it again"
        )
    of = {split: [e for e in epochs if e["split"] == split] for split in SPLITS}
    test = of["test"][-1] if of["test"] else {}
    chosen = test.get("epoch", _best_epoch(path))
    validation = next(
        (e for e in of["validation"] if e["epoch"] == chosen), of["validation"][-1] if of["validation"] else {}
    )
    span = of["span"][-1] if of["span"] else {}
    split = "validation" if validation and not test else f"span {span['span']}" if span and not test else "test"
    _, state = _commit(path, _newest_commit(path))
    files = _files_of([(result or {}).get("data"), state.get("data")], split, (test or validation).get("data"))
    judged_by = (
        split,
        files or (test or validation).get("data") or settings.get("data.root"),
        labels[0],
        settings.get("data.weight"),
    )
    num_judged = (len(files), sum(count * rows for _, groups, _ in files for count, rows in groups)) if files else None
    is_over = is_finished(path)
    seconds = (result if is_over and result else state).get("seconds")
    return Run(str(path), settings, validation, test, span, judged_by, num_judged, seconds, is_over)


def settings_of(run_dir: Path) -> dict[str, Any]:
    """Read the settings of a run, by path. Raises ValueError if its workflow.json is damaged."""
    path = run_dir / "workflow.json"
    settings = dict(flat_settings(_object(path, _read(path))))
    labels = settings.get("data.labels")
    if not isinstance(labels, list) or not labels:
        raise ValueError(f"{path} is damaged: it has no data.labels")
    return settings


def metrics_lines(run_dir: Path) -> list[dict[str, Any]]:
    """Read the lines of metrics.jsonl; an empty list if there is no such file. Raises ValueError if a line is
    damaged."""
    path = run_dir / "metrics.jsonl"
    lines = path.read_bytes().splitlines() if path.is_file() else []
    epochs = []
    for number, line in enumerate(lines, start=1):
        try:
            epoch = _object(path, json.loads(line))
            if not isinstance(epoch["split"], str) or not isinstance(epoch["epoch"], int):
                raise TypeError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError(f"{path} is damaged in line {number}; the run's command writes it again") from None
        epochs.append(epoch)
    return epochs


def result_of(run_dir: Path) -> dict[str, Any] | None:
    """Read the `result.json` of a run; None if it is missing or cannot be read."""
    try:
        return _object(run_dir / "result.json", _read(run_dir / "result.json"))
    except (OSError, ValueError):
        return None


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _object(path: Path, content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it is not a JSON object")
    return content


def _commit(run_dir: Path, number: int | None) -> tuple[str | None, dict[str, Any]]:
    """Name and state of a commit; an empty state if it cannot be read."""
    try:
        commit = json.loads((run_dir / "commits" / f"{number:06}.json").read_bytes())["commit"]
        return commit.get("name"), dict(commit["state"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None, {}


def _best_epoch(run_dir: Path) -> int | None:
    """Number, from 1, of the epoch of the commit named best; None if there is none."""
    for path in sorted((run_dir / "commits").glob("*.json"), reverse=True):
        name, state = _commit(run_dir, int(path.stem)) if path.stem.isdigit() else (None, {})
        if name == "best":
            validated = [e["epoch"] for e in state.get("epochs", ()) if e["split"] == "validation"]
            return validated[-1] if validated else None
    return None


def _files_of(data: Sequence[Mapping[str, Any] | None], split: str, digest: str | None) -> list[tuple[int, Any, str]]:
    """Size, row groups and footer checksum of each file of a split, from the first of these descriptions that has them;
    empty if none does. `digest`: that of the evaluation. Unlike `digest`, these do not depend on the columns that a run
    uses."""
    for known in data:
        found = (known or {}).get(split) or {}
        if digest in (None, found.get("digest", digest)) and found.get("files"):
            return [(file["size"], file["row_groups"], file["footer"]) for file in found["files"]]
    return []


def is_finished(run_dir: Path) -> bool:
    """True if a run has the result of its newest commit and was not stopped early by a full disk or map."""
    result = result_of(run_dir)
    return result is not None and not result.get("stopped") and result.get("commit") == _newest_commit(run_dir)


def _newest_commit(run_dir: Path) -> int | None:
    return max((int(path.stem) for path in (run_dir / "commits").glob("*.json") if path.stem.isdigit()), default=None)


def different_settings(runs: Sequence[Run]) -> list[str]:
    """Paths of the settings that differ between runs, except `name` and `data.root`, in the order of the workflow's
    fields."""
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in ("name", "data.root"))
    return [name for name in names if variety(runs, name) > 1]


def variety(runs: Sequence[Run], name: str) -> int:
    """Number of distinct values of a setting in these runs."""
    return len({json.dumps(run.settings.get(name)) for run in runs})


def run_as_json(run: Run, different: Sequence[str]) -> dict[str, Any]:
    """JSON object that describes a run."""
    return {
        "run_dir": run.folder, "name": run.settings.get("name"), "data": run.data,
        "judged_by": run.title, "finished": run.is_over, "seconds": run.seconds,
        "validation": run.validation, "test": run.test, "span": run.span,
        "settings": {name: run.settings[name] for name in different if name in run.settings},
    }  # fmt: skip


def tables_of_runs(folder: Path, groups: Sequence[Sequence[Run]], width: int) -> str:
    """A table for each group of runs, below a line with the data that they were evaluated on."""
    count = sum(map(len, groups))
    kinds = dict.fromkeys(_text(run.settings.get("model.kind")) for runs in groups for run in runs)
    note = f"{folder}: {count} run{'s' * (count > 1)}" + f" of {', '.join(kinds)}" * (len(kinds) == 1)
    if len(groups) > 1:
        note += ", evaluated on different data: compare only runs of the same table"
    parts = [note]
    for title, runs in zip(titles_of([runs[0] for runs in groups]), groups, strict=True):
        order = "least error" if "rmse" in runs[0].judged else "best AUC"
        parts.append(f"{title}{f', {order} first' * (len(runs) > 1)}\n\n{table_of_runs(runs, width)}")
    return "\n\n".join(parts)


def titles_of(runs: Sequence[Run]) -> list[str]:
    """Names of the data that runs are judged by; distinct data get distinct names."""
    judged: dict[str, list[str]] = {}
    for run in runs:
        if (key := json.dumps(run.judged_by)) not in (keys := judged.setdefault(run.title, [])):
            keys.append(key)

    def marked(run: Run) -> str:
        keys = judged[run.title]
        number = keys.index(json.dumps(run.judged_by)) + 1
        return f"{run.title} (data {number} of {len(keys)} with these sizes)" if len(keys) > 1 else run.title

    return [marked(run) for run in runs]


def table_of_runs(runs: Sequence[Run], width: int, metric: str = "auc") -> str:
    """Table with a line for each run, at most `width` wide unless names and the metric alone are wider, followed by a
    list of the omitted columns and settings."""
    table = RunsTable(width)
    table.must("run", [Path(run.folder).resolve().name for run in runs], left=True)
    different = different_settings(runs)
    lists = [name for name in different if _is_list(runs, name)]
    settings = sorted((name for name in different if name not in lists), key=lambda name: _matters(runs, name))
    (test, *tests), (validation, *validations) = _scores(runs, "test", metric), _scores(runs, "validation", metric)
    span, *spans = _scores(runs, "span", metric)
    for head, cells in (test, validation, span):
        if {*cells} != {"-"}:
            table.must(head, cells)
    if not all(run.is_over for run in runs):
        table.must("state", ["finished" if run.is_over else "not finished" for run in runs], left=True)
    # Columns added first get space first.
    for name in settings[:2]:
        _add_setting(table, runs, name)
    for head, cells in (*tests, *validations, *spans):
        table.may(head, cells)
    table.may("seconds", ["-" if run.seconds is None else f"{run.seconds:,.0f}" for run in runs])
    for name in settings[2:]:
        _add_setting(table, runs, name)
    for other in ("auc", "logloss", "rmse", "mae"):
        for head, cells in (of_label for split in SPLITS for of_label in _scores(runs, split, other)):
            if other != metric and (other == "logloss" or {*cells} != {"-"}):
                table.may(head, cells)
    hidden = [*table.left_out, *lists]
    more = f"left out, since it would be too wide (--json has all): {', '.join(hidden)}" if hidden else ""
    return "\n".join([str(table), *textwrap.wrap(more, width)])


def _add_setting(table: RunsTable, runs: Sequence[Run], name: str) -> None:
    table.may(".\n".join(name.split(".", 1)), [_text(run.settings.get(name)) for run in runs], left=True)


def _scores(runs: Sequence[Run], split: str, metric: str) -> list[tuple[str, list[str]]]:
    """Head and cells of a column for each label. The first column is for each run's first label, which the head names
    if it is the same in all runs."""
    firsts = {run.labels[0] for run in runs}
    others = dict.fromkeys(label for run in runs for label in run.labels[1:])
    first = f"{metric}_{min(firsts)}" if others and len(firsts) == 1 else metric
    names = {first: metric} | {f"{metric}_{label}": f"{metric}_{label}" for label in others}
    short = "valid" if split == "validation" else split
    return [(f"{short}\n{head}", [_score(run, split, name) for run in runs]) for head, name in names.items()]


def _score(run: Run, split: str, metric: str) -> str:
    value = getattr(run, split).get(metric)
    return "-" if value is None else f"{value:.5f}"


def _is_list(runs: Sequence[Run], name: str) -> bool:
    """True for lists in `data`, which the title summarizes, and for settings of synthetic data."""
    lists = any(isinstance(run.settings.get(name), list) for run in runs)
    return name.startswith("data.") and (lists or name.startswith("data.synthetic"))


def _matters(runs: Sequence[Run], name: str) -> tuple[bool, int]:
    """Sort key of a setting: settings that change the model come before those that change only speed and space; within
    each group, those varied most come first."""
    harmless = name.split(".")[0] in ("storage", "commit", "workers", "device", "metrics")
    return harmless or name in SPEED_ONLY, -variety(runs, name)


def flat_settings(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each setting; a list is one value."""
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
