"""pipeline trace RUN: write RUN/trace.json, a timeline of the stages for Perfetto (ui.perfetto.dev)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.arguments import TRACE, trace_arguments
from pipeline.machine.command import run_command
from pipeline.monitor.command import check_run
from pipeline.monitor.live.lines import Begin, BlockSpans, CommitDone, Ended, Evaluated, LiveLine, Said, Tick, read_live
from pipeline.monitor.story import lapse_between
from pipeline.monitor.tools.reader import curves_at
from pipeline.stages import STAGES
from pipeline.storage.durable import replacing

TRACKS = (*STAGES[: STAGES.index("train") + 1], "gpu train", *STAGES[STAGES.index("train") + 1 :],
          "commits", "evaluations", "messages")  # fmt: skip
"""Names of the tracks, from top to bottom."""

TraceEvent = dict[str, Any]
"""Event of the Trace Event Format (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 on success, 2 if the folder contains no run, 130 after an interrupt."""
    args = trace_arguments().parse_args(argv)
    path = args.out or args.run / TRACE

    def write() -> str:
        check_run(args.run)
        num_events = write_trace(read_live(args.run), path)
        return f"wrote {num_events:,} events to {path}; open it at https://ui.perfetto.dev (it stays in your browser)"

    return run_command(write, heeds=True)


def write_trace(lines: Iterable[LiveLine], path: Path) -> int:
    """Write the timeline of these lines, in constant memory. Returns the number of events."""
    num_events = 0
    with replacing(path) as file:
        file.write(b'{"displayTimeUnit": "ms", "traceEvents": [')
        for event in events_of(lines):
            file.write(f"{',' if num_events else ''}\n{json.dumps(event)}".encode())
            num_events += 1
        file.write(b"\n]}\n")
    return num_events


def events_of(lines: Iterable[LiveLine]) -> Iterator[TraceEvent]:
    """Yield the events of a run. Each session is a process that starts where the previous one ended: time between
    sessions is omitted."""
    number, session = 0, None
    for line in lines:
        if isinstance(line, Begin):
            number += 1
            session = _Session(number, session.end if session else 0, line)
        if session:
            yield from session.events_of(line)


class _Session:
    """Timeline of a session. Times are whole microseconds: with fractional starts and durations, rounding could make a
    span overlap the next one, which the format does not allow."""

    def __init__(self, number: int, start: int, begin: Begin) -> None:
        """`start`: microsecond at which the session starts."""
        self.end = start
        """End of the last event, in microseconds."""
        self._number, self._start, self._begin = number, start, begin
        self._events: list[TraceEvent] = []
        self._before: Tick | None = None
        self._places = {track: place for place, track in enumerate(TRACKS, start=1)}
        self._free: dict[str, int] = {}
        """End of the last span of each track in use, in microseconds."""
        self._last: dict[str, float] = {}
        """Time of the last tick of each split, in seconds."""

    def events_of(self, line: LiveLine) -> list[TraceEvent]:
        """Return the events of the next line."""
        match line:
            case Begin():
                self._add("M", "process_name", args={"name": f"{line.name}, session {self._number}"})
                self._add("M", "process_sort_index", args={"sort_index": self._number})
            case Tick():
                self._add_counters(line)
                self._add_blocks(line.blocks)
            case CommitDone():
                name = f"commit {line.number}{f' ({line.name})' if line.name else ''}"
                args: dict[str, Any] = {"rows": line.live_rows, "log bytes": line.log_bytes}
                self._add_span("commits", name, line.seconds, line.seconds + line.took, args)
            case Evaluated():
                # The split started at most a second after the last tick of another split.
                began = max((at for split, at in self._last.items() if split != line.split), default=0.0)
                args = {"epoch": line.epoch, **line.metrics}
                self._add_span("evaluations", line.split, began, line.seconds, args)
            case Said() | Ended():
                text = line.text if isinstance(line, Said) else f"{line.how}: {line.text}"
                self._add("i", text, "messages", ts=self._moment(line.at - self._begin.at), s="t")
        events, self._events = self._events, []
        return events

    def _add_counters(self, tick: Tick) -> None:
        counters: dict[str, dict[str, float]] = {}
        for curve, value in curves_at(lapse_between(self._begin, self._before, tick)).items():
            name, _, part = curve.partition("/")
            counters.setdefault(name, {})[part or name] = value
        for name, values in counters.items():
            self._add("C", name, ts=self._moment(tick.seconds), args=values)
        self._before, self._last[tick.split] = tick, tick.seconds

    def _add_blocks(self, blocks: Sequence[BlockSpans]) -> None:
        for block in blocks:
            for stage, start, stop, after, done in block.spans:
                waited = {"after": after, "milliseconds until it began": 1000 * (start - done)} if after else {}
                args = {"block": block.number, "split": block.split, **waited}
                self._add_span(stage, f"{stage} {block.number}", start, stop, args)

    def _add_span(self, track: str, name: str, start: float, stop: float, args: dict[str, Any]) -> None:
        """Add a span. Spans of a track measured on two clocks are trimmed where they would overlap."""
        ts = max(self._moment(start), self._free.get(track, self._start))
        end = max(self._moment(stop), ts)
        self._add("X", name, track, ts=ts, dur=end - ts, cat=track, args=args)
        self._free[track] = end

    def _moment(self, seconds: float) -> int:
        """Microsecond of the timeline for a time in seconds of the session."""
        return self._start + max(0, round(1e6 * seconds))

    def _add(self, phase: str, name: str, track: str = "", **fields: Any) -> None:
        place = self._places.setdefault(track, len(self._places) + 1) if track else 0
        if track and track not in self._free:
            # Only tracks in use are named; otherwise, empty tracks would be shown too.
            self._free[track] = self._start
            self._add("M", "thread_name", track, args={"name": track})
            self._add("M", "thread_sort_index", track, args={"sort_index": place})
        self.end = max(self.end, fields.get("ts", 0) + fields.get("dur", 0))
        self._events.append({"ph": phase, "name": name, "pid": self._number, "tid": place, **fields})
