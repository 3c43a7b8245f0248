"""Times by which rows are ordered, and the rule of plausible ones: a time outside 1990 to 2100 is in another unit, or
is none. (Times that features read may be dates of birth, or mean "never".)"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.files.types import value_of

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
BOUNDS = {unit: (631_152_000 * n, 4_133_980_800 * n) for unit, n in UNITS.items()}
"""Beginning of 1990 and of 2101, by unit."""
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
    is_time = pa.types.is_timestamp(times.type)
    if not len(times) or not (is_time or pa.types.is_integer(times.type) or pa.types.is_floating(times.type)):
        return
    times_N = np.asarray(times.cast(pa.int64()) if is_time else times)
    unit = times.type.unit if is_time else next(iter(_units_of(times_N.max())), "")
    begin, end = BOUNDS.get(unit, (-np.inf, np.inf))
    for at in np.flatnonzero((times_N < begin) | (times_N >= end))[:1].tolist():
        shown = {one: times_N[at].astype(f"datetime64[{one}]") for one in UNITS}
        ways = [f"in the unit {one!r} it would be {shown[one]}" for one in _units_of(times_N[at])]
        if DIGITS.fullmatch(str(times_N[at])):
            ways.append(f"digits are converted by {STRPTIME.format('%Y%m%d')}")
        raise ValueError(
            f"{where}, row {first_row + at:,}: {what} is {times_N[at]} in the unit {unit!r}, or {shown[unit]}; expected"
            f" a time from 1990 to 2100; {', or '.join(ways) or 'no unit fits: correct it, or leave the row out'}"
        )


def _units_of(value: float) -> list[str]:
    """Units in which a number is a plausible time."""
    return [unit for unit, (begin, end) in BOUNDS.items() if begin <= value < end]
