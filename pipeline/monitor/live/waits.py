"""Attribution of waits: every second between two trainings is attributed to one cause.

The search goes backwards from the start of a training. Among the tasks that it had to wait for, the one that finished
last held it up: that task gets the time during which it ran, and the time before goes to whatever it had waited for in
turn. The seconds of all causes are therefore disjoint; together with those of training they add up to the wall time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pipeline.monitor.live.lines import CAUSES
from pipeline.records import Block, StageCall

OfBlock = tuple[str, int]
"""A task: (stage, block)."""
Edges = Callable[[str, int, int], list[OfBlock]]
"""Function of (stage, block, look-ahead) that returns the tasks that this task waits for (`schedule.edges`)."""

CAUSE_OF = {
    "read": "read", "dedup": "dedup", "unite": "other workers", "scan": "plan", "plan": "plan",
    "prefetch": "host copy", "upload": "device copy", "gpu upload": "device copy", "write_back": "host copy",
    "train": "device copy",
}  # fmt: skip
"""Cause of a stage's seconds outside its `StageCall.parts`. `train` causes waits only on a GPU, where it submits the
work."""
WORDS = {
    "read": "reading examples", "dedup": "finding unique keys", "plan": "planning which rows move",
    "disk": "rows from and to disk", "host copy": "copying rows in RAM", "device copy": "copying to the GPU",
    "other workers": "other workers", "hand-over": "starting tasks", "commit": "commits", "evaluation": "evaluation",
    "compile": "compiling", "start": "starting", "end": "finishing",
}  # fmt: skip
MIN_SECONDS = 60.0
"""Minimum length of a period, in seconds, for a sentence on its waits: a run's start and end dominate shorter ones."""
SMALL = 0.05
"""Share of wall time below which a cause is not named."""
ON_GPU = {"gpu upload": "upload", "gpu train": "train"}
"""GPU work, and the stage that submits it."""


class Waits:
    """Seconds of a session by cause, in `seconds`. Events must arrive in chronological order."""

    def __init__(self, edges: Edges, stages: tuple[str, ...], overlaps: bool, on_gpu: bool, now: float) -> None:
        """`stages`: all stages in order. `overlaps`: False if one thread runs all tasks. `now`: start of the session,
        on the clock of `time.perf_counter`."""
        self.seconds = dict.fromkeys(("train", *CAUSES), 0.0)
        self._edges, self._stages = edges, stages
        # A GPU runs concurrently with the thread that submits its work.
        self._overlaps = overlaps or on_gpu
        self._training = "gpu train" if on_gpu else "train"
        self._at = self.began = now
        """All time before this moment is attributed."""
        self._look_ahead, self._first = 0, 0
        self._calls: dict[OfBlock, StageCall] = {}
        self._in_turn: list[StageCall] = []
        """Without overlap: calls that are not attributed yet."""
        self._other_clock = False
        self._trains: dict[int, bool] = {}

    def spent(self, cause: str, until: float) -> None:
        """Attribute all unattributed seconds up to `until` to this cause."""
        if until > self._at:
            self.seconds[cause] += until - self._at
            self._at = until

    def begin_stretch(self, blocks: Iterable[Block], look_ahead: int, now: float) -> None:
        """Begin a stretch of these blocks. The time since the last event counts as its start."""
        self.spent("start", now)
        self._trains = {block.number: block.trains for block in blocks}
        self._first, self._look_ahead = min(self._trains), look_ahead
        self._calls.clear()

    def add(self, call: StageCall) -> None:
        """Add a call. A block's training is attributed when everything that it could have waited for is known."""
        if not self._calls and not self._at - 1 < call.start < self._at + 3600:
            # The worker runs on another machine, with another clock.
            self._other_clock, self._at = True, call.start
        self._calls[call.stage, call.number] = call
        if not self._overlaps:
            self._in_turn.append(call)
        if call.stage != "write_back" or self._training != "train":
            return
        if self._overlaps:
            self._train(call.number - self._look_ahead)
        elif done := self._calls.get(("write_back", call.number - 2 * self._look_ahead)):
            self._take_in_turn(done.stop)
        self._forget(call.number - 4 * self._look_ahead - 4)

    def end_stretch(self, now: float) -> None:
        """End the stretch. All of its blocks must be finished."""
        if not self._overlaps:
            self._take_in_turn(now)
        elif self._calls:
            for number in sorted(number for stage, number in self._calls if stage == self._training):
                self._train(number)
            self._go_back(("end", max(number for _, number in self._calls)), now)
        if self._other_clock:
            self._other_clock, self._at = False, now
        self.spent("end", now)
        self._calls.clear()

    def _take_in_turn(self, until: float) -> None:
        """Attribute the time up to `until` when one thread runs all tasks in turn."""
        later = [call for call in self._in_turn if call.stop > until]
        for call in sorted(set(self._in_turn) - set(later), key=lambda call: call.start):
            if call.stage == "train":
                self._train(call.number)
            else:
                self.spent("hand-over", call.start)
                self._give_parts(call, call.start, call.stop)
        self._in_turn = later

    def _train(self, number: int) -> None:
        """Attribute the time up to the end of a block's training."""
        call = self._calls.get((self._training, number))
        if call is None or call.stop <= self._at:
            return
        if self._overlaps:
            self._go_back((self._training, number), call.start)
        self.spent("hand-over", call.start)
        self._give_parts(call, self._at, call.stop, "train" if self._trains.get(number, True) else "evaluation")

    def _go_back(self, task: OfBlock, until: float) -> None:
        """Attribute the time up to `until`, when a task started, to what the task waited for."""
        # The search runs backwards, the attribution forwards.
        found: list[tuple[OfBlock, float, float]] = []
        moment = until
        while moment > self._at:
            before = [(call.stop, done) for done in self._before(task) if (call := self._calls.get(done))]
            stop, last = max(before, default=(self._at, task))
            stop = min(stop, moment)
            if stop < moment:
                found.append((task, max(stop, self._at), moment))
            if stop <= self._at:
                break
            moment = max(self._calls[last].start, self._at)
            found.append((last, moment, stop))
            task = last
        for (stage, number), start, stop in reversed(found):
            call = self._calls.get((stage, number))
            if call and start >= call.start:
                self._give_parts(call, start, stop)
            else:
                self.spent(self._cause_of_delay(stage, number), stop)

    def _cause_of_delay(self, stage: str, number: int) -> str:
        """Cause of a delay in which nothing on the task's own worker kept it from starting."""
        if stage == "unite":
            return "other workers"
        return "start" if stage == "read" and number == self._first else "end" if stage == "end" else "hand-over"

    def _before(self, task: OfBlock) -> list[OfBlock]:
        stage, number = task
        if stage == "end":
            return [("write_back", number), ("train", number)]
        if stage in ON_GPU:
            return [(ON_GPU[stage], number), *([("gpu upload", number)] if stage == "gpu train" else [])]
        return [self._present(done) for done in self._edges(stage, number, self._look_ahead)]

    def _present(self, task: OfBlock) -> OfBlock:
        """The task, or the same block's task of the preceding stage if this stage has no work here."""
        stage, number = task
        return task if task in self._calls else (self._stages[max(0, self._stages.index(stage) - 1)], number)

    def _give_parts(self, call: StageCall, start: float, stop: float, rest: str = "") -> None:
        """Attribute a piece of a call proportionally to the causes of its parts, and the rest to the cause of its
        stage."""
        share = (stop - start) / max(call.stop - call.start, 1e-9)
        parts = {name: min(seconds * share, stop - start) for name, seconds in call.parts}
        if rest == "evaluation":
            parts = {}
        for name, seconds in parts.items():
            self.spent(name, self._at + seconds)
        self.spent(rest or CAUSE_OF[call.stage], stop)

    def _forget(self, before: int) -> None:
        for stage in (*self._stages, *ON_GPU):
            self._calls.pop((stage, before), None)


def what_binds(waits: Mapping[str, float], seconds: float) -> str:
    """Return a sentence on how much of `seconds` training waited, and for what: the three largest causes, and the sum
    of the others, so that the shares add up; "" for less than MIN_SECONDS. `waits`: seconds by cause, and those of
    training under "train"."""
    if seconds < MIN_SECONDS:
        return ""
    waited = {cause: value for cause, value in waits.items() if cause in WORDS}
    share = sum(waited.values()) / seconds
    by_size = sorted((cause for cause in waited if waited[cause] > 0), key=waited.__getitem__)[::-1]
    named = [cause for cause in by_size[:3] if waited[cause] >= SMALL * seconds]
    if not named:
        return f"training waited {share:.0%} of the time: its own steps take the rest"
    causes = [f"{waited[cause] / seconds:.0%} for {WORDS[cause]}" for cause in named]
    others = [WORDS[cause] for cause in by_size[len(named) :] if waited[cause] >= 0.005 * seconds]
    rest = round(100 * share) - sum(round(100 * waited[cause] / seconds) for cause in named)
    if rest > 0 and others:
        causes.append(f"and {rest}% for {others[0] if len(others) == 1 else f'{len(others)} other things'}")
    return f"training waited {share:.0%} of the time: {', '.join(causes)}"
