"""Columns that are clocks: they say when a row was made, and grow from the first file to the last one."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pipeline.doctor.measures import share_greater
from pipeline.doctor.seen import F64, Seen, SeenColumn

TIME_NAME = re.compile(
    r"(^|[^a-z])(time|timestamp|ts|date|datetime|dt|hour|day|time_?ms|time_?stamp)s?($|[^a-z])", re.IGNORECASE
)
"""Words in names of columns that say when."""
EPOCH = (9e8, 2.1e9)
"""Seconds since 1970 of times between 1998 and 2036; milliseconds to nanoseconds are 10^3 to 10^9 times that."""
DAY_SECONDS = 86_400
"""Whole numbers below may be times of a day, which begin anew every day; only their order can say."""
ORDERED = 0.25
"""Share of pairs of rows in the wrong order below which values are in order: half of what chance gives."""


def may_be_time(name: str, found: pa.DataType) -> bool:
    """True for a type of dates and times of any name, and for numbers and texts with the name of a time."""
    if pa.types.is_timestamp(found) or pa.types.is_date(found):
        return True
    written = pa.types.is_integer(found) or pa.types.is_floating(found) or pa.types.is_string(found)
    return bool(TIME_NAME.search(name)) and (written or pa.types.is_large_string(found))


def clocks(seen: Seen) -> Iterator[SeenColumn]:
    """Columns that are clocks, with their times in `raw_N`."""
    for column in [*seen.others.values(), *seen.features.values()]:
        kind = seen.table.schema.field(column.name).type
        if column.raw_N is None or not may_be_time(column.name, kind) or column.num_values < 2:
            continue
        if _is_clock(column.raw_N, kind) or in_order(seen, column.raw_N):
            yield column


def _is_clock(raw_N: F64, kind: pa.DataType) -> bool:
    """True for times and dates, and for numbers that can only be times since a fixed one, or dates in digits."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return True
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return False
    known = raw_N[~np.isnan(raw_N)]
    low, high = np.quantile(known, (0.001, 0.999))
    if any(EPOCH[0] * unit <= low and high <= EPOCH[1] * unit for unit in (1, 1e3, 1e6, 1e9)):
        return True
    return bool(high > DAY_SECONDS)


def in_order(seen: Seen, raw_N: F64) -> bool:
    """True if the values grow, or fall, from file to file or within files."""
    known_N = ~np.isnan(raw_N)
    halves: list[tuple[F64, F64]] = []
    for split in ("validation", "test"):
        halves.append((raw_N[seen.rows_of("train") & known_N], raw_N[seen.rows_of(split) & known_N]))
    for number in range(len(seen.files)):
        values = raw_N[(seen.file_N == number) & known_N]
        halves.append((values[: len(values) // 2], values[len(values) // 2 :]))
    for early, late in halves:
        wrong, right = share_greater(early, late), share_greater(late, early)
        # Of pairs of equal times neither is the earlier one.
        if wrong + right >= 0.1 and not ORDERED <= wrong / (wrong + right) <= 1 - ORDERED:
            return True
    return False
