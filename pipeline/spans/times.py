"""The spans of a file's rows, by their times, by values in the file's path, or by the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import did_you_mean
from pipeline.files.description import Description
from pipeline.files.find import DataFile
from pipeline.files.flat import FlatFile
from pipeline.files.plausible import STRPTIME, UNITS, are_outside, check_plausible, local_times, timestamps, unit_for
from pipeline.files.types import has_no_values, kind_of
from pipeline.records import I64
from pipeline.workflow import Data, Time

LENGTHS = {"day": (86_400, len("2026-11-24")), "hour": (3600, len("2026-11-24T05"))}
"""Length of a span in seconds, and number of characters of an ISO time that form its name."""
NO_SPAN = "no span"
"""Label of rows whose time is not plausible."""
MOST_IMPLAUSIBLE = 100
"""A file is refused if more than one of so many rows has a time that is not plausible."""
MOST_RUNS = 1000
"""Maximum number of runs of a file, since commits keep them."""
PARTS_OF_TIME = ("year", "month", "week", "day", "hour")


class Run(NamedTuple):
    """Consecutive rows of a file that belong to one span."""

    label: str
    """Name of the span, or `NO_SPAN`."""
    first_row: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class Clock:
    """Lengths of and distances between days or hours."""

    kind: str
    zone: str = "UTC"
    """Zone in whose local time the spans are named."""

    @property
    def length(self) -> int:
        """Length of a span in seconds."""
        return LENGTHS[self.kind][0]

    def end_of(self, label: str) -> int:
        """End of a span, in seconds since 1970 as its zone writes them."""
        return int(self._begin_of(label, "UTC")) + self.length

    def distance(self, first: str, second: str) -> int:
        """Number of spans from one to a later one. Hours that the clock leaves out do not count."""
        seconds = [self._begin_of(second, zone) - self._begin_of(first, zone) for zone in ("UTC", self.zone)]
        return int(min(seconds) // self.length)

    def _begin_of(self, label: str, zone: str) -> float:
        written = datetime.fromisoformat(label[: LENGTHS[self.kind][1]])
        return written.replace(tzinfo=ZoneInfo(zone)).timestamp()


class RowTimes:
    """Reader of the spans of files' rows."""

    def __init__(self, data: Data, described: Description) -> None:
        """`described`: what is known of the columns."""
        self._kind, self._time, self._described = data.spans_by, data.time, described
        self._refuses = data.ahead == "refuse"
        self.latest = 0
        """The last time so far, in seconds since 1970 as the zone writes it."""

    def runs(self, path: DataFile, name: str, file: FlatFile) -> list[Run]:
        """Runs of the file's rows, in order. `name`: its path as stored by the run. Raises ValueError, with file and
        row, if a time is null or not plausible."""
        num_rows = file.metadata.num_rows
        if not num_rows:
            return []
        if (label := self.of_path(path, name)) is not None:
            return [Run(label, 0, num_rows)]
        assert self._time, "the times are in a column"
        length = LENGTHS[str(self._kind)][0]
        spans_N = np.concatenate([seconds_N // length for seconds_N in self._of_column(path, file, self._time)])
        starts = [0, *(np.flatnonzero(np.diff(spans_N)) + 1).tolist()]
        if len(starts) > MOST_RUNS:
            raise ValueError(
                f"{path}: its rows change from one {self._kind} to another {len(starts) - 1:,} times, by data.time; "
                "order them by time"
            )
        labels = {span: self._label(span) for span in spans_N[starts].tolist()}
        ends = [*starts[1:], num_rows]
        return [Run(labels[int(spans_N[at])], at, end - at) for at, end in zip(starts, ends, strict=True)]

    def of_path(self, path: DataFile, name: str) -> str | None:
        """Name of the span of all rows of a file, if its path says it; else None. `name`: see `runs`."""
        if self._time is None or self._kind == "file":
            return name
        if self._kind == "value":
            return _name_of_value(path, self._time)
        if self._time.name not in dict(path.partitions):
            return None
        (seconds_N,) = self._of_path(path, self._time)
        return self._label(int(seconds_N[0]) // LENGTHS[str(self._kind)][0])

    def _label(self, span: int) -> str:
        """Name of a day or hour, given its number since 1970."""
        length, width = LENGTHS[str(self._kind)]
        return datetime.fromtimestamp(span * length, UTC).isoformat()[:width] if span >= 0 else NO_SPAN

    def _of_path(self, path: DataFile, time: Time) -> Iterator[I64]:
        """[1] time given in the path, in seconds."""
        values = _values_of(path, time)
        value = _as_iso(values)
        try:
            found = pa.array([int(value) if time.unit else datetime.fromisoformat(value)])
        except ValueError as error:
            raise ValueError(
                f"{path}: data.time, {', '.join(map(repr, time.names))}, is {', '.join(map(repr, values))} in its "
                "path, which is no date or time such as 2026-11-24; correct the folder's name, name several columns, "
                'as in time=("year", "month", "day"), or set data.span to \'value\''
            ) from error
        yield from self._in_zone(path, iter([(0, found)]), time)

    def _of_column(self, path: DataFile, file: FlatFile, time: Time) -> Iterator[I64]:
        """[N] times of each row group, in seconds. Raises ValueError if they are not times, or null."""
        schema = file.schema_arrow
        if time.name not in schema.names:
            hint = did_you_mean(time.name, schema.names)[1]
            raise ValueError(f"{path} has no column {time.name!r}, which data.time names{hint}")
        found = schema.field(time.name).type
        kind = kind_of(found)
        if not has_no_values(found) and kind != ("integers" if time.unit else "times"):
            expected = f"integers, since its unit is {time.unit!r}" if time.unit else "timestamps or dates"
            way = _way(next((values for _, values in _groups(file, time.name)), None)) if not time.unit else ""
            raise ValueError(f"{path}: column {time.name!r} (data.time) has type {found}, expected {expected}{way}")
        if said := self._described.difference(time.name, found):
            raise ValueError(f"{path}: column {time.name!r} (data.time) {said}; write it alike in all files")
        yield from self._in_zone(path, _groups(file, time.name), time)

    def _in_zone(self, path: DataFile, groups: Iterator[tuple[int, pa.Array]], time: Time) -> Iterator[I64]:
        """[N] seconds since 1970 in local time of the zone; -1 for a time that is not plausible. `groups`: arrays of
        times, each with its first row. Raises ValueError if a time is null, if too many are not plausible, or if `time`
        names a zone and the times have none."""
        what, num_rows, num_outside = f"column {time.name!r} (data.time)", 0, 0
        first_outside: tuple[Any, int] | None = None
        for row, found in groups:
            if found.null_count:
                at = row + pc.index(found.is_null(), True).as_py()
                raise ValueError(
                    f"{path}, row {at:,}: {what} is null, so the row belongs to no span; fill it, or leave the row out"
                )
            times = timestamps(found, time.unit)
            zoned, unit = times.type.tz is not None, times.type.unit
            if time.zone and not zoned:
                raise ValueError(
                    f"{path}: {what} has type {times.type}, without a zone, and is taken as it is written; leave "
                    f"zone={time.zone!r} out, or write timestamps with a zone"
                )
            outside_N = are_outside(times)
            if outside_N.any():
                first_outside = first_outside or (times, row)
                times = pc.if_else(pa.array(outside_N), pa.scalar(0, pa.int64()).cast(times.type), times)
            num_rows, num_outside = num_rows + len(times), num_outside + int(outside_N.sum())
            if zoned:
                times = local_times(times, time.zone or "UTC")
            seconds_N: I64 = times.cast(pa.int64()).to_numpy(zero_copy_only=False) // UNITS[unit]
            seconds_N = np.where(outside_N, -1, seconds_N)
            self.latest = max(self.latest, int(seconds_N.max()))
            yield seconds_N
        too_many = num_outside * MOST_IMPLAUSIBLE > num_rows
        if first_outside and (too_many or self._refuses):
            try:
                check_plausible(first_outside[0], path, first_outside[1], what)
            except ValueError as error:
                way = "" if too_many else "; or set data.ahead to 'drop', which leaves such rows out"
                raise ValueError(f"{error}{way}") from None


def _groups(file: FlatFile, name: str) -> Iterator[tuple[int, pa.Array]]:
    """Values of a column in each row group with rows, after the number of its first row."""
    row = 0
    for group in range(file.metadata.num_row_groups):
        column = file.read_row_group(group, columns=[name], use_threads=False).column(name)
        if len(column):
            yield row, column.combine_chunks()
        row += len(column)


def _way(values: Any) -> str:
    """Way to make times of such values, for a message; "" if there is none."""
    if values is None or kind_of(values.type) not in ("integers", "text"):
        return ""
    known = pc.drop_null(values.cast(pa.string()) if kind_of(values.type) == "text" else values)
    first = known[0].as_py() if len(known) else None
    if kind_of(values.type) == "text":
        form = "%Y-%m-%d" if len(first or "") == len("2026-11-24") else "%Y-%m-%d %H:%M:%S"
        return f"; convert it by {STRPTIME.format(form)}"
    unit = unit_for(first) if first is not None else ""
    fits = f", which {unit!r} fits: Time(name=..., unit={unit!r})," if unit else ""
    return f"; give data.time a unit{fits} or convert digits by {STRPTIME.format('%Y%m%d')}"


def _values_of(path: DataFile, time: Time) -> list[str]:
    """Values of data.time in the path."""
    known = dict(path.partitions)
    values = [value for name in time.names if (value := known.get(name)) is not None]
    if len(values) < len(time.names):
        lacks = next(name for name in time.names if known.get(name) is None)
        has = f"has {', '.join(known)}" if known else "has none"
        raise ValueError(
            f"{path}: its path has no value of data.time, {lacks!r}, and {has}; write the files into folders such as "
            f"{lacks}=2026-11-24, or set data.span to another extent"
        )
    return values


def _as_iso(values: Sequence[str]) -> str:
    """ISO time from a year, month, day and hour, or from a date and an hour; a single value as it is."""
    if len(values) == 1:
        return values[0]
    count = 3 if values[0].isdigit() and len(values[0]) <= len("2026") else 1
    date, hours = values[:count], values[count:]
    return "-".join(part.zfill(2) for part in date) + ("T" if hours else "") + ":".join(h.zfill(2) for h in hours)


def _name_of_value(path: DataFile, time: Time) -> str:
    """Name of a span by value. If that is a part of a time, such as the day of a month, it begins with the parts of
    time in the folders above, since the value comes again."""
    values = _values_of(path, time)
    if len(values) == 1 and time.name in PARTS_OF_TIME and len(values[0]) <= 2:
        names = [name for name, _ in path.partitions]
        above = path.partitions[: names.index(time.name)]
        values = [value or "" for name, value in above if name in PARTS_OF_TIME] + values
    return "/".join(values)
