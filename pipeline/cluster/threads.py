"""An executor without Dask: each stage has its own thread in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from pipeline.records import StageResult
from pipeline.stages import STAGES


def stage_threads() -> dict[str, ThreadPoolExecutor]:
    """Create one thread per stage, named after it, so that Dask's dashboard has a row per stage and thread lists
    (py-spy) show the role of each thread."""
    return {stage: ThreadPoolExecutor(1, thread_name_prefix=stage) for stage in STAGES}


def end_threads(threads: Iterable[ThreadPoolExecutor]) -> None:
    for thread in threads:
        thread.shutdown()


class ThreadExecutor:
    """Runs each stage on its own thread."""

    def __init__(self, call: Callable[[str, int], StageResult]) -> None:
        self._call, self._threads = call, stage_threads()

    def submit(self, stage: str, number: int, after: list[Future[StageResult]]) -> Future[StageResult]:
        return self._threads[stage].submit(self._run, stage, number, after)

    def _run(self, stage: str, number: int, after: list[Future[StageResult]]) -> StageResult:
        # A stage waits only for earlier stages and for itself at earlier blocks, so some thread can always proceed.
        for future in after:
            future.result()
        return self._call(stage, number)

    def result(self, future: Future[StageResult]) -> StageResult:
        return future.result()

    def settle(self, futures: list[Future[StageResult]]) -> None:
        wait(futures)

    def close(self) -> None:
        end_threads(self._threads.values())
