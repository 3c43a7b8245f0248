"""A trained model in use: scoring, serving and size.

The parts (`--parts`) can be run separately:

scoring   `pipeline score` against the run's own evaluation of the same split
serving   `pipeline serve`: 200 candidates of 26 fields, about 2,000 keys, at hit rates of 0, 90, 95 and 99 % of its
          cache. First a closed loop, then open loops (Poisson arrivals, latency from the intended start) at 50 and 80 %
          of its rate, and at four times its rate; the generator has one core, the server the other
size      memory of a server by number of keys, and the time to open the table

The tables are made each time and deleted. Needs at least two cores.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

from benchmarks.common import arguments, finish, machine
from benchmarks.serve.scoring import scoring
from benchmarks.serve.servables import check_space, small_servable, write_servable
from benchmarks.serve.serving import Scale, serving
from benchmarks.serve.size import size
from pipeline.machine.process import keep_freed_memory
from pipeline.storage.reader import allow_many_files

PARTS = ("scoring", "serving", "size")
QUICK = Scale(4 << 20, rounds=1, closed=30, seconds=0.5, overload_seconds=2.0)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--keys", type=int, default=20_000_000, help="rows of the served table (%(default)s)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[20_000_000, 200_000_000], help="rows of part `size`")
    parser.add_argument("--hidden", type=int, nargs="+", default=[400, 400, 400], help="layers of the served model")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of part `serving` (%(default)s)")


def run(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    scale = QUICK if args.quick else Scale(rounds=args.rounds)
    ratios: dict[str, float] = {}
    if "scoring" in args.parts:
        examples = (40_000, 40_000) if args.quick else (1_000_000, 3_000_000)
        ratios |= scoring(folder, 1 if args.quick else max(args.repeats, 5), *examples, args.quick)
        shutil.rmtree(folder / "run")
    if args.parts == ["scoring"]:
        return ratios
    small = small_servable(folder, tuple(args.hidden))
    if "serving" in args.parts:
        num_keys = check_space(folder, args.keys, small.page_format)
        table = write_servable(small, folder / "served", num_keys, keep_keys=True)
        print(f"\nserved: {table.num_keys:,} keys, MLP {args.hidden}", flush=True)
        ratios |= serving(table, scale)
        shutil.rmtree(table.folder)
    if "size" in args.parts:
        ratios |= size(small, folder, tuple(args.sizes), 8 << 20 if args.quick else 512 << 20)
    return ratios


def main() -> None:
    args = arguments("serve", __doc__ or "", options)
    if args.quick:
        args.keys, args.sizes, args.hidden = 400_000, [100_000], [64]
    print(machine())
    if len(os.sched_getaffinity(0)) < 2:
        print("one core only: generator and server share it, and latencies say nothing")
    keep_freed_memory()
    allow_many_files()
    args.data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.data, prefix="serve-") as name:
        ratios = run(args, Path(name).absolute())
    finish(args, ratios)


if __name__ == "__main__":
    main()
