"""Tables of the results of `accuracy`, from the files written by its parts."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from itertools import product
from pathlib import Path

from benchmarks.accuracy.cases import ONE_BIT_OFF, PUBLISHED, step_name
from benchmarks.once import Json, read

STEP_APART, AUC_APART, LOGLOSS_APART, BELOW_PUBLISHED = 1e-5, 0.0015, 0.008, 0.001
"""Limits: allowed differences between the two sides, and how far the pipeline's AUC may be below the published one."""
NOTE = """\
BARS: reczoo/BARS, Frappe_x1, means of five runs, of LR and FM one run. Beside every figure: in the data used here
the negatives of the training split are drawn again by BARS's rule, which gives 0 to 0.002 more AUC and up to 0.008 more
logloss than BARS's own."""


def print_steps(out: Path) -> dict[str, float]:
    """Print a line for each model with steps of both sides. Returns the largest differences by name."""
    apart: dict[str, float] = {}
    print(
        "\nloss of each of the first steps, dropout off: the largest difference between the pipeline and plain torch,"
    )
    print(f"aim {STEP_APART:.0e}; that of plain torch from embeddings one bit larger; where the pipeline found rows")
    for model, calm in product(PUBLISHED, (False, True)):
        sides = [read(out / f"{step_name(model, side, calm)}.json") for side in ("pipeline", "torch", ONE_BIT_OFF)]
        if not all(sides):
            continue
        ours, theirs, off = (side["losses"] for side in sides if side)
        worst, noise = largest(ours, theirs), largest(off, theirs)
        apart[f"{'calm' if calm else 'steps'}_apart_{model}"] = worst
        hits = ", ".join(f"{tier} {count:,.0f}" for tier, count in (sides[0] or {})["hits"].items())
        which = f"{model:9} {'calm' if calm else 'published':9}"
        print(f"{which} {len(ours)} steps, {worst:.1e} {_met(worst <= STEP_APART):7} one bit: {noise:.1e}; {hits}")
    return apart


def largest(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def print_runs(out: Path) -> dict[str, float]:
    """Print two lines per model: the means of both sides, their difference, and the pipeline's difference from BARS."""
    found: dict[str, float] = {}
    print("\ntest split       seeds pipeline    torch    apart           BARS    apart           spread")
    for model, (auc, logloss) in PUBLISHED.items():
        ours, theirs = _both(out, model)
        if not ours:
            continue
        found |= _print_metric(f"{model:8}", "auc", ours, theirs, auc, "best_epoch")
        found |= _print_metric(" " * 8, "logloss", ours, theirs, logloss, "seconds")
    print(NOTE)
    return found


def _both(out: Path, model: str) -> tuple[list[Json], list[Json]]:
    """Runs of both sides, for the seeds common to both."""
    pairs = []
    for path in sorted(out.glob(f"{model}_*_pipeline.json")):
        ours, theirs = read(path), read(path.with_name(path.name.replace("_pipeline", "_torch")))
        if ours and theirs and "auc" in ours:
            pairs.append((ours, theirs))
    return [ours for ours, _ in pairs], [theirs for _, theirs in pairs]


def _print_metric(
    head: str, metric: str, ours: list[Json], theirs: list[Json], published: float, beside: str
) -> dict[str, float]:
    a, b = ([run[metric] for run in side] for side in (ours, theirs))
    mean_a, mean_b = statistics.mean(a), statistics.mean(b)
    apart = AUC_APART if metric == "auc" else LOGLOSS_APART
    met = abs(mean_a - mean_b) <= apart
    versus = "" if metric == "logloss" else _met(mean_a >= published - BELOW_PUBLISHED)
    extra = " | ".join(" ".join(f"{run[beside]:.0f}" for run in side) for side in (ours, theirs))
    spread = max(max(side) - min(side) for side in (a, b))
    print(
        f"{head} {metric:8}{len(a):4}  {mean_a:.5f}  {mean_b:.5f} {mean_a - mean_b:+.5f} {_met(met):7} {published:.5f} "
        f"{mean_a - published:+.5f} {versus:7} {spread:.5f}  {beside} {extra}"
    )
    model = ours[0]["model"]
    return {f"{metric}_{model}": mean_a, f"{metric}_{model}_torch": mean_b}


def _met(met: bool) -> str:
    return "met" if met else "NOT MET"


def print_forms(out: Path, forms: Iterable[str]) -> dict[str, float]:
    """Print, for each model, the AUC of the eager model in float32 (mean and spread over its seeds), and the difference
    of each form from it with the same seed."""
    found: dict[str, float] = {}
    for model in PUBLISHED:
        eager = {run["seed"]: run["auc"] for run in _runs(out, model, "pipeline")}
        lines = []
        for form in forms:
            apart = [run["auc"] - eager[run["seed"]] for run in _runs(out, model, form) if run["seed"] in eager]
            if apart:
                found[f"{form}_apart_{model}"] = mean = statistics.mean(apart)
                lines.append(f"{form} {mean:+.5f} ({len(apart)})")
        if lines:
            aucs = list(eager.values())
            print(f"{model:9} {statistics.mean(aucs):.5f}, spread {max(aucs) - min(aucs):.5f}: {', '.join(lines)}")
    return found


def _runs(out: Path, model: str, side: str) -> list[Json]:
    """Results of all seeds of a side."""
    found = {path.stem.removeprefix(f"{model}_"): path for path in sorted(out.glob(f"{model}_*_{side}.json"))}
    return [json.loads(path.read_text()) for name, path in found.items() if name.removesuffix(f"_{side}").isdecimal()]
