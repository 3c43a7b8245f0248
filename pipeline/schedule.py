"""Schedule of the stages: the edges of the task graph, and the blocks kept in flight. The edges determine what may
overlap and ensure that no update is lost.

While block i trains, blocks i+1 .. i+L are planned and prefetched, and blocks up to i+2L are read and deduplicated.
`plan(i)` never evicts a row that a block of i .. i+L needs. So the next block j that needs an evicted row comes after
block i+L, and `prefetch(j)` waits for `write_back(j-L-1)`. By then the row is where the map says. Nothing else orders
the stages: there are no locks, and a running task never waits for another stage.

Buffers are rings indexed by block number: 2L+1 read buffers, L+1 staging and L+1 outgoing buffers. The same edges free
them: `read` reuses the buffer of a block that `train` has finished, and the `write_back` that `prefetch` waits for has
emptied the staging and outgoing buffers of its block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pipeline.records import Refusal, StageResult
from pipeline.stages import STAGES

FAR_AHEAD = STAGES[: STAGES.index("scan")]
"""Stages that run up to 2L blocks ahead of `train`."""
Task = tuple[str, int]
Future = Any


def edges(stage: str, i: int, look_ahead: int) -> list[Task]:
    """Tasks that `stage` of block i waits for. Since stages have state, each one also waits for the same stage of block
    i-1."""
    after: dict[str, list[Task]] = {
        "read": [("train", i - 2 * look_ahead - 1)],
        "dedup": [("read", i)],
        # For all workers: with several workers, the executor waits for the task of each one.
        "unite": [("dedup", i)],
        "scan": [("plan", i - 1)],
        "plan": [("scan", i), *(("unite", i + ahead) for ahead in range(look_ahead + 1))],
        "prefetch": [("plan", i), ("write_back", i - look_ahead - 1)],
        "upload": [("prefetch", i)],
        "train": [("upload", i)],
        "write_back": [("train", i)],
    }
    return [(stage, i - 1), *after[stage]]


class Executor(Protocol):
    """Runs stages. The driver passes it names of stages and block numbers, never arrays."""

    def submit(self, stage: str, number: int, after: list[Future]) -> Future:
        """Run a stage after all tasks of `after` have finished."""

    def result(self, future: Future) -> StageResult:
        """Wait for a task and return its result, or raise its exception."""

    def settle(self, futures: list[Future]) -> None:
        """Wait until none of these tasks is running, whether it succeeded or failed."""


class SerialExecutor:
    """Runs stages in one thread, in order, without Dask. The reference executor, and the easiest to debug."""

    def __init__(self, call: Callable[[str, int], StageResult]) -> None:
        self._call = call

    def submit(self, stage: str, number: int, after: list[Future]) -> StageResult:
        return self._call(stage, number)

    def result(self, future: StageResult) -> StageResult:
        return future

    def settle(self, futures: list[Future]) -> None:
        """Do nothing: nothing runs outside `submit`."""


class BlockSchedule:
    """Submits the stages of `blocks` to an executor and passes their results to `watch`, block by block."""

    def __init__(
        self,
        blocks: range,
        look_ahead: int,
        stages: Sequence[str],
        executor: Executor,
        watch: Callable[[StageResult], None],
        edges: Callable[[str, int, int], list[Task]] = edges,
    ) -> None:
        self._blocks = blocks
        self._look_ahead = look_ahead
        self._stages = stages
        self._executor = executor
        self._watch = watch
        self._edges = edges
        self._futures: dict[Task, Future] = {}
        self._refusal: Refusal | None = None

    def run(self) -> Refusal | None:
        """Run all blocks, or those before the first refused one. Returns the refusal, or None, when nothing is in
        flight.

        If a stage raises, no more tasks are submitted, and the exception is re-raised after the running tasks have
        ended.
        """
        try:
            return self._run()
        except BaseException:
            self._executor.settle(list(self._futures.values()))
            raise

    def _run(self) -> Refusal | None:
        ahead = 2 * self._look_ahead
        for i in self._blocks[:ahead]:
            self._submit_block(i, FAR_AHEAD)
        for i in self._blocks:
            self._submit_block(i + ahead, FAR_AHEAD)
            self._submit_block(i, STAGES[len(FAR_AHEAD) :])
            self._retire(i - ahead - 2)
            if self._refusal:
                break
        for i in self._blocks:
            self._retire(i)
        return self._refusal

    def _submit_block(self, i: int, stages: Sequence[str]) -> None:
        if i in self._blocks:
            for stage in stages:
                if stage in self._stages:
                    self._submit(stage, i)

    def _submit(self, stage: str, i: int) -> None:
        # A stage without work on this device is not submitted; tasks then wait for the previous stage instead.
        tasks = [self._present(task) for task in self._edges(stage, i, self._look_ahead)]
        after = [self._futures[task] for task in tasks if task in self._futures]
        self._futures[stage, i] = self._executor.submit(stage, i, after)

    def _present(self, task: Task) -> Task:
        stage, i = task
        return task if stage in self._stages else (STAGES[STAGES.index(stage) - 1], i)

    def _retire(self, i: int) -> None:
        """Wait for a block's tasks. Until then their futures stay referenced, because Dask would otherwise cancel the
        tasks."""
        for stage in self._stages:
            if (stage, i) in self._futures:
                done = self._executor.result(self._futures[stage, i])
                self._refusal = self._refusal or done.refusal
                self._watch(done)
                del self._futures[stage, i]
