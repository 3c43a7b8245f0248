"""Story of a run, built from its live.jsonl in bounded memory, however long the run is.

There are two clocks: `at` in a line is a time of day; *run time* is the wall seconds of all sessions, concatenated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from pipeline.monitor.live.lines import (
    Begin,
    BlockSpans,
    CommitDone,
    Ended,
    Evaluated,
    Fields,
    LiveLine,
    Said,
    Tick,
    follow_live,
)  # fmt: skip

T = TypeVar("T", int, float)

MAX_LAPSES = 600
"""Maximum number of lapses: about one per two pixels of a plot."""
MAX_COMMITS = 600
MAX_EVALUATIONS = 2000
MAX_LANE_BLOCKS = 6
"""Maximum number of blocks in the timeline."""
MAX_MESSAGES = 40
MAX_FIELD_BLOCKS = 16
"""Maximum number of sampled blocks over which counts of fields are summed."""
MEAN_OF = 0.015
"""Minimum averaging period of curves, as a share of run time."""
RECENT_SECONDS_KEPT = 60.0
"""Period before the last tick over which current rates are computed, in seconds."""


@dataclass(frozen=True, slots=True)
class Lapse:
    """Time between two ticks of a session, or between its start and its first tick, and everything that happened in
    it."""

    begin: float
    end: float
    """Run time."""
    session: int
    examples: int
    waits: Mapping[str, float]
    stages: Mapping[str, float]
    """Seconds within the lapse."""
    moves: Mapping[str, int] | None
    """None if the counts at the start of the lapse are unknown."""
    loss: float | None
    """Mean loss; None if no block was trained."""
    tick: Tick
    """State at the end of the lapse."""

    @property
    def seconds(self) -> float:
        return max(self.end - self.begin, 1e-9)


@dataclass(slots=True)
class Story:
    """State of a run, as far as its lines describe it."""

    begins: list[tuple[float, Begin]] = field(default_factory=list)
    """Sessions, each with the run time at which it started."""
    lapses: list[Lapse] = field(default_factory=list)
    evaluations: list[tuple[float, Evaluated]] = field(default_factory=list)
    """Evaluations with their run time. Only the last one of each split keeps its curves."""
    commits: list[tuple[float, CommitDone]] = field(default_factory=list)
    blocks: list[BlockSpans] = field(default_factory=list)
    """The last sampled blocks, which are consecutive; their times are relative to the session."""
    fields: list[Fields] = field(default_factory=list)
    messages: list[Said] = field(default_factory=list)
    ended: Ended | None = None
    last_at: float = 0.0
    """Time of day of the last line."""
    versions: dict[str, int] = field(default_factory=lambda: {"lapses": 0, "evaluations": 0, "commits": 0})
    """Number of times that each of these lists was replaced rather than extended."""
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

    def add_all(self, lines: Iterable[LiveLine]) -> None:
        for line in lines:
            self.add(line)

    def add(self, line: LiveLine) -> None:
        self.last_at = line.at
        match line:
            case Begin():
                self._begin(line)
            case Tick():
                self._tick(line)
            case Fields():
                self.fields = [*self.fields, line][-MAX_FIELD_BLOCKS:]
            case Evaluated():
                self._evaluated(line)
            case CommitDone():
                self._commit(line)
            case Said():
                self.messages = [*self.messages, line][-MAX_MESSAGES:]
            case Ended():
                self.ended = line
                self._keep_last()

    def emptied(self) -> Story:
        """Return an empty story whose versions tell followers that its lists are new."""
        return Story(versions={name: version + 1 for name, version in self.versions.items()})

    @property
    def begin(self) -> Begin | None:
        """First line of the current session."""
        return self.begins[-1][1] if self.begins else None

    @property
    def tick(self) -> Tick | None:
        """Last tick of the current session."""
        return self.recent[-1] if self.recent else None

    @property
    def run_time(self) -> float:
        """Run time of the last tick, or of the start of the session."""
        return (self.begins[-1][0] if self.begins else 0.0) + (self.recent[-1].seconds if self.recent else 0.0)

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
        begun, begin = self.begins[-1] if self.begins else (0.0, None)
        loss = sum(losses) / len(losses) if losses else None
        lapse = lapse_between(begin, before, self.recent[-1])
        session = max(len(self.begins) - 1, 0)
        return replace(lapse, begin=begun + lapse.begin, end=begun + lapse.end, session=session, loss=loss)

    def _begin(self, line: Begin) -> None:
        self._keep_last()
        at = self.run_time
        if self.ended and self.begins:
            at = max(at, self.begins[-1][0] + self.ended.seconds)
        self.begins.append((at, line))
        self.recent.clear()
        self.blocks, self.ended, self._kept = [], None, None

    def _tick(self, tick: Tick) -> None:
        self._add_blocks(tick)
        self.recent.append(tick)
        while len(self.recent) > 2 and self.recent[1].seconds <= tick.seconds - RECENT_SECONDS_KEPT:
            self.recent.popleft()
        if tick.loss is not None:
            self._losses.append(tick.loss)
        self._num_ticks += 1
        if self._num_ticks % self._stride == 0:
            self._keep_last()

    def _add_blocks(self, tick: Tick) -> None:
        for block in tick.blocks:
            follows = self.blocks and self.blocks[-1].number + 1 == block.number
            self.blocks = [*self.blocks, block][-MAX_LANE_BLOCKS:] if follows else [block]

    def _keep_last(self) -> None:
        """End a lapse at the last tick. If there are too many lapses, merge them in pairs and make later ones
        longer."""
        if not self.recent or self.recent[-1] is self._kept:
            return
        self.lapses.append(self._since(self._kept, self._losses))
        self._kept, self._losses = self.recent[-1], []
        if len(self.lapses) > MAX_LAPSES:
            self.lapses = list(_merged(self.lapses))
            self._stride *= 2
            self.versions["lapses"] += 1

    def _evaluated(self, line: Evaluated) -> None:
        if line.curves:
            for number, (at, earlier) in enumerate(self.evaluations):
                if earlier.curves and earlier.split == line.split:
                    self.evaluations[number] = (at, earlier.model_copy(update={"curves": ()}))
        # A session that resumes from an earlier commit evaluates again.
        key = line.epoch, line.split, line.trained
        kept = [(at, e) for at, e in self.evaluations if (e.epoch, e.split, e.trained) != key]
        if len(kept) < len(self.evaluations) or len(kept) >= MAX_EVALUATIONS:
            self.versions["evaluations"] += 1
        self.evaluations = [*kept, (self.run_time, line)][-MAX_EVALUATIONS:]

    def _commit(self, line: CommitDone) -> None:
        at = (self.begins[-1][0] if self.begins else 0.0) + line.seconds
        self.num_commits += 1
        self.commit_seconds += line.took
        self.commits.append((at, line))
        if len(self.commits) > MAX_COMMITS:
            self.commits = self.commits[::2]
            self.versions["commits"] += 1


class FollowedStory:
    """The story of a run, as its live.jsonl grows."""

    def __init__(self, folder: Path) -> None:
        self._lines, self._story = follow_live(folder), Story()

    def read(self) -> Story:
        """Return the story, extended by new lines. It is a new object after the run restarts from scratch, and empty
        while there is no file."""
        while (lines := next(self._lines)) != []:
            if lines is None:
                self._story = self._story.emptied()
            else:
                self._story.add_all(lines)
        return self._story


def lapse_between(begin: Begin | None, before: Tick | None, now: Tick) -> Lapse:
    """Return the lapse between two ticks of the session of `begin`, or from its start if `before` is None, on the
    session's clock."""
    # No line contains the counts of moves with which a resumed session starts.
    moves = before.moves if before else {} if begin and begin.examples == 0 else None
    examples = before.examples if before else begin.examples if begin else 0
    waits, stages = (before.waits, before.stages) if before else ({}, {})
    return Lapse(
        before.seconds if before else 0.0, now.seconds, 0, max(now.examples - examples, 0), _less(now.waits, waits),
        _less(now.stages, stages), None if moves is None else _less(now.moves, moves), now.loss, now,
    )  # fmt: skip


def just_before(lapses: Sequence[Lapse], number: int, seconds: float) -> Iterator[Lapse]:
    """Yield a lapse and the earlier lapses of its session that ended at most `seconds` before its end, for averages. In
    a long run the period grows, to a few pixels of a plot."""
    end, session = lapses[number].end, lapses[number].session
    period = max(seconds, MEAN_OF * end)
    while number >= 0 and lapses[number].session == session and end - lapses[number].end < period:
        yield lapses[number]
        number -= 1


def _merged(lapses: Sequence[Lapse]) -> Iterator[Lapse]:
    """Merge lapses of the same session in pairs."""
    waiting: Lapse | None = None
    for lapse in lapses:
        if waiting is None or waiting.session != lapse.session:
            if waiting is not None:
                yield waiting
            waiting = lapse
        else:
            yield _union(waiting, lapse)
            waiting = None
    if waiting is not None:
        yield waiting


def _union(one: Lapse, other: Lapse) -> Lapse:
    losses = [each.loss for each in (one, other) if each.loss is not None]
    moves = None if one.moves is None or other.moves is None else _plus(one.moves, other.moves)
    return replace(
        other, begin=one.begin, examples=one.examples + other.examples, waits=_plus(one.waits, other.waits),
        stages=_plus(one.stages, other.stages), moves=moves, loss=sum(losses) / len(losses) if losses else None,
    )  # fmt: skip


def _plus(one: Mapping[str, T], other: Mapping[str, T]) -> dict[str, T]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def _less(totals: Mapping[str, T], before: Mapping[str, T]) -> dict[str, T]:
    return {name: max(total - before.get(name, 0), 0) for name, total in totals.items()}
