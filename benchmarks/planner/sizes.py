"""Caps chosen by a run against caps chosen manually.

    python -m benchmarks.planner.sizes [--repeats 3] [--real DIR]

Quickstart, Criteo's sample and Frappe, each with plenty of RAM (`storage` omitted) and with so little that half of the
table's rows fit (`storage.memory`), in the latter case in a control group with that limit, if one can be created
(version 1 of the memory controller, as root). Manual candidates divide the same number of bytes for rows: 9/10, 1/2 and
1/10 to the device, with blocks of 4 and of 16 batches; and the workflow's sizes. All take turns. Data sets that are not
in --real are omitted.

Expected: the chosen caps reach 0.9 of the best manual ones, and no process exceeds its memory.

The last line is JSON: `chosen_vs_best`, the lowest ratio of median examples/s over data sets and memory sizes, and
`peak_vs_memory`, the largest peak of RAM relative to `storage.memory`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.common import arguments, finish, machine
from benchmarks.once import Json
from pipeline.device.device import RAM
from pipeline.messages.sizes import parse_size
from pipeline.preflight.chosen_caps import choose_caps
from pipeline.preflight.setup import check
from pipeline.workflow import Storage, Workflow, load

ROOT = Path(__file__).parents[2]
GROUPS = Path("/sys/fs/cgroup/memory")
SHARES, BLOCKS = (0.9, 0.5, 0.1), (4, 16)
HALF = 0.5
LEAST = re.compile(r'set storage.memory to "([^"]+)"')
PROCESS_VARIES = 32 << 20
"""Difference in bytes between processes that do the same work. A table may be smaller than that."""
FITS_IN = 1 << 33
"""Memory size in which every table here fits."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--real", type=Path, default=Path("../shared/data"))
    parser.add_argument("--only", nargs="+", help="names of data sets")
    parser.add_argument("--scarce", action="store_true", help="only with little memory")


def workflows(real: Path, data: Path, quick: bool) -> dict[str, Workflow]:
    """Workflows by name, with their sizes in `storage`."""
    quickstart = load(ROOT / "workflows" / "quickstart.py")
    examples = {"train_examples": 20_000, "validation_examples": 1_000, "test_examples": 1_000} if quick else {}
    made = {
        "root": data / ("quickstart_small" if quick else "quickstart"),
        "synthetic": quickstart.data.synthetic.model_copy(update=examples),
    }
    found = {"quickstart": changed(quickstart, data=made, schedule={"epochs": 1})}
    folders = {"criteo": ("criteo_1tb_sample", 2), "frappe": ("frappe_x1", 6)}
    for name, (folder, epochs) in folders.items():
        if (real / folder).is_dir() and not quick:
            workflow = load(ROOT / "workflows" / f"{name}.py{':sample' if name == 'criteo' else ''}")
            pace = {"epochs": epochs, "plateau": None}
            found[name] = changed(workflow, data={"root": real / folder}, schedule=pace)
    return found


def changed(workflow: Workflow, **parts: Mapping[str, Any]) -> Workflow:
    return workflow.model_copy(
        update={name: getattr(workflow, name).model_copy(update=dict(part)) for name, part in parts.items()}
    )


def chosen(workflow: Workflow, memory: int) -> Storage:
    """Caps chosen by the workflow. Raises DoesNotFit if there is too little memory."""
    storage = Storage(memory=memory, chunk_rows=workflow.storage.chunk_rows)
    checked = check(workflow.model_copy(update={"storage": storage}), RAM, lambda line: None)
    try:
        return choose_caps(checked).storage
    finally:
        checked.source.close()


def scarce(workflow: Workflow, folder: Path) -> int:
    """Memory for one batch, as reported by a refused run, plus half of the rows that fit in plenty of memory."""
    plenty = chosen(workflow, FITS_IN)
    refused = workflow.model_copy(update={"storage": Storage(memory=1 << 20, chunk_rows=workflow.storage.chunk_rows)})
    said = LEAST.search(start(refused, folder, None).stderr)
    assert said, "expected a run to say how much memory it needs"
    return int(parse_size(said[1])) + int(HALF * (plenty.device + plenty.host)) + PROCESS_VARIES


def candidates(workflow: Workflow, memory: int | None) -> dict[str, Workflow]:
    """Workflows with chosen and with manual caps, by name."""
    own, caps = workflow.storage, chosen(workflow, FITS_IN)
    found = {"chosen": workflow.model_copy(update={"storage": Storage(memory=memory, chunk_rows=own.chunk_rows)})}
    found["chosen"] = changed(found["chosen"], schedule={"block_batches": 16})
    rows = (HALF if memory else 1) * (caps.device + caps.host)
    for share, batches in product(SHARES, BLOCKS):
        storage = Storage(
            device=int(share * rows), host=int((1 - share) * rows), disk=own.disk, read=own.read, map=caps.map,
            chunk_rows=own.chunk_rows,
        )  # fmt: skip
        by_hand = workflow.model_copy(update={"storage": storage})
        found[f"{share:.0%}, {batches}"] = changed(by_hand, schedule={"block_batches": batches})
    if memory is None:
        found["its own"] = workflow
    return found


@contextmanager
def group_of(memory: int | None):
    """A function that moves a process into a control group with this memory limit; None if not requested or not
    possible."""
    group = GROUPS / f"benchmark-{os.getpid()}"
    if memory is None or not os.access(GROUPS, os.W_OK):
        yield None
        return
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(memory))
        yield partial(lambda: (group / "cgroup.procs").write_text(str(os.getpid())))
    finally:
        group.rmdir()


def start(workflow: Workflow, folder: Path, enter: Callable[[], Any] | None) -> subprocess.CompletedProcess[str]:
    """Train in a separate process."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "case.json").write_text(workflow.model_dump_json())
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    command = [sys.executable, "-m", "benchmarks.planner.one", "case.json", "--run-dir", "run"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, preexec_fn=enter)


def one_run(workflow: Workflow, folder: Path, enter: Callable[[], Any] | None) -> Json | None:
    """Speed and peak of a run; None if its caps are refused."""
    done = start(workflow, folder, enter)
    if done.returncode or not (folder / "run" / "result.json").is_file():
        print(f"  {workflow.storage}: {done.stderr[-500:]}")
        return None
    result = json.loads((folder / "run" / "result.json").read_text())
    peak = json.loads(done.stdout.splitlines()[-1])["peak_bytes"]
    shutil.rmtree(folder)
    return {"speed": result["examples_per_second"], "peak": peak}


def main() -> None:
    args = arguments("planner.sizes", __doc__ or "", options)
    data, repeats = args.data.absolute(), 1 if args.quick else args.repeats
    print(machine())
    ratios, peaks = [], [0.0]
    for name, workflow in workflows(args.real.absolute(), data, args.quick).items():
        if args.only and name not in args.only:
            continue
        for limited in (True,) if args.scarce else (False, True):
            memory = scarce(workflow, data / "sizes") if limited else None
            cases = candidates(workflow, memory)
            runs: dict[str, list[Json]] = {case: [] for case in cases}
            with group_of(memory) as enter:
                for _, case in product(range(repeats), cases):
                    if run := one_run(cases[case], data / "sizes", enter):
                        runs[case].append(run)
            speeds = {case: statistics.median(run["speed"] for run in of) for case, of in runs.items() if of}
            memory_text = "plenty of memory" if memory is None else f"{memory >> 20} MiB{', limited' if enter else ''}"
            best = max((case for case in speeds if case != "chosen"), key=speeds.__getitem__)
            print(f"\n{name}, {memory_text}: " + "; ".join(f"{case}: {speed:,.0f}" for case, speed in speeds.items()))
            ratios.append(speeds.get("chosen", 0.0) / speeds[best])
            peak = max((run["peak"] for run in runs["chosen"]), default=0)
            print(f"chosen / best by hand ({best}): {ratios[-1]:.3f}; peak {peak >> 20} MiB", flush=True)
            if memory:
                peaks.append(peak / memory)
    finish(args, {"chosen_vs_best": min(ratios), "peak_vs_memory": max(peaks)})


if __name__ == "__main__":
    main()
