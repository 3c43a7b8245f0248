"""Times by which rows are ordered, and the rule of plausible ones: a time outside 1990 to 2100 is in another unit, or
is none. (Times that features read may be dates of birth, or mean "never".)"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.files.types import value_of
from pipeline.records import I64

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
BOUNDS = {unit: (631_152_000 * n, 4_133_980_800 * n) for unit, n in UNITS.items()}
"""Beginning of 1990 and of 2101, by unit."""
LAST_OF_ARROW = 2_114_380_800
"""Beginning of 2037 in seconds."""
QUARTER = 900
"""Seconds between which clocks change at most once: at a quarter of an hour."""
DIGITS = re.compile(r"(19|20)\d\d(0\d|1[0-2])[0-3]\d(\d\d)*")
MAX_OUTSIDE = 0.01
"""Maximum share of rows with other times, as of a broken clock, that are divided by time: they are for training."""
STRPTIME = "pyarrow.compute.strptime(column.cast('string'), '{}', 's')"


def parsed(texts: Any, form: str) -> Any:
    """Texts as timestamps in seconds; null for one that is no time in this form."""
    times = pc.strptime(texts, form, "s", error_is_null=True)
    # Arrow takes 30 February as 2 March. A minute may have any number of a day, and leaves the time on the first day.
    without_day = re.sub("(?<!%)%[de]", "%M", form.replace("%F", "%Y-%m-%d").replace("%D", "%m/%d/%y"))
    first_N = np.asarray(pc.strptime(texts, without_day, "s", error_is_null=True))
    # A zone moves a time by less than 14 hours, and other minutes by less than one.
    month_N = (first_N + np.timedelta64(14, "h")).astype("datetime64[M]")
    days_N = np.asarray(times) - first_N + np.timedelta64(12, "h")
    is_day_N = (month_N.astype("datetime64[s]") + days_N).astype("datetime64[M]") == month_N
    return pc.if_else(pa.array(is_day_N), times, None)


def timestamps(times: Any, unit: str | None) -> Any:
    """Integers, counts of `unit` since 1970, as timestamps in UTC; dates as timestamps without a zone."""
    times = times.cast(value_of(times.type))
    if pa.types.is_date(times.type):
        return times.cast(pa.timestamp("s" if pa.types.is_date32(times.type) else "ms"))
    return times.cast(pa.int64()).cast(pa.timestamp(unit, "UTC")) if unit else times


def unit_for(value: float) -> str:
    """The unit in which a number is a plausible time; "" if there is none."""
    return next(iter(_units_of(value)), "")


def local_times(times: Any, zone: str) -> Any:
    """Timestamps with a zone as they are written in another one, without a zone. Arrow knows no summer time after
    2037."""
    unit = times.type.unit
    local = pc.local_timestamp(times.cast(pa.timestamp(unit, zone)))
    times_N: I64 = times.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    far_N = np.flatnonzero(times_N >= LAST_OF_ARROW * UNITS[unit])
    if not len(far_N):
        return local
    quarters, of_each = np.unique(times_N[far_N] // (QUARTER * UNITS[unit]), return_inverse=True)
    moments = [datetime.fromtimestamp(quarter * QUARTER, ZoneInfo(zone)) for quarter in quarters.tolist()]
    offsets = np.array([int(moment.utcoffset().total_seconds()) for moment in moments], np.int64)  # type: ignore[union-attr]
    local_N = local.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).copy()
    local_N[far_N] = times_N[far_N] + offsets[of_each] * UNITS[unit]
    return pa.array(local_N, mask=times.is_null().to_numpy(zero_copy_only=False)).cast(pa.timestamp(unit))


def check_plausible(times: Any, where: object, first_row: int, what: str) -> None:
    """Raises ValueError, with file, row, and the unit that would fit, if a time lies outside 1990 to 2100. `times`: as
    from `timestamps`. `what`: the column."""
    for at in np.flatnonzero(are_outside(times))[:1].tolist():
        value, unit = np.asarray(_numbers(times))[at], _unit_of(times)
        shown = {one: value.astype(f"datetime64[{one}]") for one in UNITS}
        ways = [f"in the unit {one!r} it would be {shown[one]}" for one in _units_of(value)]
        if DIGITS.fullmatch(str(value)):
            ways.append(f"digits are converted by {STRPTIME.format('%Y%m%d')}")
        raise ValueError(
            f"{where}, row {first_row + at:,}: {what} is {value} in the unit {unit!r}, or {shown[unit]}; expected"
            f" a time from 1990 to 2100; {', or '.join(ways) or 'no unit fits: correct it, or leave the row out'}"
        )


def are_outside(times: Any) -> NDArray[np.bool_]:
    """[N] True for times outside 1990 to 2100. `times`: as from `timestamps`. Numbers have the unit in which their
    median is plausible; without one, none is outside."""
    if not len(times) or not (unit := _unit_of(times)):
        return np.zeros(len(times), np.bool_)
    times_N, (begin, end) = np.asarray(_numbers(times)), BOUNDS[unit]
    return np.asarray((times_N < begin) | (times_N >= end))


def _numbers(times: Any) -> NDArray[Any]:
    return np.asarray(times.cast(pa.int64()) if pa.types.is_timestamp(times.type) else times)


def _unit_of(times: Any) -> str:
    """Unit of times; of numbers, the one in which their median is plausible; "" if there is none."""
    if pa.types.is_timestamp(times.type):
        return str(times.type.unit)
    if not (pa.types.is_integer(times.type) or pa.types.is_floating(times.type)):
        return ""
    known_M = _numbers(times.drop_null())
    middle = len(known_M) // 2
    return unit_for(np.partition(known_M, middle)[middle]) if len(known_M) else ""


def _units_of(value: float) -> list[str]:
    """Units in which a number is a plausible time."""
    return [unit for unit, (begin, end) in BOUNDS.items() if begin <= value < end]
