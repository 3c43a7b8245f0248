"""A schedule whose tasks take given times on a virtual clock: nothing runs, and nothing is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pipeline.monitor.live.waits import Waits
from pipeline.records import Block, StageCall, StageResult
from pipeline.schedule import BlockSchedule, Executor, edges
from pipeline.stages import STAGES

ON_HOST = tuple(stage for stage in STAGES if stage not in ("unite", "scan", "upload"))
Takes = Callable[[str, int], float]
Parts = Callable[[str, int], tuple[tuple[str, float], ...]]


def block_of(number: int, split: str = "train") -> Block:
    return Block(number, split, 0, number, 1, 8 * number, 8, 8, number, False, number)


class Virtual:
    """Executor with one thread per stage, which starts each task as soon as possible."""

    def __init__(self, takes: Takes, parts: Parts, begins: float) -> None:
        self._takes, self._parts, self._begins = takes, parts, begins
        self.now = begins

    def submit(self, stage: str, number: int, after: Iterable[StageCall]) -> StageCall:
        start = self._start([call.stop for call in after])
        stop = start + self._takes(stage, number)
        self.now = max(self.now, stop)
        return StageCall(stage, number, start, stop, 0.0, parts=self._parts(stage, number))

    def _start(self, after: list[float]) -> float:
        return max([self._begins, *after])

    def result(self, call: StageCall) -> StageResult:
        return StageResult(call.stage, call.number, call)

    def settle(self, futures: list[StageCall]) -> None:
        pass


class InTurn(Virtual):
    """Executor with a single thread."""

    def _start(self, after: list[float]) -> float:
        return self.now


def waits_of(
    blocks: Iterable[Block], takes: Takes, look_ahead: int = 2, parts: Parts = lambda stage, number: (),
    stages: tuple[str, ...] = ON_HOST, in_turn: bool = False, begins: float = 100.0,
) -> tuple[Waits, float]:  # fmt: skip
    """Attribute the time of a stretch of these blocks. Returns the waits, and the time at which the stretch ended."""
    blocks = list(blocks)
    waits = Waits(edges, STAGES, not in_turn, on_gpu=False, now=begins)
    waits.begin_stretch(blocks, look_ahead, begins)
    executor: Executor = (InTurn if in_turn else Virtual)(takes, parts, begins)

    def watch(done: StageResult) -> None:
        assert done.call
        waits.add(done.call)

    numbers = range(blocks[0].number, blocks[-1].number + 1)
    BlockSchedule(numbers, look_ahead, stages, executor, watch).run()
    waits.end_stretch(executor.now)  # type: ignore[attr-defined]  # of a virtual one
    return waits, executor.now  # type: ignore[attr-defined]
