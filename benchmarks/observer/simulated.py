"""Observer of a run whose stages are simulated: it gets the results of many blocks, and time is skipped, not waited
for."""

from __future__ import annotations

import time
from pathlib import Path

from pipeline.arguments import REPORT
from pipeline.monitor.history import History
from pipeline.monitor.live.lines import Begin, Tick, read_live
from pipeline.monitor.live.live_observer import LiveObserver
from pipeline.monitor.observer import ComingStretch, CommitFacts
from pipeline.monitor.page.page import ReportFile
from pipeline.records import Block, BlockResult, Moves, StageCall, StageResult
from pipeline.schedule import edges
from pipeline.stages import STAGES

SECONDS = {"read": 0.03, "dedup": 0.02, "plan": 0.01, "prefetch": 0.05, "train": 0.09, "write_back": 0.02}
"""Seconds of a block in each stage."""
BLOCK_SECONDS, EXAMPLES = 0.1, 8192
EPOCH, COMMIT, LOOK_AHEAD = 500, 100, 2
"""Blocks of an epoch, the last of which is evaluated; blocks between commits; look-ahead."""
METRICS = {"auc": 0.78, "logloss": 0.45, "ne": 0.81, "calibration": 1.01, "examples": float(EXAMPLES)}
SETTINGS = {f"section{n % 9}.setting{n}": n for n in range(90)}


class Clock:
    """Real time plus the seconds that were skipped."""

    def __init__(self) -> None:
        self.skipped = 0.0

    def __call__(self) -> float:
        return time.perf_counter() + self.skipped


def simulate(run_dir: Path, num_blocks: int) -> tuple[float, int]:
    """Return the CPU seconds that the observer of a run of this many blocks takes a second, and the bytes of its
    report."""
    clock = Clock()
    begin = Begin(
        at=0.0, examples=0, name="simulated", total=EXAMPLES * num_blocks, epochs=-(-num_blocks // EPOCH),
        batch_size=EXAMPLES, workers=1, device="cpu", row_bytes=112, disk_cap_bytes=1 << 40, versions={"python": "3"},
    )  # fmt: skip
    observer = LiveObserver(ReportFile(run_dir, SETTINGS, clock), begin, STAGES, edges, True, clock)
    history = History()
    observer.on_begin(0, history, None)
    for first in range(0, num_blocks, COMMIT):
        blocks = [block_of(number) for number in range(first, min(first + COMMIT, num_blocks))]
        observer.on_stretch(ComingStretch(blocks, 1, LOOK_AHEAD, 0.01, 0.001))
        for block in blocks:
            clock.skipped += BLOCK_SECONDS
            for done in results_of(block, clock()):
                history.add(done)
                observer.on_stage(done)
        observer.on_drained()
        observer.on_commit(CommitFacts(1 + first // COMMIT, None, 10 * first, 20 * first, clock()))
    observer.on_end("finished", "")
    last = [line for line in read_live(run_dir) if isinstance(line, Tick)][-1]
    return last.observer_seconds / last.seconds, (run_dir / REPORT).stat().st_size


def block_of(number: int) -> Block:
    epoch, at = divmod(number, EPOCH)
    split = "validation" if at == EPOCH - 1 else "train"
    return Block(number, split, epoch, at, 1, at * EXAMPLES, EXAMPLES, EXAMPLES, number, split != "train", number)


def results_of(block: Block, now: float) -> list[StageResult]:
    """Results of the stages of a block that has just been written back."""
    calls = [StageCall(stage, block.number, now - seconds, now, seconds) for stage, seconds in SECONDS.items()]
    moves = Moves(4000, 3000, 500, 300, 200, 500, 10, 200, arrives=block.trains)
    trained = BlockResult(block, 0.45, {} if block.trains else METRICS)
    return [
        StageResult(
            call.stage, block.number, call, moves=moves if call.stage == "plan" else None,
            trained=trained if call.stage == "train" else None,
        )
        for call in calls
    ]  # fmt: skip
