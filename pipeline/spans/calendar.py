"""The calendar of a run: the span of each row of each file, in file order.

Spans depend only on event times, paths or files, never on the command that added the data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.files.description import Description
from pipeline.files.find import DataFile
from pipeline.files.flat import FlatFile
from pipeline.files.plausible import STRPTIME, UNITS, check_plausible, timestamps
from pipeline.files.types import has_no_values, kind_of
from pipeline.records import I64
from pipeline.settings.times import seconds_of
from pipeline.workflow import Data, Time

LENGTHS = {"day": (86_400, len("2026-11-24")), "hour": (3600, len("2026-11-24T05"))}
"""Length of a span in seconds, and number of characters of an ISO time that form its name."""
Cuts = list[tuple[int, int]]
"""Spans of a file, in order: number of the span in the run, and the number of next rows in the file that belong to
it."""


@dataclass(frozen=True, slots=True)
class Calendar:
    """The spans of a run, in order."""

    labels: tuple[str, ...]
    """Name of each span: a day as 2026-11-24, an hour as 2026-11-24T05, a value in a path, or the name of a file."""
    num_rows: tuple[int, ...]

    def arrivals(self, data: Data) -> list[list[int]]:
        """For each span, in order of arrival, the spans to train on when it has arrived: itself or, with
        `data.label_delay`, those whose end lies at least that long before its own."""
        if data.label_delay is None:
            return [[span] for span in range(len(self.labels))]
        length, _ = LENGTHS[str(data.spans_by)]
        ends = [datetime.fromisoformat(label).replace(tzinfo=UTC).timestamp() + length for label in self.labels]
        delay = seconds_of(data.label_delay, "data.label_delay")
        due: list[list[int]] = [[] for _ in ends]
        for span, end in enumerate(ends):
            arrival = next((n for n in range(span, len(ends)) if ends[n] >= end + delay), None)
            if arrival is not None:
                due[arrival].append(span)
        return due


class CalendarMaker:
    """Divider of files, one by one, into spans, which continue those of the run so far."""

    def __init__(self, data: Data, labels: Iterable[str], described: Description, aside: Collection[str] = ()) -> None:
        """`labels`: names of the run's existing spans; files with more rows for these are rejected. `described`: what
        is known of the columns. `aside`: names of spans that were set aside, which may follow later ones."""
        self._kind, self._time, self._root, self._described = data.spans_by, data.time, data.root, described
        self.labels, self._aside = list(labels), aside
        self._num_known = len(self.labels)
        self._last_file: DataFile | None = None
        self._latest = 0
        """Latest time in the last span, in seconds."""
        self.notes: list[str] = []
        """Remarks for the user."""

    def cut(self, path: DataFile, name: str, file: FlatFile) -> Cuts:
        """Spans of the next file. `name`: its path as stored by the run. Raises ValueError, with file and row, if a
        time is null or lies before the last span of the previous file."""
        num_rows = file.metadata.num_rows
        if not num_rows:
            return []
        if self._time is None or self._kind == "file":
            cuts = [(self._number_of(name, path, 0), num_rows)]
        elif self._kind == "value":
            cuts = [(self._number_of(self._value_of(path), path, 0), num_rows)]
        else:
            cuts = self._joined(self._of_times(path, file, self._time))
        self._last_file = path
        return cuts

    def _number_of(self, label: str, path: DataFile, row: int) -> int:
        """Number of the span with this label: the last one, or a new one."""
        if self.labels and self.labels[-1] == label and len(self.labels) > self._num_known:
            return len(self.labels) - 1
        if label in self.labels:
            raise ValueError(self._out_of_order(label, path, row))
        self.labels.append(label)
        return len(self.labels) - 1

    def _out_of_order(self, label: str, path: DataFile, row: int) -> str:
        where = f"{path}, row {row:,}: span {label}"
        if label in self.labels[: self._num_known]:
            return (
                f"{where} is already in the run, which trains on each span once and as a whole; leave these rows out, "
                "or make them a separate span"
            )
        if len(self.labels) == self._num_known:
            return (
                f"{where} lies before span {self.labels[-1]}, the last one of the run, and only later spans can be "
                "added; leave the file out, or train another run (--out) on all files in the order of their times"
            )
        last = f"{self.labels[-1]} (in {self._last_file or path})"
        return (
            f"{where} comes after span {last}, so that time goes back from one span to another; order the rows, and "
            "name the files in the order of their times"
        )

    @staticmethod
    def _joined(runs: Iterable[tuple[int, int]]) -> Cuts:
        cuts: Cuts = []
        for span, num_rows in runs:
            if cuts and cuts[-1][0] == span:
                num_rows += cuts.pop()[1]
            cuts.append((span, num_rows))
        return cuts

    def _value_of(self, path: DataFile) -> str:
        assert self._time, "a span of a value has a column"
        known = dict(path.partitions)
        if (value := known.get(self._time.name)) is None:
            has = f"has {', '.join(known)}" if known else "has none"
            raise ValueError(
                f"{path}: its path has no value of data.time, {self._time.name!r}, and {has}; write the files into "
                f"folders such as {self._time.name}=2026-11-24, or set data.span to another extent"
            )
        return value

    def _of_times(self, path: DataFile, file: FlatFile, time: Time) -> Iterator[tuple[int, int]]:
        """Spans of consecutive rows, by day or hour, with their numbers of rows."""
        length, width = LENGTHS[str(self._kind)]
        in_path = time.name in dict(path.partitions)
        row = 0
        for seconds_N in [self._of_path(path, time)] if in_path else self._of_column(path, file, time):
            starts = [0, *(np.flatnonzero(np.diff(seconds_N // length)) + 1).tolist(), len(seconds_N)]
            for begin, end in pairwise(starts):
                label = datetime.fromtimestamp(int(seconds_N[begin]), UTC).isoformat()[:width]
                if self.labels and label < self.labels[-1] and label not in self._aside:
                    raise ValueError(self._out_of_order(label, path, row + begin))
                is_new = label not in self.labels[-1:]
                span = self._number_of(label, path, row + begin)
                self._look_back(path, row + begin, label, seconds_N[begin:end], is_new)
                yield span, file.metadata.num_rows if in_path else end - begin
            row += len(seconds_N)

    def _look_back(self, path: DataFile, row: int, label: str, seconds_N: I64, is_new: bool) -> None:
        """Note, at most once, that time goes back within a span. `seconds_N`: times of the span's next rows."""
        latest = int(seconds_N[0]) if is_new else self._latest
        latest_N = np.maximum.accumulate(np.concatenate([[latest], seconds_N]))
        back_N = np.flatnonzero(seconds_N < latest_N[:-1])
        if len(back_N) and not self.notes:
            self.notes.append(
                f"{path}, row {row + int(back_N[0]):,}: data.time goes back within span {label}, which is allowed, "
                "since the rows of a span are shuffled"
            )
        self._latest = int(latest_N[-1])

    def _of_path(self, path: DataFile, time: Time) -> I64:
        """[1] time given in the path, in seconds."""
        value = self._value_of(path)
        try:
            if time.unit:
                return self._in_zone(path, pa.array([int(value)]), time)
            found = datetime.fromisoformat(value)
        except ValueError as error:
            raise ValueError(
                f"{path}: data.time, {time.name!r}, is {value!r} in its path, which is no date or time such as "
                "2026-11-24; correct the folder's name, or set data.span to 'value'"
            ) from error
        return self._in_zone(path, pa.array([found]), time)

    def _of_column(self, path: DataFile, file: FlatFile, time: Time) -> Iterator[I64]:
        """[N] times of each row group, in seconds. Raises ValueError if they are not times, or null."""
        schema = file.schema_arrow
        if time.name not in schema.names:
            raise ValueError(f"{path} has no column {time.name!r}, which data.time names; it has {_some(schema.names)}")
        found = schema.field(time.name).type
        kind = kind_of(found)
        if not has_no_values(found) and kind != ("integers" if time.unit else "times"):
            expected = f"integers, since its unit is {time.unit!r}" if time.unit else "timestamps or dates"
            way = f"; convert it by {STRPTIME.format('%Y-%m-%d %H:%M:%S')}" if kind == "text" else ""
            way = (
                f"; give data.time a unit, or convert digits by {STRPTIME.format('%Y%m%d')}"
                if kind == "integers"
                else way
            )
            raise ValueError(f"{path}: column {time.name!r} (data.time) has type {found}, expected {expected}{way}")
        if said := self._described.difference(time.name, found):
            raise ValueError(f"{path}: column {time.name!r} (data.time) {said}; write it alike in all files")
        row = 0
        for group in range(file.metadata.num_row_groups):
            column = file.read_row_group(group, columns=[time.name], use_threads=False).column(time.name)
            if column.null_count:
                at = row + pc.index(column.is_null(), True).as_py()
                raise ValueError(
                    f"{path}, row {at:,}: column {time.name!r} (data.time) is null, so the row belongs to no "
                    "span; fill it, or leave the row out"
                )
            row += len(column)
            if len(column):
                yield self._in_zone(path, column.combine_chunks(), time, row - len(column))

    def _in_zone(self, path: DataFile, times: pa.Array, time: Time, first_row: int = 0) -> I64:
        """[N] seconds since 1970 in local time of the zone. Raises ValueError if a time is not plausible, or if `time`
        names a zone and the times have none."""
        times = timestamps(times, time.unit)
        check_plausible(times, path, first_row, f"column {time.name!r} (data.time)")
        zoned = times.type.tz is not None
        if time.zone and not zoned:
            raise ValueError(
                f"{path}: column {time.name!r} (data.time) has type {times.type}, without a zone, and is taken as it "
                f"is written; leave zone={time.zone!r} out, or write timestamps with a zone"
            )
        unit = times.type.unit
        if zoned:
            times = pc.local_timestamp(times.cast(pa.timestamp(unit, time.zone or "UTC")))
        seconds: I64 = times.cast(pa.int64()).to_numpy(zero_copy_only=False) // UNITS[unit]
        return seconds


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
