"""Accuracy on Frappe_x1 with published settings, by the pipeline and by plain torch (`plain_torch`).

    python -m benchmarks.accuracy [MODEL ...] [--seeds 2020 2021 2022] [--side pipeline|torch] [--steps]

First, with dropout off, it compares the loss of each of the first 50 steps, from the same initial weights, on the same
batches, with rows in all three tiers, and prints the largest difference between the two sides. It also prints the
difference between plain torch and plain torch with initial embeddings that are one bit larger; no two float32
implementations can be expected to be closer. With the published settings, batch norm and Adam's eps of 1e-8 amplify one
bit to 1e-3, so both are also compared without batch norm and with an eps of 1e-5. Then, for each seed, it prints AUC
and logloss on the test split with the weights of the best epoch, next to the values published by BARS.

`--side` may also name a form of the pipeline: compiled, bfloat16, or both. A third table compares its AUC, seed by
seed, with that of the eager model in float32.

Each part writes one JSON file to --out and is not repeated. The tables show all results in --out. Two processes may run
the two sides at the same time.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.accuracy.cases import ONE_BIT_OFF, PUBLISHED, first_steps, published, stand_in, step_name
from benchmarks.accuracy.plain_torch import PlainTorch
from benchmarks.accuracy.table import print_forms, print_runs, print_steps
from benchmarks.common import arguments, finish, machine
from benchmarks.once import Json, Quiet, once, train
from pipeline.workflow import Workflow

SIDES = ("pipeline", "torch")
FORMS: dict[str, dict[str, Any]] = {
    "compiled": {"compile": True},
    "bfloat16": {"precision": "bfloat16"},
    "compiled_bfloat16": {"compile": True, "precision": "bfloat16"},
}
"""Changes to `model`, by side."""
STEPS_OF = {"pipeline": ("pipeline",), "torch": ("torch", ONE_BIT_OFF)}
FILES = ("train.parquet", "valid.parquet", "test.parquet")
NUM_STEPS = 50


class Bench:
    def __init__(self, data: Path, out: Path, threads: int, keep: bool, quick: bool) -> None:
        self._data, self._out, self._threads, self._keep, self._quick = data, out, threads, keep, quick

    def steps(self, model: str, side: str, seed: int) -> None:
        for calm in (False, True):
            workflow = first_steps(self._workflow(model, seed), NUM_STEPS, calm)
            for one in STEPS_OF[side]:
                name = step_name(model, one, calm)
                once(self._out / f"{name}.json", lambda: self._losses(name, workflow, one))  # noqa: B023

    def run(self, model: str, side: str, seed: int) -> None:
        name = f"{model}_{seed}_{side}"
        who = {"model": model, "seed": seed, "side": side}
        once(self._out / f"{name}.json", lambda: who | self._result(name, self._workflow(model, seed), side))

    def _workflow(self, model: str, seed: int) -> Workflow:
        return published(model, self._data, seed, self._threads, self._quick)

    def _losses(self, name: str, workflow: Workflow, side: str) -> Json:
        if side != "pipeline":
            return {"losses": PlainTorch(workflow, one_bit_off=side == ONE_BIT_OFF).losses(NUM_STEPS)}
        # A run that resumes from a commit would lack the losses before it.
        shutil.rmtree(self._run_dir(name), ignore_errors=True)
        progress = Quiet()
        result = train(workflow, self._run_dir(name), progress, keep=self._keep)
        hits = {tier: found["hits"] for tier, found in result["tiers"].items()}
        return {"losses": progress.losses[:NUM_STEPS], "hits": hits}

    def _result(self, name: str, workflow: Workflow, side: str) -> Json:
        if side == "torch":
            return PlainTorch(workflow).train()
        form = workflow.model.model_copy(update=FORMS.get(side, {}))
        workflow = workflow.model_copy(update={"model": form})
        result = train(workflow, self._run_dir(name), Quiet(), keep=self._keep)
        epochs = [epoch for epoch in result["epochs"] if epoch["split"] == "validation"]
        test = result["epochs"][-1]
        best = max(range(len(epochs)), key=lambda e: epochs[e]["auc"])
        return {
            "auc": test["auc"], "logloss": test["logloss"], "best_epoch": best + 1,
            "epochs": [{"auc": epoch["auc"], "logloss": epoch["logloss"]} for epoch in epochs],
            "seconds": result["seconds"],
        }  # fmt: skip

    def _run_dir(self, name: str) -> Path:
        return self._out / "runs" / name


def options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(data=Path("../shared/data/frappe_x1"))
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(PUBLISHED)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[2020, 2021, 2022])
    parser.add_argument("--out", type=Path, default=Path("runs/accuracy"), help="a JSON file for each part")
    parser.add_argument("--steps", action="store_true", help="the first steps only")
    parser.add_argument("--side", choices=(*SIDES, *FORMS), help="default: both, one after the other")
    parser.add_argument("--threads", type=int, default=1, help="of a run")
    parser.add_argument("--keep", action="store_true", help="the pipeline's run directories")


def check(models: Sequence[str], data: Path) -> None:
    if unknown := [model for model in models if model not in PUBLISHED]:
        raise SystemExit(f"no published settings of {', '.join(unknown)}; there are {', '.join(PUBLISHED)}")
    if missing := [file for file in FILES if not (data / file).is_file()]:
        raise SystemExit(
            f"{data} lacks {', '.join(missing)}: name the folder that holds Frappe_x1 as Parquet with --data, or see "
            "with --quick how it runs on stand-in data"
        )


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
        bench = Bench(data, out, args.threads, args.keep, args.quick)
        sides = [args.side] if args.side else SIDES
        for model, side in ((model, side) for model in models for side in sides if side in SIDES):
            bench.steps(model, side, seeds[0])
        for seed in [] if args.steps else seeds:
            for model, side in ((model, side) for model in models for side in sides):
                bench.run(model, side, seed)
        ratios = print_steps(out) | print_runs(out) | print_forms(out, FORMS)
    finish(args, ratios)


if __name__ == "__main__":
    main()
