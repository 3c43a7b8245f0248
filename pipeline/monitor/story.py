"""Story of a run, built from the lines of its live.jsonl in bounded memory, however long the run is.

There are two clocks: `at` in a line is a time of day; *run time* is the wall seconds of all sessions, concatenated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pipeline.monitor.live.lines import Begin, CommitDone, Ended, Evaluated, LiveLine, Said, Tick

T = TypeVar("T", int, float)

MAX_LAPSES = 500
"""Maximum number of lapses, and so of points of a curve over run time."""
MAX_EVALUATIONS = 2000
MAX_MESSAGES = 40
RECENT_SECONDS = 60.0
"""Period before the last tick over which current rates are computed, in seconds."""


@dataclass(frozen=True, slots=True)
class Lapse:
    """Time between two ticks of a session, or between its start and its first tick, and everything that happened in
    it."""

    begin: float
    end: float
    """Run time."""
    examples: int
    waits: Mapping[str, float]
    stages: Mapping[str, float]
    """Seconds within the lapse."""
    moves: Mapping[str, int]
    """Empty if the counts at the start of the lapse are unknown."""
    loss: float | None
    """Mean loss; None if no block was trained."""

    @property
    def seconds(self) -> float:
        return max(self.end - self.begin, 1e-9)


@dataclass(slots=True)
class Story:
    """State of a run, as far as its lines describe it."""

    begin: Begin | None = None
    """First line of the current session."""
    starts: list[float] = field(default_factory=list)
    """Run time at which each session started."""
    lapses: list[Lapse] = field(default_factory=list)
    evaluations: list[Evaluated] = field(default_factory=list)
    messages: list[Said] = field(default_factory=list)
    ended: Ended | None = None
    last_at: float = 0.0
    """Time of day of the last line."""
    num_commits: int = 0
    commit_seconds: float = 0.0
    recent: deque[Tick] = field(default_factory=deque)
    """All ticks in the last seconds of this session."""
    _stride: int = 1
    _kept: Tick | None = None
    """Tick at which the last lapse of this session ended."""
    _losses: list[float] = field(default_factory=list)
    """Losses since that tick."""
    _num_ticks: int = 0

    def add_all(self, lines: Iterable[LiveLine]) -> Story:
        """Add some lines, and return this object."""
        for line in lines:
            self.add(line)
        return self

    def add(self, line: LiveLine) -> None:
        self.last_at = line.at
        match line:
            case Begin():
                self._begin(line)
            case Tick():
                self._tick(line)
            case Evaluated():
                # A session that resumes from an earlier commit evaluates again.
                key = line.epoch, line.split, line.trained
                kept = [one for one in self.evaluations if (one.epoch, one.split, one.trained) != key]
                self.evaluations = [*kept, line][-MAX_EVALUATIONS:]
            case CommitDone():
                self.num_commits += 1
                self.commit_seconds += line.took
            case Said():
                self.messages = [*self.messages, line][-MAX_MESSAGES:]
            case Ended():
                self.ended = line
                self._keep_last()

    @property
    def tick(self) -> Tick | None:
        """Last tick of the current session."""
        return self.recent[-1] if self.recent else None

    @property
    def run_time(self) -> float:
        """Run time of the last tick, or of the start of the session."""
        return (self.starts[-1] if self.starts else 0.0) + (self.recent[-1].seconds if self.recent else 0.0)

    def lately(self) -> Lapse | None:
        """Return the last seconds of this session as a lapse; None before its first tick."""
        if not self.recent:
            return None
        losses = [tick.loss for tick in self.recent if tick.loss is not None][-5:]
        return self._since(self.recent[0] if len(self.recent) > 1 else None, losses)

    def mean_speed(self) -> tuple[float | None, float]:
        """Return the examples of training and evaluation per second, and the total seconds, over all sessions."""
        seconds = sum(lapse.seconds for lapse in self.lapses)
        return (sum(lapse.examples for lapse in self.lapses) / seconds if seconds else None), seconds

    def _since(self, before: Tick | None, losses: Sequence[float]) -> Lapse:
        """Return the lapse from a tick of this session, or from its start, to the last tick."""
        start, begin, now = self.starts[-1] if self.starts else 0.0, self.begin, self.recent[-1]
        if before:
            examples, waits, stages, moves = before.examples, before.waits, before.stages, before.moves
        else:
            examples, waits, stages, moves = begin.examples if begin else 0, {}, {}, {}
        # No line contains the counts of moves with which a resumed session starts.
        known = before or (begin and begin.examples == 0)
        return Lapse(
            start + (before.seconds if before else 0.0), start + now.seconds, max(now.examples - examples, 0),
            _less(now.waits, waits), _less(now.stages, stages), _less(now.moves, moves) if known else {},
            sum(losses) / len(losses) if losses else None,
        )  # fmt: skip

    def _begin(self, line: Begin) -> None:
        self._keep_last()
        at = self.run_time
        if self.ended and self.starts:
            at = max(at, self.starts[-1] + self.ended.seconds)
        self.starts.append(at)
        self.begin, self.ended, self._kept = line, None, None
        self.recent.clear()

    def _tick(self, tick: Tick) -> None:
        self.recent.append(tick)
        while len(self.recent) > 2 and self.recent[1].seconds <= tick.seconds - RECENT_SECONDS:
            self.recent.popleft()
        if tick.loss is not None:
            self._losses.append(tick.loss)
        self._num_ticks += 1
        if self._num_ticks % self._stride == 0:
            self._keep_last()

    def _keep_last(self) -> None:
        """End a lapse at the last tick. If there are too many lapses, merge them in pairs and make later ones
        longer."""
        if not self.recent or self.recent[-1] is self._kept:
            return
        self.lapses.append(self._since(self._kept, self._losses))
        self._kept, self._losses = self.recent[-1], []
        if len(self.lapses) > MAX_LAPSES:
            self.lapses = merged(self.lapses)
            self._stride *= 2


def merged(lapses: Sequence[Lapse]) -> list[Lapse]:
    """Merge consecutive lapses in pairs; the last one of an odd number stays."""
    pairs = [_union(one, other) for one, other in zip(lapses[::2], lapses[1::2], strict=False)]
    return [*pairs, *lapses[2 * len(pairs) :]]


def thinned(lapses: Sequence[Lapse], most: int) -> Sequence[Lapse]:
    """Merge lapses until there are at most this many."""
    while len(lapses) > most:
        lapses = merged(lapses)
    return lapses


def total(spent: Iterable[Mapping[str, T]]) -> dict[str, T]:
    """Sums by name."""
    sums: dict[str, T] = {}
    for one in spent:
        for name, value in one.items():
            sums[name] = sums.get(name, 0) + value
    return sums


def _union(one: Lapse, other: Lapse) -> Lapse:
    losses = [each.loss for each in (one, other) if each.loss is not None]
    return replace(
        other, begin=one.begin, examples=one.examples + other.examples, waits=total((one.waits, other.waits)),
        stages=total((one.stages, other.stages)), moves=total((one.moves, other.moves)),
        loss=sum(losses) / len(losses) if losses else None,
    )  # fmt: skip


def _less(totals: Mapping[str, T], before: Mapping[str, T]) -> dict[str, T]:
    return {name: max(value - before.get(name, 0), 0) for name, value in totals.items()}
