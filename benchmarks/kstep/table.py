"""Table of the results of `kstep`, from the files written by its runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.kstep.cases import MODELS
from benchmarks.once import Json, read

BELOW = 0.001
"""Limit on how far a mean AUC may be below that of k = 1, in addition to two standard errors of the difference."""
BASE = "k1"


def print_runs(out: Path, cases: Iterable[str]) -> dict[str, float]:
    """Print a line for each model and case; return the mean AUCs by name."""
    found: dict[str, float] = {}
    print(
        "\ntest AUC after the last epoch: mean over the seeds, and its standard error; the mean difference from k = 1,"
    )
    print(f"seed by seed, its standard error, and whether it is above -{BELOW} - 2 of these")
    print("model      case           seeds     AUC std.err.  apart    std.err.      logloss  MB sent  messages  CPU s")
    for model in MODELS:
        base = _runs(out, model, BASE)
        for case in cases:
            if runs := _runs(out, model, case):
                found |= _print_case(f"{model}_{case}", f"{model:10} {case:14}", runs, base)
    return found


def _print_case(name: str, label: str, runs: dict[int, Json], base: dict[int, Json]) -> dict[str, float]:
    failed = [seed for seed, run in runs.items() if run["auc"] is None]
    if failed:
        print(f"{label} {len(runs):5}  diverged with {len(failed)}: seeds {', '.join(map(str, failed))}")
        return {}
    aucs = [run["auc"] for run in runs.values()]
    both = [seed for seed in runs if base.get(seed, {}).get("auc") is not None]
    apart = [runs[seed]["auc"] - base[seed]["auc"] for seed in both]
    means = [statistics.mean(run[what] for run in runs.values()) for what in ("logloss", "cpu_seconds")]
    first = next(iter(runs.values()))
    megabytes, messages = (sum(first[what].values()) for what in ("bytes", "messages"))
    print(
        f"{label} {len(runs):5} {statistics.mean(aucs):.5f}  {_error(aucs):.5f} {_apart(apart)} {means[0]:.4f} "
        f"{megabytes / 1e6:8,.1f} {messages:9,} {means[1]:6.1f}"
    )
    return {f"auc_{name}": statistics.mean(aucs)}


def _apart(differences: Sequence[float]) -> str:
    if not differences:
        return " " * 28
    mean, error = statistics.mean(differences), _error(differences)
    met = "met" if mean >= -BELOW - 2 * error else "not met"
    return f"{mean:+.5f} {error:.5f} {met:12}"


def _error(values: Sequence[float]) -> float:
    """Standard error of the mean; 0 for a single value, for which it is unknown."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _runs(out: Path, model: str, case: str) -> dict[int, Json]:
    """Results of a case's runs, by seed."""
    found = [read(path) for path in sorted(out.glob(f"{model}-{case}-*.json"))]
    return {run["seed"]: run for run in found if run}
