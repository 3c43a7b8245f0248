"""Accuracy on Frappe_x1 with published settings, by the pipeline and by plain torch (`plain_torch`).

    python -m benchmarks.accuracy [MODEL ...] [--seeds 2020 2021 2022]

For each seed and side it trains from the same initial weights, on the same batches, and prints AUC and logloss on the
test split with the weights of the best epoch, next to the values published by BARS: means of five runs, of LR and FM
one run. The negatives of the training split used here are drawn again by BARS's rule, which gives 0 to 0.002 more AUC
and up to 0.008 more logloss than BARS's own.

Each run writes one JSON file to --out and is not repeated; several processes may share the work.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from contextlib import ExitStack
from itertools import product
from pathlib import Path

from benchmarks.accuracy.cases import FILES, PUBLISHED, published, stand_in
from benchmarks.accuracy.plain_torch import PlainTorch
from benchmarks.common import arguments, finish, machine
from benchmarks.once import Json, Quiet, once, read, train
from pipeline.workflow import Workflow

SIDES = ("pipeline", "torch")


def options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(data=Path("../shared/data/frappe_x1"))
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(PUBLISHED)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[2020, 2021, 2022])
    parser.add_argument("--out", type=Path, default=Path("runs/accuracy"), help="a JSON file for each run")


def check(models: list[str], data: Path) -> None:
    if unknown := [model for model in models if model not in PUBLISHED]:
        raise SystemExit(f"no published settings of {', '.join(unknown)}; there are {', '.join(PUBLISHED)}")
    if missing := [file for file in FILES if not (data / file).is_file()]:
        raise SystemExit(
            f"{data} lacks {', '.join(missing)}: name the folder that holds Frappe_x1 as Parquet with --data, or see "
            "with --quick how it runs on stand-in data"
        )


def result(workflow: Workflow, side: str, run_dir: Path) -> Json:
    """Test AUC and logloss of one side, and its best epoch."""
    if side == "torch":
        return PlainTorch(workflow).train()
    done = train(workflow, run_dir, Quiet())
    aucs = [epoch["auc"] for epoch in done["epochs"] if epoch["split"] == "validation"]
    test = done["epochs"][-1]
    return {"auc": test["auc"], "logloss": test["logloss"], "best_epoch": aucs.index(max(aucs)) + 1}


def report(model: str, out: Path, seeds: list[int]) -> dict[str, float]:
    """Print AUC and logloss of both sides, means over the seeds, and those of BARS."""
    found: dict[str, float] = {}
    runs = {side: [read(out / f"{model}_{seed}_{side}.json") or {} for seed in seeds] for side in SIDES}
    for metric, bars in zip(("auc", "logloss"), PUBLISHED[model], strict=True):
        ours, theirs = ([run[metric] for run in runs[side]] for side in SIDES)
        mean, torch = statistics.mean(ours), statistics.mean(theirs)
        spread = max(max(side) - min(side) for side in (ours, theirs))
        print(
            f"{model:9} {metric:8} {mean:.5f}, torch {torch:.5f} ({mean - torch:+.5f}), BARS {bars:.5f} "
            f"({mean - bars:+.5f}), largest spread of {len(seeds)} seeds {spread:.5f}"
        )
        found |= {f"{metric}_{model}": mean, f"{metric}_{model}_torch": torch}
    return found


def main() -> None:
    args = arguments("accuracy", __doc__ or "", options)
    print(machine())
    models, seeds, data, out = args.models or list(PUBLISHED), args.seeds, args.data, args.out
    with ExitStack() as stack:
        if args.quick:
            out = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=".", prefix=".benchmark-")))
            models, seeds, data = args.models or ["DeepFM"], seeds[:1], out / "data"
            stand_in(data)
        check(models, data)
        out.mkdir(parents=True, exist_ok=True)
        for seed, model, side in product(seeds, models, SIDES):
            workflow = published(model, data, seed, args.quick)
            name = f"{model}_{seed}_{side}"
            once(out / f"{name}.json", lambda: result(workflow, side, out / "runs" / name))  # noqa: B023
        figures: dict[str, float] = {}
        for model in models:
            figures |= report(model, out, seeds)
    differences = [abs(figures[f"auc_{model}"] - figures[f"auc_{model}_torch"]) for model in models]
    finish(args, figures | {"largest_difference": max(differences)})


if __name__ == "__main__":
    main()
