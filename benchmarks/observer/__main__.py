"""Cost of watching a run.

    python -m benchmarks.observer [--repeats 10]

Runs of the quickstart without and with live.jsonl take turns; then some with a page open and as many without. The
machine must be otherwise idle.

Expected: examples/s with the file relative to those without it are at least 0.97 at the lower end of the 90 % interval.
The observer takes at most 1 % of a core while no page is open; the thread that serves the page takes at most 3 % more
while one is open.

The last line is JSON: `on_vs_off` and `lower_end`; `observer_share`, CPU seconds of the observer relative to wall time;
`page_share`, CPU seconds of Dask's thread with a page open minus those without, relative to wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.common import arguments, finish, interval, machine
from pipeline.monitor.live.lines import LIVE, Said, Tick, read_live

ROOT = Path(__file__).parents[2]
LOOK = """
import sys, time
from bokeh.client import pull_session
session = pull_session(url=sys.argv[1])
while session.connected:
    session.force_roundtrip()
    time.sleep(0.5)
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="a.b=value", help="change the workflow")


def one(mode: str, args: argparse.Namespace, page: bool = False) -> dict[str, Any]:
    """Figures of a run in a separate process."""
    run_dir = args.data / "observer"
    shutil.rmtree(run_dir, ignore_errors=True)
    settings = [f"data.root={args.data / 'quickstart'}", *args.set]
    if args.quick:
        sizes = {"train_examples": 20_000, "validation_examples": 1_000, "test_examples": 1_000}
        settings = [f"data.root={args.data / 'observer_small'}", *(f"data.synthetic.{k}={v}" for k, v in sizes.items())]
    command = [sys.executable, "-m", "benchmarks.observer.one", mode, str(ROOT / "workflows" / "quickstart.py")]
    command += [part for setting in settings for part in ("--set", setting)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    with subprocess.Popen(
        [*command, "--run-dir", str(run_dir)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    ) as run:  # fmt: skip
        looker = look(run, run_dir) if page else None
        assert run.stdout
        measured = json.loads(run.stdout.read().splitlines()[-1])
    if looker:
        looker.kill()
        looker.wait()
    result = json.loads((run_dir / "result.json").read_text())
    ticks = [line for line in read_live(run_dir) if isinstance(line, Tick)] if mode == "on" else []
    observer = ticks[-1].observer_seconds if ticks else 0.0
    return {"speed": result["examples_per_second"], "seconds": result["seconds"], "observer": observer, **measured}


def look(run: subprocess.Popen[str], run_dir: Path) -> subprocess.Popen[bytes] | None:
    """Open the page of a run like a browser when its address is printed; None if the run ends before."""
    while run.poll() is None:
        with suppress(OSError):
            said = [line.text for line in read_live(run_dir) if isinstance(line, Said)]
            if pages := [text.split()[1] for text in said if text.startswith("page: ")]:
                return subprocess.Popen([sys.executable, "-c", LOOK, pages[0]], stderr=subprocess.DEVNULL)
        time.sleep(0.2)
    return None


def main() -> None:
    args = arguments("observer", "Cost of watching a run.", options)
    repeats = 1 if args.quick else args.repeats
    args.data = args.data.absolute()
    print(machine(), LIVE, flush=True)
    one("on", args)
    speeds: dict[str, list[float]] = {"on": [], "off": []}
    shares, pages = [], []
    for pair in range(repeats):
        runs = {mode: one(mode, args) for mode in (("off", "on") if pair % 2 else ("on", "off"))}
        for mode, of in runs.items():
            speeds[mode].append(of["speed"])
        shares.append(runs["on"]["observer"] / runs["on"]["seconds"])
        print(f"pair {pair}: {speeds['on'][-1] / speeds['off'][-1]:.3f}, observer {shares[-1]:.2%}", flush=True)
    for pair in range(max(1, repeats // 3)):
        plain, watched = one("on", args), one("on", args, page=True)
        share = [of["loop_seconds"] / of["seconds"] for of in (plain, watched)]
        pages.append(share[1] - share[0])
        print(f"page {pair}: thread of Dask {share[0]:.2%}, with a page open {share[1]:.2%}", flush=True)
    ratio, lower = interval(speeds["on"], speeds["off"])
    finish(args, {
        "on_vs_off": ratio, "lower_end": lower, "observer_share": max(shares),
        "page_share": max(0.0, statistics.median(pages)),
    })  # fmt: skip


if __name__ == "__main__":
    main()
