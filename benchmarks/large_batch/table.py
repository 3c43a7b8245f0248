"""Tables of the results of `large_batch`, from the files written by its runs."""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks.once import read


def print_tuned(out: Path) -> None:
    print("\ntuned at s = 1    row lr      L2  dense lr      AUC")
    for one in sorted(filter(None, map(read, out.glob("tune-*.json"))), key=lambda one: -(one["best"] or 0)):
        which = "with clip" if one["clip"] else "without"
        print(f"{which:15} {one['row_lr']:8g} {one['l2']:7g} {one['dense_lr']:9g} {_auc(one['best'])}")


def print_runs(out: Path, bayes_auc: float) -> dict[str, float]:
    """Print a line for each batch size and rule with means over the seeds. Returns the best AUCs by name."""
    runs = [one for one in map(read, sorted(out.glob("run-*.json"))) if one]
    best: dict[str, float] = {}
    print(f"\nbest possible AUC {bayes_auc:.5f}; means over the seeds that are there")
    print("   s rule                  seeds best AUC  spread  last AUC  s/epoch  AUC of each epoch, first seed")
    for s, rule in sorted({(one["s"], one["rule"]) for one in runs}):
        same = [one for one in runs if (one["s"], one["rule"]) == (s, rule)]
        fine = [one for one in same if one["best"] is not None]
        if not fine:
            print(f"{s:4} {rule:21} {len(same):5} {same[0]['failed'].splitlines()[0]}")
            continue
        bests = [one["best"] for one in fine]
        best[f"{rule}_{s}"] = statistics.mean(bests)
        means = [statistics.mean(one[what] for one in fine) for what in ("last", "epoch_seconds")]
        print(
            f"{s:4} {rule:21} {len(fine):5}  {best[f'{rule}_{s}']:.5f} {max(bests) - min(bests):.5f}   {means[0]:.5f}"
            f" {means[1]:8.1f}  {' '.join(_auc(auc, 4) for auc in fine[0]['aucs'])}"
        )
    return best


def _auc(value: float | None, digits: int = 5) -> str:
    return "failed" if value is None else f"{value:.{digits}f}"
