"""Cost of what a run writes about itself while it trains: live.jsonl and the report.

    python -m benchmarks.observer [--repeats 10]

The observer gets the simulated results of 1,000 and of 100,000 blocks of 0.1 s. Then runs of the quickstart with and
without live.jsonl and the report take turns (`--repeats 0`: none); the machine must be otherwise idle for these.

Expected: at most 0.5 % of a core and at most 300 KiB; examples/s relative to those without are at least 0.97 at the
lower end of the 90 % interval.

The last line is JSON: `share_1000` and `share_100000`, CPU seconds of the observer relative to the time of the run;
`kib_1000` and `kib_100000`, size of the report; `on_vs_off` and `lower_end`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import arguments, finish, interval, machine
from benchmarks.observer.simulated import simulate

ROOT = Path(__file__).parents[2]
COMMANDS = {"on": "pipeline.run", "off": "benchmarks.observer.off"}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="a.b=value", help="change the workflow")


def speed(mode: str, args: argparse.Namespace) -> float:
    """Examples per second of a run in a separate process."""
    run_dir = args.data / "observer"
    shutil.rmtree(run_dir, ignore_errors=True)
    settings = [f"data.root={args.data / 'quickstart'}", *args.set]
    if args.quick:
        sizes = {"train_examples": 20_000, "validation_examples": 1_000, "test_examples": 1_000}
        settings = [f"data.root={args.data / 'observer_small'}", *(f"data.synthetic.{k}={v}" for k, v in sizes.items())]
    command = [sys.executable, "-m", COMMANDS[mode], str(ROOT / "workflows" / "quickstart.py")]
    command += [part for setting in settings for part in ("--set", setting)]
    output = subprocess.DEVNULL
    subprocess.run([*command, "--out", str(run_dir)], check=True, cwd=ROOT, stdout=output, stderr=output)
    return float(json.loads((run_dir / "result.json").read_text())["examples_per_second"])


def main() -> None:
    args = arguments("observer", "Cost of what a run writes about itself.", options)
    repeats = min(args.repeats, 1) if args.quick else args.repeats
    args.data = args.data.absolute()
    print(machine(), flush=True)
    figures: dict[str, float] = {}
    for num_blocks in (1000, 2000 if args.quick else 100_000):
        with tempfile.TemporaryDirectory() as folder:
            share, num_bytes = simulate(Path(folder), num_blocks)
        print(f"{num_blocks:,} blocks: {share:.3%} of a core, report of {num_bytes / 1024:,.0f} KiB", flush=True)
        figures |= {f"share_{num_blocks}": share, f"kib_{num_blocks}": num_bytes / 1024}
    speeds: dict[str, list[float]] = {"on": [], "off": []}
    for pair in range(repeats):
        for mode in ("off", "on") if pair % 2 else ("on", "off"):
            speeds[mode].append(speed(mode, args))
        print(f"pair {pair}: {speeds['on'][-1] / speeds['off'][-1]:.3f}", flush=True)
    if repeats:
        figures["on_vs_off"], figures["lower_end"] = interval(speeds["on"], speeds["off"])
    finish(args, figures)


if __name__ == "__main__":
    main()
