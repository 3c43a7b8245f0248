"""Accuracy of rules for large batches: CowClip's rule and those it was compared with, on a planted model whose best
possible AUC is known (`large_batch.data`).

    python -m benchmarks.large_batch [tune] [run] [ablate]

DeepFM, D = 10; rows and dense part use Adam with Keras's eps; rows have dense semantics. `tune` searches learning rates
and L2 at the base batch of 16, with and without the clip, with two epochs, on the test split. `run` applies every rule
at 8, 64 and 128 times that batch, without retuning, and trains the base itself. `ablate` removes the parts of CowClip
one by one at the largest batch. Each run writes one JSON file to --out and is not repeated; several processes may share
the work. The table at the end shows all results in --out, whichever process made them.

AUC is measured on the whole test split after every epoch. Seconds are those of an epoch's training, without evaluation.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from pathlib import Path

from benchmarks.common import arguments, finish, machine
from benchmarks.large_batch.cases import ABLATIONS, BASE, QUICK, TUNED, VARIANTS, Job, Scale, Settings, base, scaled
from benchmarks.large_batch.data import ensure
from benchmarks.large_batch.table import print_runs, print_tuned
from benchmarks.once import Json, Quiet, once, read, train
from pipeline.errors import PipelineError
from pipeline.workflow import Workflow

STAGES = ("tune", "run", "ablate")
WAIT_SECONDS = 2.0


class NotTuned(Exception):
    """Raised if time ran out before a setting was tuned."""


class Bench:
    """One process's share of the runs: those that match `only`, begun before `deadline`."""

    def __init__(self, scale: Scale, data: Path, out: Path, threads: int, only: Sequence[str], deadline: float) -> None:
        self.scale, self._data, self.out = scale, data, out
        self._threads, self._only, self._deadline = threads, only, deadline
        self.known = ensure(scale.planted, data)

    def tune(self) -> None:
        """Tune one setting after another, each with the best values of the previous settings."""
        for clip in (False, True):
            for stage in range(len(TUNED)):
                self._tune_all(self._candidates(clip, stage))

    def _candidates(self, clip: bool, stage: int) -> list[Settings]:
        """Candidates for the setting that is tuned at this stage. Raises NotTuned if an earlier one is not tuned."""
        start = Settings(self.scale.row_lrs[0], self.scale.l2s[0], self.scale.dense_lrs[0], clip)
        best = self._best_of(self._candidates(clip, stage - 1)) if stage else start
        name, choices = TUNED[stage]
        return [best._replace(**{name: value}) for value in getattr(self.scale, choices)]

    def _tune_all(self, all_settings: Sequence[Settings]) -> None:
        """Return when all runs exist, whichever process made them, or time is up."""
        short = replace(self.scale, epochs=self.scale.tune_epochs)
        while time.monotonic() < self._deadline:
            for settings in all_settings:
                workflow = base(short, self._data, self._threads, settings, seed=1)
                self._once(settings.name, workflow, settings._asdict())
            if all(read(self.out / f"{settings.name}.json") for settings in all_settings):
                return
            time.sleep(WAIT_SECONDS)

    def _best_of(self, all_settings: Sequence[Settings]) -> Settings:
        """Settings with the best AUC. Raises NotTuned if some AUCs are unknown."""
        found = {settings: read(self.out / f"{settings.name}.json") for settings in all_settings}
        if missing := [settings.name for settings in found if found[settings] is None]:
            raise NotTuned(f"{', '.join(missing)} are missing in {self.out}: run the stage `tune`, to its end")
        return max(found, key=lambda settings: found[settings]["best"] or 0.0)

    def run(self) -> None:
        for s in sorted(self.scale.times, reverse=True):
            self._run_all(s, self.scale.rules)
        self._run_all(1, tuple(BASE))

    def ablate(self) -> None:
        self._run_all(max(self.scale.times), tuple(ABLATIONS))

    def _run_all(self, s: int, rules: Sequence[str]) -> None:
        # The first seed of all rules is run before the second of any.
        for job in (Job(s, rule, seed) for seed, rule in product(self.scale.seeds, rules)):
            if all(wanted in ("", str(part)) for wanted, part in zip(self._only, job, strict=False)):
                variant = VARIANTS[job.rule]
                settings = self._best_of(self._candidates(variant.tuned_with_clip, len(TUNED) - 1))._replace(
                    clip=variant.clip
                )
                workflow = base(self.scale, self._data, self._threads, settings, job.seed)
                self._once(job.name, scaled(workflow, variant, job.s), job._asdict())

    def _once(self, name: str, workflow: Workflow, who: Json) -> None:
        if time.monotonic() < self._deadline:
            once(self.out / f"{name}.json", lambda: who | self._run_one(name, workflow))

    def _run_one(self, name: str, workflow: Workflow) -> Json:
        progress, planted = Quiet(), self.scale.planted
        try:
            # Stages run one after another: the device tier holds all rows, and the processes use all cores anyway.
            result = train(workflow, self.out / f".{name}", progress, serial=True)
        except PipelineError as error:
            return {"failed": str(error), "best": None}
        tested = [epoch for epoch in result["epochs"] if epoch["split"] == "validation"]
        aucs = [epoch["auc"] for epoch in tested]
        begins = [epoch * (planted.train + planted.test) for epoch in range(len(aucs))]
        seconds = [progress.seconds(begin, begin + planted.train) for begin in begins]
        return {
            "best": max(aucs),
            "last": aucs[-1],
            "aucs": aucs,
            "logloss": [epoch["logloss"] for epoch in tested],
            "clipped": [epoch["clipped"] for epoch in result["epochs"] if "clipped" in epoch],
            "epoch_seconds": statistics.median([s for s in seconds if s is not None] or [float("nan")]),
            "seconds": result["seconds"],
            "optimizer": workflow.optimizer.model_dump(mode="json"),
        }


def options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(data=Path("data/large_batch"))
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"{', '.join(STAGES)}, summary (default: all)")
    parser.add_argument("--out", type=Path, default=Path("runs/large_batch"), help="a JSON file for each run")
    parser.add_argument(
        "--only", default="", metavar="S,RULE,SEED", help="of `run` and `ablate`; empty parts match all"
    )
    parser.add_argument("--budget-minutes", type=float, default=float("inf"), help="begin no run after so long")
    parser.add_argument("--threads", type=int, default=1, help="of a run")


def main() -> None:
    args = arguments("large_batch", __doc__ or "", options)
    print(machine())
    if unknown := set(args.stages) - {*STAGES, "summary"}:
        raise SystemExit(f"no stage {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}, summary")
    deadline = time.monotonic() + 60 * args.budget_minutes
    with ExitStack() as stack:
        out = args.out
        if args.quick:
            out = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=".", prefix=".benchmark-")))
        scale = QUICK if args.quick else Scale()
        bench = Bench(scale, args.data, out, args.threads, args.only.split(","), deadline)
        try:
            for stage in args.stages or STAGES:
                if stage in STAGES:
                    getattr(bench, stage)()
        except NotTuned as why:
            print(why)
        print_tuned(out)
        best = print_runs(out, bench.known["bayes_auc"])
    finish(args, {"bayes_auc": bench.known["bayes_auc"]} | best)


if __name__ == "__main__":
    main()
