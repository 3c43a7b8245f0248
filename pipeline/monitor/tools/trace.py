"""pipeline trace RUN: write RUN/trace.json, a timeline of the stages that Perfetto (ui.perfetto.dev)
opens."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.arguments import TRACE, trace_arguments
from pipeline.monitor.live.lines import Begin, BlockSpans, CommitDone, Ended, Evaluated, LiveLine, Said, Tick, read_live
from pipeline.monitor.tools.reading import read_run
from pipeline.monitor.tools.tick_rates import rates_between
from pipeline.stages import STAGES

AFTER_TRAIN = STAGES.index("train") + 1
SPANS_KNOWN = 256
"""Spans of more blocks than are sampled one after the other: in one of these each arrow begins."""
TRACKS = (*STAGES[:AFTER_TRAIN], "gpu train", *STAGES[AFTER_TRAIN:], "commits", "evaluations", "messages")
"""Names of the tracks, from top to bottom."""

TraceEvent = dict[str, Any]
"""Event of the Trace Event Format (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 on success, 2 if the folder holds no run that can be read, 130 after an
    interrupt."""
    args = trace_arguments().parse_args(argv)
    path = args.out or args.run / TRACE

    def read() -> str:
        num_events = write_trace(read_live(args.run), path)
        return f"left in {path}: {num_events:,} events; open it at https://ui.perfetto.dev (it stays in your browser)"

    return read_run(args.run, read)


def write_trace(lines: Iterable[LiveLine], path: Path) -> int:
    """Write the timeline of these lines, in memory that does not grow with it. Returns the number of events."""
    partial, num_events = path.with_name(f"{path.name}.partial"), 0
    with partial.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [')
        for event in events_of(lines):
            file.write(f"{',' if num_events else ''}\n{json.dumps(event)}")
            num_events += 1
        file.write("\n]}\n")
    partial.replace(path)
    return num_events


def events_of(lines: Iterable[LiveLine]) -> Iterator[TraceEvent]:
    """Make the events of a run. Each session is a process of its own and begins where the one before ended: time
    between sessions is left out."""
    number, session = 0, None
    for line in lines:
        if isinstance(line, Begin):
            number += 1
            session = _Session(number, session.end if session else 0, line)
            yield from session.names()
        elif session:
            yield from session.events_of(line)


class _Session:
    """The timeline of a session. Moments are whole microseconds: two numbers with fractions, the start and the length
    of a span, could be rounded so that it overlaps the next one, which the format does not allow."""

    def __init__(self, number: int, start: int, begin: Begin) -> None:
        """`start`: microsecond at which it begins."""
        self.end = start
        """Microsecond of the last thing that happened."""
        self._number, self._start, self._begin = number, start, begin
        self._before: Tick | None = None
        self._tracks: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        self._flows = 0
        self._known: deque[tuple[str, int, int]] = deque(maxlen=SPANS_KNOWN)
        """Stage, start and end of the last spans."""
        self._last: dict[str, float] = {}
        """Seconds of the last tick of each split."""

    def names(self) -> Iterator[TraceEvent]:
        named = f"{self._begin.name}, session {self._number}"
        yield self._event("M", "process_name", args={"name": named})
        yield self._event("M", "process_sort_index", args={"sort_index": self._number})

    def events_of(self, line: LiveLine) -> Iterator[TraceEvent]:
        match line:
            case Tick():
                yield from self._counters(line)
                yield from self._blocks(line.blocks)
            case CommitDone():
                args = {"rows": line.live_rows, "log bytes": line.log_bytes}
                name = f"commit {line.number}{f' ({line.name})' if line.name else ''}"
                yield from self._span("commits", name, line.seconds, line.seconds + line.took, args)
            case Evaluated():
                yield from self._span(
                    "evaluations", line.split, self._before_split(line.split), line.seconds,
                    {"epoch": line.epoch, **line.metrics},
                )  # fmt: skip
            case Said():
                yield from self._message(line.at, line.text)
            case Ended():
                yield from self._message(line.at, f"{line.how}: {line.text}")

    def _counters(self, tick: Tick) -> Iterator[TraceEvent]:
        counters: dict[str, dict[str, float]] = {"blocks": {"ready": tick.ready}}
        if tick.loss is not None:
            counters["loss"] = {"mean": tick.loss}
        if found := rates_between(self._begin, self._before, tick):
            counters["speed"] = {"examples per second": found.examples_per_second}
            counters["hit rate"] = found.hit_rates
            counters["waits"] = found.waits
        for name, values in counters.items():
            if values:
                yield self._event("C", name, ts=self._at(tick.seconds), args=values)
        self._before, self._last[tick.split] = tick, tick.seconds

    def _blocks(self, blocks: Sequence[BlockSpans]) -> Iterator[TraceEvent]:
        spans = [(block, *span) for block in blocks for span in block.spans]
        self._known.extend((stage, self._at(start), self._at(stop)) for _, stage, start, stop, _, _ in spans)
        for block, stage, start, stop, after, done in spans:
            args: dict[str, Any] = {"block": block.number, "split": block.split}
            if after:
                args |= {"after": after, "milliseconds until it began": 1000 * (start - done)}
            yield from self._span(stage, f"{stage} {block.number}", start, stop, args)
            yield from self._flow(after, self._at(done), stage, self._at(start))

    def _flow(self, source: str, done: int, stage: str, start: int) -> Iterator[TraceEvent]:
        """Yield the two ends of an arrow, unless the span in which it begins is not in the sample."""
        begun = next((begun for stage_of, begun, end in self._known if (stage_of, end) == (source, done)), None)
        if begun is None or done > start:
            return
        yield from self._named(source)
        self._flows += 1
        same = {"cat": "edge", "id": f"{self._number}.{self._flows}"}
        # The moment at which a span ends may belong to the next one.
        yield self._event("s", "waited for", self._tracks[source], ts=max(begun, done - 1), **same)
        yield self._event("f", "waited for", self._tracks[stage], ts=start, bp="e", **same)

    def _span(self, track: str, name: str, start: float, stop: float, args: dict[str, Any]) -> Iterator[TraceEvent]:
        """Yield a span. Spans of a track that was measured on two clocks are cut where they would overlap."""
        yield from self._named(track)
        ts = max(self._at(start), self._ends.get(track, self._start))
        self._ends[track] = max(self._at(stop), ts)
        yield self._event("X", name, self._tracks[track], ts=ts, dur=self._ends[track] - ts, cat=track, args=args)

    def _message(self, at: float, text: str) -> Iterator[TraceEvent]:
        yield from self._named("messages")
        yield self._event("i", text, self._tracks["messages"], ts=self._at(at - self._begin.at), s="t")

    def _before_split(self, split: str) -> float:
        """Seconds of the last tick before this split, at most a second before its first block."""
        return max((seconds for other, seconds in self._last.items() if other != split), default=0.0)

    def _named(self, track: str) -> Iterator[TraceEvent]:
        """Yield the events that name a track and give it its place, at its first use: empty tracks are not shown."""
        if track in self._tracks:
            return
        place = TRACKS.index(track) + 1 if track in TRACKS else len(TRACKS) + len(self._tracks) + 1
        self._tracks[track] = place
        yield self._event("M", "thread_name", place, args={"name": track})
        yield self._event("M", "thread_sort_index", place, args={"sort_index": place})

    def _at(self, seconds: float) -> int:
        """Microsecond of a moment of the session."""
        return self._start + max(0, round(1e6 * seconds))

    def _event(self, phase: str, name: str, track: int = 0, **fields: Any) -> TraceEvent:
        self.end = max(self.end, fields.get("ts", 0) + fields.get("dur", 0))
        return {"ph": phase, "name": name, "pid": self._number, "tid": track, **fields}


if __name__ == "__main__":
    sys.exit(main())
