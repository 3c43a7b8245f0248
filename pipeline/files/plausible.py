"""Times by which rows are ordered, and the rule of plausible ones: a time outside 1990 to 2100 is in another unit, or
is none. (Times that features read may be dates of birth, or mean "never".)"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.files.types import kind_of, value_of

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
BEGIN, END = 631_152_000, 4_133_980_800
"""Seconds since 1970 at the beginning of 1990 and of 2101."""
DIGITS = re.compile(r"(19|20)\d\d(0\d|1[0-2])[0-3]\d(\d\d)*")
STRPTIME = "pyarrow.compute.strptime(column.cast('string'), '{}', 's')"


def timestamps(times: Any, unit: str | None) -> Any:
    """Integers, counts of `unit` since 1970, as timestamps in UTC; dates as timestamps without a zone."""
    times = times.cast(value_of(times.type))
    if pa.types.is_date(times.type):
        return times.cast(pa.timestamp("s" if pa.types.is_date32(times.type) else "ms"))
    return times.cast(pa.int64()).cast(pa.timestamp(unit, "UTC")) if unit else times


def check_plausible(times: Any, where: object, first_row: int, what: str) -> None:
    """Raises ValueError, with file, row, and the unit that would fit, if a time lies outside 1990 to 2100. `times`: as
    from `timestamps`. Numbers have the unit in which the greatest is plausible, if any. `what`: the column."""
    is_time, is_number = pa.types.is_timestamp(times.type), kind_of(times.type) in ("integers", "numbers")
    times_N: Any = np.asarray(times.cast(pa.int64()) if is_time else times) if is_time or is_number else np.empty(0)
    unit = times.type.unit if is_time else next(iter(_readings(times_N.max(initial=0))), "")
    bad_N: Any = np.flatnonzero((times_N < BEGIN * UNITS[unit]) | (times_N >= END * UNITS[unit])) if unit else []
    if len(bad_N):
        value = times_N[bad_N[0]].item()
        time = f"{np.array(value).astype(f'datetime64[{unit}]')}, " if is_time else ""
        ways = [f"in the unit {one!r} it would be {time}" for one, time in _readings(value).items()]
        if DIGITS.fullmatch(str(value)):
            ways.append(f"digits are converted by {STRPTIME.format('%Y%m%d')}")
        raise ValueError(
            f"{where}, row {first_row + int(bad_N[0]):,}: {what} is {time}{value} in the unit {unit!r}, expected a "
            f"time from 1990 to 2100; {', or '.join(ways) or 'no unit fits: correct it, or leave the row out'}"
        )


def _readings(value: float) -> dict[str, str]:
    """Plausible times that a number may be, by unit."""
    fits = [unit for unit, n in UNITS.items() if BEGIN * n <= value < END * n]
    return {unit: str(pa.scalar(int(value), pa.int64()).cast(pa.timestamp(unit)).cast(pa.string())) for unit in fits}
