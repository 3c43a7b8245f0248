"""k-step Adam on Frappe_x1: loss of accuracy by period k, and a comparison of variants.

    python -m benchmarks.kstep [CASE ...] [--models plain batch_norm] [--seeds 1 2 3 4 5]

Four workers in one process (`kstep.replicas`): one exactly synchronous table of rows, and four replicas of DeepFM's
dense part with this package's `KStepDense`. D = 10, 400-400-400, batches of 1,024 examples, eight epochs, with and
without batch norm. There is no early stopping, so nothing is chosen by the test split. A case is a period (k1, k5 and
so on), a variant at k = 20, or `synchronous`, torch's Adam on summed gradients.

Each run writes one JSON file to --out and is not repeated; several processes may share the work. The table shows all
results in --out. The aim: for k <= 20 the mean AUC is at most 0.001 plus two standard errors below that of k = 1.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from itertools import product
from pathlib import Path

from benchmarks.accuracy.cases import stand_in
from benchmarks.common import arguments, finish, machine
from benchmarks.kstep.cases import MODELS, QUICK, Job, Scale, cases, workflow_of
from benchmarks.kstep.replicas import Replicas
from benchmarks.kstep.table import print_runs
from benchmarks.once import once

FILES = ("train.parquet", "test.parquet")


def options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(data=Path("../shared/data/frappe_x1"))
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: {' '.join(cases(Scale()))}")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--out", type=Path, default=Path("runs/kstep"), help="a JSON file for each run")


def check(names: list[str], scale: Scale, data: Path) -> None:
    if unknown := set(names) - cases(scale).keys():
        raise SystemExit(f"no case {', '.join(sorted(unknown))}; there are {', '.join(cases(scale))}")
    if missing := [file for file in FILES if not (data / file).is_file()]:
        raise SystemExit(
            f"{data} lacks {', '.join(missing)}: name the folder that holds Frappe_x1 as Parquet with --data, or see "
            "with --quick how it runs on stand-in data"
        )


def main() -> None:
    args = arguments("kstep", __doc__ or "", options)
    print(machine())
    scale = QUICK if args.quick else Scale()
    seeds, data, out = args.seeds, args.data, args.out
    with ExitStack() as stack:
        if args.quick:
            out = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=".", prefix=".benchmark-")))
            seeds, data = seeds[:1], out / "data"
            stand_in(data)
        names = args.cases or list(cases(scale))
        check(names, scale, data)
        out.mkdir(parents=True, exist_ok=True)
        # The first seed of all cases is run before the second of any.
        for job in (Job(model, case, seed) for seed, case, model in product(seeds, names, args.models)):
            workflow = workflow_of(job, scale, data)
            once(
                out / f"{job.name}.json",
                lambda: job._asdict() | Replicas(workflow, scale.workers).train(),  # noqa: B023
            )
        found = print_runs(out, cases(scale))
    finish(args, found)


if __name__ == "__main__":
    main()
