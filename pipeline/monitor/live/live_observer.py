"""The observer that writes live.jsonl, and the report while the run trains. A failed write ends no run. Writes are not
synced to disk."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.machine.limits import resident_bytes
from pipeline.metrics.totals import COUNTS
from pipeline.monitor.history import History
from pipeline.monitor.live.lines import LIVE, Begin, CommitDone, Ended, Evaluated, LiveLine, Said, Tick, every_second
from pipeline.monitor.live.waits import Edges, Waits, what_binds
from pipeline.monitor.observer import ComingStretch, CommitFacts, Observer, Outcome
from pipeline.monitor.page.page import ReportFile
from pipeline.records import BlockResult, Moves, StageResult

SECONDS_A_TICK = 1.0
MAX_FILE_BYTES = 16 << 20
"""About a second of reading for the report of a resumed run."""


class LiveObserver(Observer):
    """Observer that writes the state of a run once a second, and its events as they occur."""

    def __init__(
        self, report: ReportFile, begin: Begin, stages: tuple[str, ...], edges: Edges, overlaps: bool,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        """`report`: follows the lines; live.jsonl is in the same folder. `begin`: the first line, whose `at` and
        `examples` are filled in here. `stages`, `edges`: those of the schedule. `overlaps`: see `Waits`."""
        self._report, self._begin, self._clock = report, begin, clock
        self._new_waits = lambda now: Waits(edges, stages, overlaps, begin.device != "cpu", now)
        self._file = LiveFile(report.run_dir)
        self._cpu = 0.0
        self.ended: Ended | None = None
        """The last line; None until the session ends."""
        self._reset(0, History(), None)

    def on_begin(self, examples: int, history: History, commit: CommitFacts | None) -> None:
        with self._counted():
            self._reset(examples, history, commit)
            begin = self._begin.model_copy(update={"at": time.time(), "examples": examples})
            self._write(begin, begins=True)

    def _reset(self, examples: int, history: History, commit: CommitFacts | None) -> None:
        self.waits = self._new_waits(self._clock())
        self._history, self._examples = history, examples
        self._log_rows, self._written_rows = commit.log_rows if commit else 0, 0
        self._tick_at = -math.inf
        self._newest: BlockResult | None = None
        self._parts: dict[str, float] = {}
        self._losses: list[tuple[float, float]] = []
        self._rates = 0.0, 0.0

    def on_stretch(self, stretch: ComingStretch) -> None:
        with self._counted():
            self._rates = stretch.lr_rows, stretch.lr_dense
            self.waits.begin_stretch(stretch.blocks, stretch.look_ahead, self._clock())

    def on_stage(self, done: StageResult) -> None:
        with self._counted():
            if call := done.call:
                self.waits.add(call)
                for name, seconds in call.parts:
                    self._parts[name] = self._parts.get(name, 0.0) + seconds
            if done.moves:
                self._move(done.moves)
            if done.trained:
                self._train(done.trained)
            now = self._clock()
            if done.stage == "write_back" and self._newest and now - self._tick_at >= SECONDS_A_TICK:
                self._tick(now)

    def on_drained(self) -> None:
        with self._counted():
            self.waits.end_stretch(self._clock())

    def on_commit(self, commit: CommitFacts) -> None:
        with self._counted():
            now = self._clock()
            self.waits.spent("start", commit.began)
            self.waits.spent("commit", now)
            self._log_rows, self._written_rows = commit.log_rows, 0
            self._write(
                CommitDone(
                    at=time.time(), number=commit.number, name=commit.name, seconds=self._seconds_at(commit.began),
                    took=max(0.0, now - commit.began), live_rows=commit.live_rows, log_bytes=self._log_bytes,
                    written_bytes=self._history.disk.written_bytes,
                )
            )  # fmt: skip

    def on_line(self, text: str) -> None:
        with self._counted():
            self._write(Said(at=time.time(), text=text))

    def on_end(self, how: Outcome, text: str) -> None:
        with self._counted():
            now = self._clock()
            self.waits.spent("end", now)
            if self._newest:
                self._tick(now)
            seconds = self._seconds_at(now)
            waits = self.waits.seconds | {"unattributed": seconds - sum(self.waits.seconds.values())}
            self.ended = Ended(
                at=time.time(), how=how, seconds=seconds, waits=_rounded(waits), parts=_rounded(self._parts),
                text=text or what_binds(waits, seconds),
            )  # fmt: skip
            self._write(self.ended)

    def _move(self, moves: Moves) -> None:
        if moves.arrives:
            self._written_rows += moves.device_to_disk + moves.host_to_disk - moves.unchanged + moves.padding

    def _train(self, trained: BlockResult) -> None:
        block, self._newest = trained.block, trained
        self._examples += block.num_examples
        if block.trains:
            self._losses.append((trained.loss, trained.weight or float(block.num_examples)))
        if trained.metrics:
            metrics = {name: value if math.isfinite(value) else None for name, value in trained.metrics.items()}
            self._write(
                Evaluated(
                    at=time.time(), epoch=block.round, split=block.split, trained=self._history.trained,
                    seconds=self._seconds_at(self._clock()), metrics=metrics,
                    from_example=self._history.epochs[-1].get("from_example"),
                )
            )  # fmt: skip

    def _tick(self, now: float) -> None:
        assert self._newest
        block, totals = self._newest.block, self._history.tiers.counts().values()
        (lr_rows, lr_dense), weight = self._rates, sum(weight for _, weight in self._losses)
        loss = sum(loss * weight for loss, weight in self._losses) / weight if weight else None
        space = os.statvfs(self._report.run_dir)
        self._write(
            Tick(
                at=time.time(), seconds=self._seconds_at(now), examples=self._examples,
                trained=self._history.trained, epoch=block.round - 1, split=block.split, loss=loss, lr_rows=lr_rows,
                lr_dense=lr_dense, stages=_rounded(self._history.times.seconds), waits=_rounded(self.waits.seconds),
                moves={name: sum(counts[name] for counts in totals) for name in COUNTS}, disk_bytes=self._log_bytes,
                free_bytes=space.f_bavail * space.f_frsize, rss_bytes=resident_bytes(),
                observer_seconds=round(self._cpu, 4),
            )
        )  # fmt: skip
        self._tick_at = now
        self._losses = []

    def _write(self, line: LiveLine, begins: bool = False) -> None:
        self._file.write(line, begins)
        self._report.add(line)

    def _seconds_at(self, moment: float) -> float:
        """Seconds since the start of the session, at least 0: the clock may have been set back."""
        return max(0.0, moment - self.waits.began)

    @property
    def _log_bytes(self) -> int:
        """Size of the log in bytes: rows and their keys."""
        return (self._log_rows + self._written_rows) * (self._begin.row_bytes + 8)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        began = time.thread_time()
        try:
            yield
        finally:
            self._cpu += time.thread_time() - began


def _rounded(seconds: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in seconds.items() if round(value, 4)}


class LiveFile:
    """Writer that appends lines to live.jsonl in a run directory, after those of earlier sessions."""

    def __init__(self, folder: Path, max_bytes: int = MAX_FILE_BYTES) -> None:
        self._path, self._max_bytes, self._works = folder / LIVE, max_bytes, True

    def write(self, line: LiveLine, begins: bool = False) -> None:
        """Append a line. `begins`: it is the first of a session; a kill may have left a partial line before it."""
        if not self._works:
            return
        text = f"{chr(10) * begins}{line.model_dump_json()}\n".encode()
        try:
            descriptor = os.open(
                self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644
            )
            try:
                os.write(descriptor, text)
                num_bytes = os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
            if num_bytes > self._max_bytes:
                self._thin()
        except OSError:
            self._works = False

    def _thin(self) -> None:
        """Drop every second line among those that contain totals or samples. The older a line, the more of its
        neighbours are gone."""
        partial = self._path.with_name(f"{LIVE}.partial")
        with self._path.open("rb") as old, partial.open("wb") as new:
            new.writelines(every_second(old))
        partial.replace(self._path)
