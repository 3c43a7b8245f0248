"""Cost of Dask with the shortest blocks, where it matters most; a part of `end_to_end`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.cases import Case
from pipeline.cluster.local import DaskExecutor
from pipeline.records import StageResult
from pipeline.schedule import BlockSchedule


def dask_cost(client: Any, case: Case) -> dict[str, float]:
    """Cost of Dask with a model of only first-order terms, whose blocks are the shortest possible.

    `cost`: CPU seconds of a block's Dask tasks that do nothing, divided by the CPU seconds of a block under the serial
    executor. `cpu` and `wall`: seconds of whole stretches under Dask, divided by those under the serial executor.
    Overlapping stages share caches and cores, so `cpu` includes more than the cost of Dask.
    """
    crew: Any = case.stretches.driver.crew
    crew._executor = None
    serial = _timed(lambda: case.stretches.run(case.blocks))
    crew._executor = client
    overlapped = _timed(lambda: case.stretches.run(case.blocks))
    executor = DaskExecutor(client, StageResult)
    blocks = range(60)
    empty = _timed(BlockSchedule(blocks, 2, crew.worker.stages.names, executor, lambda done: None).run)
    executor.close()
    return {
        "cost": empty[1] / len(blocks) / (serial[1] / case.blocks),
        "cpu": overlapped[1] / serial[1],
        "wall": overlapped[0] / serial[0],
        "ms_cpu_of_empty_tasks": 1000 * empty[1] / len(blocks),
        "ms_cpu_of_serial_block": 1000 * serial[1] / case.blocks,
    }


def _timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Wall seconds and CPU seconds of the process."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu
