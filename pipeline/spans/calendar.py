"""The calendar of a run: the span of each row of each file, in the order in which files are read.

Spans depend only on event times, paths or files, and on which spans the run had before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from pipeline.files.find import DataFile
from pipeline.settings.times import seconds_of
from pipeline.spans.rows import Kind, OutOfPlace, body_of, gaps_between, part_of, refusal, remarks_on
from pipeline.spans.times import LENGTHS, NO_SPAN, Clock, Run
from pipeline.workflow import Data

Cuts = list[tuple[int | None, int]]
"""Spans of a file, in order: number of the span in the run, and the number of next rows in the file that belong to
it. None: these rows are left out."""


@dataclass(frozen=True, slots=True)
class Calendar:
    """The spans of a run, in order."""

    labels: tuple[str, ...]
    """Name of each span: a day as 2026-11-24, an hour as 2026-11-24T05, a value in a path, or the name of a file."""
    num_rows: tuple[int, ...]
    num_scored: tuple[int, ...]
    """Number of rows of each span, and of those that are scored with it: not those of other spans (`data.late`)."""
    num_closed: int | None = None
    """Number of spans for which no more rows are awaited, so that they may be trained on; None: all."""
    num_begun: int = 0
    """Number of spans on which the run has trained, so that they are due, even if the span that made them due has lost
    its rows."""

    @property
    def num_own(self) -> list[int]:
        """Number of rows of each span that are of its time, or of all if none is: fewer of these are a loss."""
        return [own or rows for own, rows in zip(self.num_scored, self.num_rows, strict=True)]

    def arrivals(self, data: Data) -> list[list[int]]:
        """For each span, in order of arrival, the spans to train on when it has arrived: itself or, with
        `data.label_delay`, those whose end lies at least that long before its own."""
        num_closed = len(self.labels) if self.num_closed is None else self.num_closed
        if data.label_delay is None:
            return [[span] * (span < num_closed) for span in range(len(self.labels))]
        clock = Clock(str(data.spans_by))
        # A late day, which follows later ones, is due when those are.
        ends = [*accumulate(map(clock.end_of, self.labels), max)]
        delay = seconds_of(data.label_delay, "data.label_delay")
        due: list[list[int]] = [[] for _ in ends]
        for span, end in enumerate(ends):
            arrival = next((n for n in range(span, len(ends)) if ends[n] >= end + delay), None)
            if span < self.num_begun or (arrival is not None and span < num_closed):
                due[-1 if arrival is None else arrival].append(span)
        return due


@dataclass(frozen=True, slots=True)
class Placed:
    """A file with the spans of its rows."""

    path: DataFile
    cuts: Cuts
    moved: list[int]
    """Indices of the cuts whose rows are of another span."""
    out_of_place: list[OutOfPlace]


class CalendarMaker:
    """Divider of files into spans, which continue those of the run so far."""

    def __init__(
        self, data: Data, labels: Iterable[str], aside: Collection[str] = (),
        gone: Callable[[str], bool] = lambda label: False, num_final: int | None = None,
    ) -> None:  # fmt: skip
        """`labels`: names of the run's existing spans, of which the first `num_final`, by default all, are final.
        `aside`: names of spans that were set aside, which may follow later ones. `gone`: True for a span of which
        trained rows were in a file that is no longer there."""
        self._aside = aside
        self._late, self._ahead, self._gone = data.late, data.ahead, cache(gone)
        self._waits = data.close == "next" or data.label_delay is not None
        self.labels = [*labels]
        self._num_known = len(self.labels) if num_final is None else num_final
        final = self.labels[: self._num_known]
        self._known, self._listed = frozenset(final), frozenset(self.labels)
        self._new = {label: number for number, label in enumerate(self.labels) if label not in self._known}
        """Number of each span to which the files may add rows."""
        zone = data.time.zone if data.time else None
        self._clock = Clock(data.spans_by, zone or "UTC") if data.spans_by in LENGTHS else None
        self._last = max(final, default="") if self._clock else ""
        self._gap = int(seconds_of(data.gap, "data.gap") // self._clock.length) if data.gap and self._clock else 1
        self.notes: list[str] = []
        """Remarks for the user."""

    def place(self, files: Sequence[tuple[DataFile, list[Run]]], latest: int = 0) -> list[Placed]:
        """Files, with the spans of their rows, in the order in which they are read: by the first span of their body,
        then as given. `latest`: see `part_of`. Raises ValueError, with file and row, if rows are out of place and a
        setting refuses them."""
        bodies = [body_of(runs, self._clock, self._gap) for _, runs in files]
        again = [self._rewritten({run.label for run in runs}) for _, runs in files]
        opened = {
            run.label: None
            for (_, runs), body, rewritten in zip(files, bodies, again, strict=True)
            for run in runs
            if run.label not in rewritten and self._opens(run.label, body)
        }
        self._add(sorted(opened) if self._clock else opened)
        if self._clock:
            later = [label for label in self._new if label > self._last]
            self.notes += gaps_between([*filter(None, [self._last]), *later], self._clock, self._gap)
        placed = [self._placed(*files[number], bodies[number], again[number]) for number in self._order(bodies)]
        self.notes += remarks_on((one.path, rows) for one in placed for rows in one.out_of_place)
        if self._clock and not self._waits and (newest := max(self._new, default="")) > self._last:
            self.notes += part_of(newest, latest, self._clock)
        return placed

    def _rewritten(self, labels: set[str]) -> set[str]:
        """Spans, among those of a file's rows, whose rows may have been trained on in files that are gone: final spans
        and, if the file has rows of one, later spans of which rows were trained on ahead of their time."""
        final = {label for label in labels & self._known if self._gone(label)}
        return final | {label for label in labels - self._listed if final and self._gone(label)}

    def _opens(self, label: str, body: Sequence[str]) -> bool:
        """True if rows of a file make this a span of the run."""
        in_body = label in body
        is_early = in_body or (self._clock is not None and label < body[0])
        is_late = self._is_before(label) and not (in_body and self._late == "take")
        return is_early and not is_late and label not in self._known

    def _is_before(self, label: str) -> bool:
        """True if a span should have come before the last one of the run."""
        return label < self._last and label not in self._aside

    def _add(self, labels: Iterable[str]) -> None:
        for label in labels:
            if label not in self._new:
                self._new[label] = len(self.labels)
                self.labels.append(label)

    def _order(self, bodies: Sequence[Sequence[str]]) -> list[int]:
        """Numbers of files in the order in which they are read. One without rows stays behind the one before it."""
        numbers = {label: number for number, label in enumerate(self.labels)}
        keys: list[str | int] = []
        for body in bodies:
            key: str | int = "" if self._clock else -1
            if body:
                key = body[0] if self._clock else numbers.get(body[0], -1)
            elif keys:
                key = keys[-1]
            keys.append(key)
        return sorted(range(len(keys)), key=keys.__getitem__)

    def _placed(self, path: DataFile, runs: Sequence[Run], body: Sequence[str], rewritten: Collection[str]) -> Placed:
        cuts: Cuts = []
        moved: list[bool] = []
        counts = Counter[tuple[Kind, str, str | None]]()
        for run in runs:
            kind = self._kind_of(run.label, body, rewritten)
            span = self._span_of(path, run, kind, body, rewritten) if kind else self._new[run.label]
            is_moved = span is not None and self.labels[span] != run.label
            if cuts and (cuts[-1][0], moved[-1]) == (span, is_moved):
                cuts[-1] = span, cuts[-1][1] + run.num_rows
            else:
                cuts.append((span, run.num_rows))
                moved.append(is_moved)
            if kind:
                counts[kind, run.label, None if span is None else self.labels[span]] += run.num_rows
        out_of_place = [
            OutOfPlace(kind=kind, span=label, rows=rows, trained_with=trained_with)
            for (kind, label, trained_with), rows in counts.items()
        ]
        return Placed(path, cuts, [n for n, is_moved in enumerate(moved) if is_moved], out_of_place)

    def _kind_of(self, label: str, body: Sequence[str], rewritten: Collection[str]) -> Kind | None:
        """How rows of a span are out of place in a file; None if they belong to their span."""
        if label == NO_SPAN:
            return "implausible"
        if label in rewritten:
            return "rewritten"
        if self._clock and label > body[-1]:
            return "ahead"
        return "late" if label not in self._new or self._is_before(label) else None

    def _span_of(
        self, path: DataFile, run: Run, kind: Kind, body: Sequence[str], rewritten: Collection[str]
    ) -> int | None:
        """Number of the span with which rows out of place are trained on; None if they are left out."""
        setting = "drop" if kind == "rewritten" else self._late if kind == "late" else self._ahead
        if setting == "refuse":
            raise ValueError(refusal(path, run, kind, body, self._last or self.labels[self._num_known - 1]))
        if setting == "drop":
            return None
        if kind != "late":
            of_last = self._kind_of(body[-1], body, rewritten)
            last = run._replace(label=body[-1])
            return self._span_of(path, last, of_last, body, rewritten) if of_last else self._new[body[-1]]
        for label in (run.label, *body):
            if label in self._new:
                return self._new[label]
        if not self._new:
            taken = sum(label.startswith(f"{run.label} part ") for label in self.labels)
            self._add([f"{run.label} part {taken + 2}"])
        return self._num_known
