"""Foresight against the clock in runs of the whole pipeline, pair by pair.

    python -m benchmarks.policies.runs [--pairs 10] [--blocks 8] [--quick]

A table of 20 M rows with slabs of 10 % of it, MLP 64, the log read with direct I/O; and a table of 2 M rows that fits
the device. Runs with both policies are open in one process and train the same blocks in alternating order. The last
line is JSON: geometric means of the ratios of examples/s and the lower ends of their 90 % intervals. Aims: 1.1 for the
lower end and 1.25 for the mean if rows come from disk, 0.97 for the lower end if all fit.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.cases import Case, make_workflow
from benchmarks.common import arguments, finish, interval, machine, spread
from pipeline.cluster.local import local_client
from pipeline.machine.process import keep_freed_memory
from pipeline.monitor.history import StageTimes
from pipeline.records import StageCall

POLICIES = ("clock", "foresight")


@dataclass(frozen=True)
class Scale:
    """Sizes of everything; a quick run only shows that it works, its speeds mean nothing."""

    batch: int = 8192
    block_batches: int = 16
    keys: int = 20_000_000
    keys_that_fit: int = 2_000_000
    data_batches: int = 1280
    ring_rows: int = 1_200_000
    blocks: int = 8
    warm_blocks: int = 40


QUICK = Scale(256, 4, 200_000, 150_000, 80, 60_000, 2, 4)


def open_case(name: str, policy: str, fits: bool, scale: Scale, data: Path, tmp: Path, client: Any) -> Case:
    """Open a run with the policy on both tiers, and train until its tiers are full."""
    keys = scale.keys_that_fit if fits else scale.keys
    sizes = {
        "slab_rows": keys if fits else max(keys // 20, scale.ring_rows // 2),
        "host_rows": 1000 if fits else keys // 20,
        "ring_rows": scale.ring_rows, "batch_size": scale.batch, "block_batches": scale.block_batches,
    }  # fmt: skip
    workflow = make_workflow(name, data, keys, scale.data_batches * scale.batch, (64,), **sizes)
    given = {"device_policy": policy, "host_policy": policy, "direct": True}
    workflow = workflow.model_copy(update={"storage": workflow.storage.model_copy(update=given)})
    case = Case(workflow, tmp / name, client, scale.blocks)
    case.stretches.run(scale.warm_blocks)
    return case


def compare(
    cases: dict[str, Case], pairs: int
) -> tuple[dict[str, list[float]], dict[str, list[StageCall]], dict[str, int]]:
    """Examples/s of each pair, the calls of all stages, and rows read from disk."""
    rates: dict[str, list[float]] = {name: [] for name in cases}
    calls: dict[str, list[StageCall]] = {name: [] for name in cases}
    before = {name: case.stretches.disk_rows_read for name, case in cases.items()}
    for pair in range(pairs):
        for name in list(cases)[:: 1 if pair % 2 else -1]:
            rate, of_stages = cases[name].stretches.run(cases[name].blocks)
            rates[name].append(rate)
            calls[name] += of_stages
    return rates, calls, {name: case.stretches.disk_rows_read - before[name] for name, case in cases.items()}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=10, help="pairs of stretches, at least 2")
    parser.add_argument(
        "--blocks",
        type=int,
        help=f"blocks of a stretch, each of which fills the pipeline once; default: {Scale.blocks}",
    )


def scale_of(args: argparse.Namespace) -> Scale:
    scale = QUICK if args.quick else Scale()
    return replace(scale, blocks=args.blocks or scale.blocks)


def main() -> None:
    args = arguments("policies.runs", __doc__ or "", options)
    print(machine())
    keep_freed_memory()
    scale, pairs, ratios = scale_of(args), 2 if args.quick else args.pairs, {}
    for what, fits in (("disk", False), ("fits", True)):
        with ExitStack() as stack:
            tmp = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=".", prefix=".benchmark-")))
            client = stack.enter_context(local_client())
            cases = {}
            for policy in POLICIES:
                name = f"{policy}-{what}"
                cases[policy] = open_case(name, policy, fits, scale, args.data, tmp, client)
                stack.callback(cases[policy].close)
            rates, calls, rows = compare(cases, pairs)
        examples = pairs * scale.blocks * scale.block_batches * scale.batch
        for policy, values in rates.items():
            seconds = {
                stage: round(s / (pairs * scale.blocks), 4)
                for stage, s in StageTimes(calls[policy]).cpu_seconds.items()
            }
            print(f"{what} {policy:10} {spread(values)}; {rows[policy] / examples:.3f} rows an example from disk")
            print(f"    CPU seconds of a block: {seconds}", flush=True)
        ratios[f"foresight_vs_clock_{what}"], ratios[f"lower_end_{what}"] = interval(
            *(rates[p] for p in POLICIES[::-1])
        )
    finish(args, ratios)


if __name__ == "__main__":
    main()
