"""Overlap of stages without Dask: a thread for each."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from pipeline.records import StageResult
from pipeline.stages import STAGES


class ThreadExecutor:
    """Executor of a schedule that runs each stage on a separate thread."""

    def __init__(self, call: Callable[[str, int], StageResult]) -> None:
        self._call = call
        self._threads = {stage: ThreadPoolExecutor(1, thread_name_prefix=stage) for stage in STAGES}

    def submit(self, stage: str, number: int, after: list[Future[StageResult]]) -> Future[StageResult]:
        return self._threads[stage].submit(self._run, stage, number, after)

    def _run(self, stage: str, number: int, after: list[Future[StageResult]]) -> StageResult:
        # A stage waits for earlier stages and for itself at earlier blocks alone, so some thread can always continue.
        wait(after)
        return self._call(stage, number)

    def result(self, future: Future[StageResult]) -> StageResult:
        return future.result()

    def settle(self, futures: list[Future[StageResult]]) -> None:
        wait(futures)

    def close(self) -> None:
        for threads in self._threads.values():
            threads.shutdown()
