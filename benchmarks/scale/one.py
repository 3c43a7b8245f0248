"""One measurement of `scale`, in a separate process, so that its peak memory is that of one table.

`python -m benchmarks.scale.one FOLDER RUN_DIR KEYS QUICK DIRECT` resumes from the commit in RUN_DIR, trains, commits,
and prints one line of JSON.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.once import Json
from benchmarks.scale.cases import FULL, QUICK, TABLE, Scale, make_workflow, open_driver
from pipeline.cluster.local import local_client
from pipeline.device.device import RAM
from pipeline.driver.driver import Driver
from pipeline.driver.loop import DueCommit
from pipeline.kernels.hashing import hash_integers, table_salt
from pipeline.machine.process import keep_freed_memory
from pipeline.preflight.setup import set_up
from pipeline.records import Block, StageCall, StageResult
from pipeline.storage.key_map import KeyMap, place
from pipeline.storage.reader import allow_many_files
from pipeline.worker.worker import Worker

FAR = 1 << 40
"""First of the values whose keys are new to every table."""


def peak_bytes() -> int:
    """Peak resident memory of this process. Unlike with getrusage, it does not start at that of the parent."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return 1024 * int(found[1])


def train(driver: Driver, blocks: Sequence[Block]) -> tuple[float, list[StageCall]]:
    """Train the blocks. Returns the seconds, including filling and draining of the pipeline, and the stages' calls."""
    calls: list[StageCall] = []

    def watch(done: StageResult) -> None:
        driver.history.add(done)
        calls.extend([done.call] if done.call else [])

    start = time.perf_counter()
    refusal = driver.crew.run(blocks, driver.setup.fit.look_ahead, watch)
    assert refusal is None, refusal.message
    return time.perf_counter() - start, calls


def stages(calls: Sequence[StageCall]) -> Json:
    """Seconds per block in `plan` and in `train`, wall and thread CPU time; and the longest `plan`."""
    seconds = {stage: [s.stop - s.start for s in calls if s.stage == stage] for stage in ("plan", "train")}
    cpu = {stage: [s.cpu_seconds for s in calls if s.stage == stage] for stage in ("plan", "train")}
    return {
        **{f"{stage}_s": statistics.median(of_blocks) for stage, of_blocks in seconds.items()},
        **{f"{stage}_cpu_s": statistics.median(of_blocks) for stage, of_blocks in cpu.items()},
        "longest_plan_s": max(seconds["plan"]),
        "longest_plan_cpu_s": max(cpu["plan"]),
    }


def map_of(worker: Worker) -> KeyMap:
    return worker.tiers.places.map


def inserts(key_map: KeyMap, scale: Scale) -> list[float]:
    """Thread CPU seconds of each insertion of a block whose keys are all new. Afterwards, the map does not match the
    tiers."""
    seconds, keys_U = [], np.empty(scale.block_keys, np.uint64)
    for block in range(scale.insert_blocks):
        hash_integers(FAR + block * len(keys_U) + np.arange(len(keys_U)), table_salt(TABLE), keys_U)
        places_U = place(0, np.arange(len(keys_U)))
        start = time.thread_time()
        key_map.insert(keys_U, places_U)
        seconds.append(time.thread_time() - start)
    return seconds


def measure(folder: Path, run_dir: Path, num_keys: int, scale: Scale, direct: bool) -> Json:
    """Open the run, train, commit. Times are in seconds, memory in bytes."""
    keep_freed_memory()
    allow_many_files()
    with local_client() as client:
        setup, source = set_up(make_workflow(folder / "data", num_keys, scale, direct), RAM, print)
        start = time.perf_counter()
        driver = open_driver(setup, source, run_dir, client)
        opened = time.perf_counter() - start
        (key_map,) = driver.crew.each(map_of)
        assert len(key_map) == num_keys
        assert setup.fit.block_batches == scale.block_batches, "the caps do not allow blocks of the full size"
        *blocks, following = driver.agenda.blocks(scale.block_batches)
        train(driver, blocks[: scale.warm_blocks])
        history, before = driver.history, driver.history.tiers.counts()["trained"].copy()
        measured = blocks[scale.warm_blocks :]
        seconds, calls = train(driver, measured)
        moves = {name: count - before[name] for name, count in history.tiers.counts()["trained"].items()}
        driver.commit(DueCommit(following))
        result = {
            "rate": sum(block.num_examples for block in measured) / seconds,
            "device_hits": moves["device_hits"] / moves["keys"],
            "host_hits": moves["host_hits"] / moves["keys"],
            "disk_hits": moves["disk_hits"] / moves["keys"],
            "new": moves["new"] / moves["keys"],
            "disk_rows": moves["disk_hits"] / sum(block.num_examples for block in measured),
            **stages(calls),
            "open_s": opened,
            "opened_keys": num_keys,
            "commit_s": history.disk.commit_seconds,
            "committed_rows": history.disk.rows_changed + history.disk.rows_merged,
            "map_bytes": key_map.num_bytes,
            "keys": len(key_map),
            "peak_bytes": peak_bytes(),
        }
        result["longest_insert_s"] = max(inserts(key_map, scale))
        driver.crew.close()
        source.close()
    return result


def main() -> None:
    folder, run_dir = map(Path, sys.argv[1:3])
    num_keys, quick, direct = map(int, sys.argv[3:])
    print(json.dumps(measure(folder, run_dir, num_keys, QUICK if quick else FULL, bool(direct))))


if __name__ == "__main__":
    main()
