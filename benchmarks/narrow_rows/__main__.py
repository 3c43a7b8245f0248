"""AUC with rows of 16-bit words, compared with float32 seed by seed.

    python -m benchmarks.narrow_rows [CASE ...] [--semantics lazy dense] [--seeds 10] [--minutes M]

For each case, semantics and format: the mean over seeds of the difference in test AUC from float32 rows with the same
seed, and two standard errors of this mean. The seed determines the order of examples, the initial weights and the
rounding. Each run writes one JSON file to --out and is not repeated; the table shows all results in --out. `--real`
names the folder with frappe_x1 and criteo_1tb_sample; cases without data are omitted.

The last line is JSON: `worst_mean`, the mean difference with the largest magnitude, and `worst_error`, the largest two
standard errors, over all cases with at least ten seeds, and the number of these cases.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import ExitStack
from itertools import product
from pathlib import Path

from benchmarks.common import arguments, finish, machine
from benchmarks.narrow_rows.cases import CASES, STORED, workflow_of
from benchmarks.once import Json, Quiet, once, read, train

SEMANTICS = ("lazy", "dense")
ENOUGH_SEEDS = 10


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: {' '.join(CASES)}")
    parser.add_argument("--semantics", nargs="+", choices=SEMANTICS, default=list(SEMANTICS))
    parser.add_argument("--formats", nargs="+", choices=list(STORED), default=list(STORED))
    parser.add_argument("--seeds", type=int, default=ENOUGH_SEEDS)
    parser.add_argument("--real", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, default=Path("runs/narrow_rows"), help="a JSON file for each run")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no run after this time")


def one_run(case: str, root: Path, semantics: str, stored: str, seed: int, out: Path, quick: bool) -> Json:
    workflow = workflow_of(case, root, semantics, stored, seed, quick)
    result = train(workflow, out / "runs" / f"{case}_{semantics}_{seed}_{list(STORED).index(stored)}", Quiet(), True)
    test = result["epochs"][-1]
    return {"auc": test["auc"], "logloss": test["logloss"], "seconds": result["seconds"]}


def path_of(out: Path, case: str, semantics: str, stored: str, seed: int) -> Path:
    return out / f"{case}_{semantics}_{stored.replace(', ', '_').replace(' ', '_')}_{seed}.json"


def differences(out: Path, case: str, semantics: str, stored: str, seeds: int) -> list[float]:
    """Differences in AUC from float32 rows, for the seeds with which both were trained."""
    found = []
    for seed in range(seeds):
        narrow, whole = (read(path_of(out, case, semantics, of, seed)) for of in (stored, "float32"))
        if narrow and whole:
            found.append(narrow["auc"] - whole["auc"])
    return found


def print_table(out: Path, args: argparse.Namespace) -> dict[str, float]:
    means, errors = [0.0], [0.0]
    cells = 0.0
    print(f"{'case':18}{'semantics':10}{'format':22}{'seeds':>6}{'mean':>11}{'2 errors':>11}{'float32':>9}")
    for case, semantics, stored in product(CASES, SEMANTICS, list(STORED)[1:]):
        found = differences(out, case, semantics, stored, args.seeds)
        if len(found) < 2:
            continue
        whole = [read(path_of(out, case, semantics, "float32", seed)) for seed in range(args.seeds)]
        auc = statistics.mean(one["auc"] for one in whole if one)
        mean, error = statistics.mean(found), 2 * statistics.stdev(found) / len(found) ** 0.5
        print(f"{case:18}{semantics:10}{stored:22}{len(found):6}{mean:+11.5f}{error:11.5f}{auc:9.4f}")
        if len(found) >= ENOUGH_SEEDS:
            cells += 1
            means.append(mean)
            errors.append(error)
    return {"worst_mean": max(map(abs, means)), "worst_error": max(errors), "cells": cells}


def main() -> None:
    args = arguments("narrow_rows", __doc__ or "", options)
    print(machine())
    end = time.monotonic() + 60 * args.minutes
    with ExitStack() as stack:
        real, out, seeds, formats = args.real, args.out, range(args.seeds), args.formats
        cases = args.cases or list(CASES)
        if args.quick:
            out = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=".", prefix=".benchmark-")))
            real, seeds, formats = out / "data", range(2), formats[:2]
            cases = args.cases or ["planted", "frappe_small"]
        out.mkdir(parents=True, exist_ok=True)
        for seed, case, semantics, stored in product(seeds, cases, args.semantics, formats):
            root = args.data if case == "planted" and not args.quick else real
            folder = {
                "frappe_small": "frappe_x1",
                "frappe_published": "frappe_x1",
                "criteo_sample": "criteo_1tb_sample",
            }
            missing = case in folder and not args.quick and not (real / folder[case]).is_dir()
            if missing or time.monotonic() > end:
                continue
            once(
                path_of(out, case, semantics, stored, seed),
                lambda: one_run(case, root, semantics, stored, seed, out, args.quick),  # noqa: B023
            )
        ratios = print_table(out, args)
    finish(args, ratios)


if __name__ == "__main__":
    main()
