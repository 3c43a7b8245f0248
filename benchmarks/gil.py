"""Number of Python calls, and time with the GIL held, per stage and block.

The quickstart trains through three tiers. In one stretch of blocks, py-spy samples the stack of the thread that holds
the GIL; in another, calls of Python and C functions are counted in each stage's thread. If py-spy is not installed
(`pip install -e '.[dev]'`), only calls are counted. A thread that waits for a CPU keeps the GIL, so the machine must be
idle.

The table has a line for each thread and, below it, for each function in which the thread held the GIL for more than 1 %
of the wall time, including the functions called. Figures: milliseconds with the GIL, and calls, per block; and `held`,
the share of wall time in which any thread held the GIL. `dask` is the event loop; `main` submits the stages' tasks.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import arguments, finish, machine
from benchmarks.table import Stretches
from pipeline.cluster.local import local_client
from pipeline.device.gpu import choose
from pipeline.machine.allocator import keep_freed_memory
from pipeline.preflight.setup import set_up
from pipeline.records import StageResult
from pipeline.stages import STAGES
from pipeline.worker.stage_runner import StageRunner
from pipeline.workflow import Workflow, load

ROOT = Path(__file__).parents[1]
HERTZ, SHARE = 500, 0.01
"""Samples per second; minimum share of the wall time for a function to get a line."""
BLOCKS, QUICK_BLOCKS, CHUNKS_OF_A_BLOCK = 60, 4, 4
NAMES = {"IO loop": "dask", "MainThread": "main"}
SET_PTRACER, ANY_PROCESS = 0x59616D61, ctypes.c_ulong(-1)


def name_of(thread: str) -> str:
    """Stage of a thread or of its helpers, whose names end with a number; "other" for threads that belong to no
    stage."""
    stage = re.sub(r"_\d+$", "", thread)
    return stage if stage in STAGES else NAMES.get(thread, "other")


def quickstart(root: Path, quick: bool) -> Workflow:
    plain = load(ROOT / "workflows" / "quickstart.py")
    data = plain.data.model_copy(update={"root": root / "gil"})
    if quick and data.synthetic:
        small = {"train_examples": 200_000, "validation_examples": 5000, "test_examples": 5000}
        data = data.model_copy(update={"synthetic": data.synthetic.model_copy(update=small)})
    return plain.model_copy(update={"data": data})


def sampled(work: Callable[[], object], raw: Path) -> tuple[float, list[tuple[str, list[str], float]]]:
    """Do work under py-spy. Returns its wall seconds and, for each stack, the thread, the functions from the outermost
    on, and the seconds with the GIL."""
    ctypes.CDLL(None).prctl(SET_PTRACER, ANY_PROCESS, 0, 0, 0)
    command = ["py-spy", "record", "--gil", "--threads", "--format", "raw", "--rate", str(HERTZ), "--output", str(raw)]
    with subprocess.Popen([*command, "--pid", str(os.getpid())], stdout=subprocess.DEVNULL) as spy:
        time.sleep(1.0)
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        spy.send_signal(signal.SIGINT)
    return seconds, list(_stacks(raw.read_text() if raw.exists() else ""))


def _stacks(text: str) -> Iterator[tuple[str, list[str], float]]:
    for line in text.splitlines():
        stack, _, samples = line.rpartition(" ")
        thread, *functions = stack.split(";")
        yield name_of(thread.partition("): ")[2]), [f.rpartition(":")[0] for f in functions], int(samples) / HERTZ


def calls_of(stages: StageRunner, work: Callable[[], object]) -> Counter[str]:
    """Do work and count the calls of each stage in its own thread."""
    calls, run = Counter[str](), stages.run

    def counted(stage: str, number: int) -> StageResult:
        def count(frame: Any, event: str, argument: object) -> None:
            if event.endswith("call"):
                calls[stage] += 1

        sys.setprofile(count)
        try:
            return run(stage, number)
        finally:
            sys.setprofile(None)

    stages.run = counted  # type: ignore[method-assign,assignment]
    work()
    return calls


def report(seconds: float, stacks: list[tuple[str, list[str], float]], calls: Counter[str], blocks: int) -> None:
    held, within = Counter[str](), Counter[tuple[str, str]]()
    for thread, functions, took in stacks:
        held[thread] += took
        within.update(dict.fromkeys(((thread, f) for f in set(functions) if "pipeline/" in f), took))
    print(f"{'':60} {'ms a block':>10} {'of wall':>8} {'calls':>9}")
    for thread in sorted(held.keys() | calls.keys(), key=lambda name: -held[name]):
        took = held[thread]
        print(f"{thread:60} {1e3 * took / blocks:10.2f} {took / seconds:8.1%} {calls[thread] / blocks:9,.0f}")
        for (where, function), inner in within.most_common():
            if where == thread and inner > SHARE * seconds:
                print(f"    {function:56} {1e3 * inner / blocks:10.2f} {inner / seconds:8.1%}")


def main() -> None:
    args = arguments("gil", __doc__ or "")
    print(machine())
    keep_freed_memory()
    args.data.mkdir(parents=True, exist_ok=True)
    blocks, figures = QUICK_BLOCKS if args.quick else BLOCKS, {}
    with tempfile.TemporaryDirectory(dir=args.data) as folder, local_client() as client:
        setup, source = set_up(quickstart(args.data, args.quick), choose("cpu"), print)
        stretches = Stretches(setup, source, Path(folder), client)

        def train() -> None:
            # As after a commit: these stretches do not commit, and the log may continue to grow.
            stretches.worker.tiers.places.begin_growth(CHUNKS_OF_A_BLOCK * blocks)
            stretches.run(blocks)

        train()
        seconds, stacks = sampled(train, Path(folder) / "raw") if shutil.which("py-spy") else (1.0, [])
        calls = calls_of(stretches.worker.stages, train)
        stretches.worker.close()
    report(seconds, stacks, calls, blocks)
    for thread in ("dask", "main", *STAGES) if stacks else ():
        took = sum(took for name, _, took in stacks if name == thread)
        figures[f"{thread}_ms"] = 1e3 * took / blocks
    figures |= {f"{stage}_calls": calls[stage] / blocks for stage in STAGES if calls[stage]}
    if stacks:
        figures["held"] = sum(took for *_, took in stacks) / seconds
    finish(args, figures)


if __name__ == "__main__":
    main()
