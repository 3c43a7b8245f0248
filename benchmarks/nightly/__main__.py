"""Training day by day: each span of a log is scored by a model trained on the earlier spans, then trained on.

    python -m benchmarks.nightly [--shared FOLDER] [--python PYTHON] [--quick]

On three real logs: this package, in one run with one pass over each span; the same model trained from scratch for one
or two shuffled epochs on all earlier spans, for each of the last two spans; Vowpal Wabbit; River. All have the same
fields. Each uses the settings of its grid with the lowest normalized entropy (NE) on the first spans of the log. The
figures are means over the other spans, with 95 % intervals of the differences from a bootstrap of the examples within
each span. --python: interpreter of an environment with vowpalwabbit and river; without it they are omitted. Without
--shared, a synthetic log is used. The scores of each learner and setting are kept in the folder of --data, so that the
same command resumes after it was stopped; remove `nightly` there to score again.

The last line is JSON: LOG_LEARNER_auc, LOG_LEARNER_ne, and for each other learner LOG_LEARNER_auc_less, the difference
of ours from it (positive is better for AUC, negative for NE), and the ends of its interval, _low and _high.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.common import arguments, finish
from benchmarks.nightly.comparison import METRICS, Labels, interval, mean_of
from benchmarks.nightly.logs import LOGS, Log, made_log, spans_of, write_lines
from benchmarks.nightly.ours import in_epochs, in_time_order, write_spans
from benchmarks.once import once
from pipeline.records import F64

EPOCHS = (1, 2)
RETRAINED = 2
"""Number of last spans for which a model is trained from scratch in shuffled epochs."""
RATES = {"LR": (0.1, 0.2, 0.4, 0.8), "FM": (0.05, 0.1, 0.2), "DeepFM": (0.05, 0.1, 0.2)}
OURS: list[dict[str, Any]] = [
    {
        "model.kind": kind, "model.args": {"hidden": [32]} if kind == "DeepFM" else {},
        "model.embedding_dim": 0 if kind == "LR" else 8, "optimizer.rows.kind": rows, "optimizer.rows.lr": lr,
    }
    for kind, rates in RATES.items()
    for rows, lr in (*(("adagrad", rate) for rate in rates), ("adam", 0.01))
]  # fmt: skip
VW = [
    *(f"-l {lr}" for lr in (0.1, 0.25, 0.5, 1.0)),
    # Without --normalized, which would undo the weight 1/n of each value of a list.
    *(f"--adaptive --invariant -l {lr}" for lr in (0.1, 0.2, 0.4)),
    *(f"--ftrl --ftrl_alpha {alpha} --l2 1e-6" for alpha in (0.1, 0.25)),
    *(f"-l {lr} --interactions ::" for lr in (0.1, 0.25)),
    *(f"-l {lr} --l2 1e-4 --lrq PAIR8" for lr in (0.05, 0.1)),
]
"""Arguments. PAIR is replaced by the first letters of the names of the user's and the item's field."""
RIVER = [
    *({"model": "lr", "optimizer": "ftrl", "lr": lr} for lr in (0.1, 0.2, 0.4)),
    *({"model": "lr", "optimizer": "adagrad", "lr": lr} for lr in (0.1, 0.2, 0.4, 0.8)),
    {"model": "fm", "optimizer": "sgd", "lr": 0.01, "factors": 8},
    *({"model": "fm", "optimizer": "adagrad", "lr": lr, "factors": 8} for lr in (0.1, 0.2)),
]
"""Without Adam, for which River updates all weights at each example: it takes about sixty times as long as Adagrad."""
Learner = Callable[[Any, int], list[F64]]
"""Function of settings and a number of spans that returns the scores of each of these spans except the first."""


def online(name: str, python: Path, log: Log, spans: list[pa.Table], folder: Path) -> Learner:
    """Learner of another library, in a process in that library's environment."""
    script = Path(__file__).with_name("online_learners.py")

    def scores(settings: Any, number: int) -> list[F64]:
        lines, out = folder / f"{number}.jsonl", folder / "scores.txt"
        if not lines.exists():
            write_lines(log, spans[:number], lines)
        command = [str(python), str(script), name, json.dumps(settings), str(lines), str(out)]
        subprocess.run(command, check=True, capture_output=True)
        found, ends = np.loadtxt(out), np.cumsum([table.num_rows for table in spans[:number]])
        return np.split(found, ends[:-1])[1:]

    return scores


def kept(folder: Path, name: str, learner: Learner) -> Learner:
    """Learner that caches the scores of another learner in files, so that a stopped benchmark can resume."""

    def scores(settings: Any, number: int) -> list[F64]:
        digest = hashlib.blake2b(json.dumps(settings).encode(), digest_size=6).hexdigest()
        path = folder / f"{name}-{number}-{digest}.json"
        once(path, lambda: {"settings": settings, "scores": [of.tolist() for of in learner(settings, number)]})
        return [np.array(of) for of in json.loads(path.read_text())["scores"]]

    return scores


def chosen(name: str, learner: Learner, grid: list[Any], labels: list[Labels]) -> Any:
    """Settings of the grid with the lowest mean NE on the first spans. `labels`: labels of these spans except the
    first."""
    found = [mean_of("ne", labels, learner(settings, len(labels) + 1)) for settings in grid]
    best = int(np.argmin(found))
    print(f"  {name}: NE {found[best]:.4f} on the first spans, of {len(grid)} settings, with {grid[best]}", flush=True)
    return grid[best]


def compare(log: Log, spans: list[pa.Table], args: argparse.Namespace) -> dict[str, float]:
    """Return the figures of one log, and print a table."""
    folder = args.data / "nightly" / log.name
    files = write_spans(spans, folder)
    labels = [table[log.label].to_numpy().astype(bool) for table in spans]
    print(f"{log.name}: {len(spans)} spans, {sum(map(len, labels)):,} examples; compared from span {log.tuned + 1} on")
    grids: dict[str, tuple[list[Any], Learner]] = {
        "ours": (OURS, lambda settings, number: in_time_order(log, files[:number], settings))
    }
    for name, grid in (("vw", [of.replace("PAIR", log.pair) for of in VW]), ("river", RIVER)) if args.python else ():
        grids[name] = grid, online(name, args.python, log, spans, folder)
    scores, best = {}, {}
    for name, (grid, learner) in grids.items():
        of = kept(folder, name, learner)
        best[name] = chosen(name, of, grid[:1] if args.quick else grid, labels[1 : log.tuned])
        scores[name] = of(best[name], len(spans))[log.tuned - 1 :]
    for epochs in EPOCHS[:1] if args.quick else EPOCHS:
        name, first = f"{epochs}_epochs", max(log.tuned, len(spans) - RETRAINED)
        learner = kept(folder, name, lambda settings, _: in_epochs(log, files, settings, epochs, first))  # noqa: B023
        scores[name] = learner(best["ours"], len(spans))
    figures: dict[str, float] = {}
    for name, of_name in scores.items():
        compared, ours = labels[-len(of_name) :], scores["ours"][-len(of_name) :]
        line = f"  {name:10} {len(of_name):2} spans"
        for metric in METRICS:
            figures[f"{log.name}_{name}_{metric}"] = mean = mean_of(metric, compared, of_name)
            line += f"  {metric} {mean:.4f}"
            if name != "ours":
                less = interval(metric, compared, ours, of_name)
                for end, value in zip(("less", "low", "high"), less, strict=True):
                    figures[f"{log.name}_{name}_{metric}_{end}"] = value
                line += f", ours {less[0]:+.4f} [{less[1]:+.4f}, {less[2]:+.4f}]"
        print(line, flush=True)
    return figures


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shared", type=Path, help="folder with the real logs; default: a synthetic one")
    parser.add_argument("--python", type=Path, help="interpreter of an environment with vowpalwabbit and river")
    parser.add_argument("--logs", nargs="+", default=[log.name for log in LOGS], help="names of the real logs")


def main() -> None:
    args = arguments("nightly", __doc__ or "", options)
    figures: dict[str, float] = {}
    logs = [(log, spans_of(log, args.shared)) for log in LOGS if log.name in args.logs] if args.shared else [made_log()]
    for log, spans in logs:
        figures |= compare(log, spans[: log.tuned + 2] if args.quick else spans, args)
    finish(args, figures)


if __name__ == "__main__":
    main()
