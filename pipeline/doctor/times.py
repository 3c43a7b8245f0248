"""Columns that are clocks: they tell when a row was created, and grow from the first file to the last."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pipeline.doctor.measures import share_greater
from pipeline.doctor.seen import F64, SeenColumn, SeenRows

TIME_NAME = re.compile(
    r"(^|[^a-z])(time|timestamp|ts|date|datetime|dt|hour|day|time_?ms|time_?stamp)s?($|[^a-z])", re.IGNORECASE
)
"""Words in the names of columns that tell a time."""
CLOCK_NAME = re.compile(
    r"((event|log|click|request|impression|created|server)_?)?(time|timestamp|ts|date|datetime|dt|hour|day)(_?ms|_at)?",
    re.IGNORECASE,
)
"""Full names of columns that tell a point in time, not a duration such as play_time."""
CYCLE = re.compile(r"(^|[^a-z])(hour|day)s?($|[^a-z])", re.IGNORECASE)
"""Words in the names of columns that tell a time but may repeat every day, week or month."""
EPOCH_SECONDS = (9e8, 2.1e9)
"""Seconds since 1970 for times between 1998 and 2036; milliseconds to nanoseconds are 10^3 to 10^9 times that."""
DAY_SECONDS = 86_400
"""Whole numbers below this may be times of day, which repeat daily, unless hardly any value repeats."""
DISTINCT, DISTINCT_ROWS = 0.99, 1000
"""Minimum fraction of distinct values, and minimum number of rows, for values to count as unique."""
IN_ORDER = 0.15
"""Fraction of pairs (a row of train, a row of another split) in the wrong (or the right) order, below which small
numbers also count as clocks."""


def may_be_time(name: str, found: pa.DataType) -> bool:
    """True for date and time types of any name, and for numbers and texts with a time-like name."""
    if pa.types.is_timestamp(found) or pa.types.is_date(found):
        return True
    written = pa.types.is_integer(found) or pa.types.is_floating(found) or pa.types.is_string(found)
    return bool(TIME_NAME.search(name)) and (written or pa.types.is_large_string(found))


def clocks(seen: SeenRows) -> Iterator[SeenColumn]:
    """Columns that are clocks, with their times in `raw_N`."""
    for column in [*seen.others.values(), *seen.features.values()]:
        kind = seen.table.schema.field(column.name).type
        if column.raw_N is None or not may_be_time(column.name, kind) or column.num_values < 2:
            continue
        if _is_clock(column.name, column.raw_N, kind) or _in_order(seen, column.raw_N):
            yield column


def moments(seen: SeenRows) -> Iterator[SeenColumn]:
    """Columns that tell a time, clocks or not, with their times in `raw_N`."""
    of_clocks = {column.name: column for column in clocks(seen)}
    for column in [*seen.others.values(), *seen.features.values()]:
        if column.name in of_clocks or (CYCLE.search(column.name) and column.raw_N is not None):
            yield column


def _is_clock(name: str, raw_N: F64, kind: pa.DataType) -> bool:
    """True for times and dates, and for numbers that can only be times since an epoch, or dates as digits."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return True
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return False
    known = raw_N[~np.isnan(raw_N)]
    low, high = np.quantile(known, (0.001, 0.999))
    if any(EPOCH_SECONDS[0] * unit <= low and high <= EPOCH_SECONDS[1] * unit for unit in (1, 1e3, 1e6, 1e9)):
        return True
    different = len(np.unique(known)) >= DISTINCT * len(known) and len(known) >= DISTINCT_ROWS
    return bool(CLOCK_NAME.fullmatch(name)) and (different or bool(high > DAY_SECONDS))


def _in_order(seen: SeenRows, raw_N: F64) -> bool:
    """True if the values of all other splits are greater than those of train, or all are less, with few exceptions."""
    known_N = ~np.isnan(raw_N)
    train = raw_N[seen.rows_of("train") & known_N]
    shares = []
    for split in ("validation", "test"):
        values = raw_N[seen.rows_of(split) & known_N]
        wrong, right = share_greater(train, values), share_greater(values, train)
        if wrong + right > 0:
            shares.append(wrong / (wrong + right))
    return bool(shares) and (max(shares) < IN_ORDER or min(shares) > 1 - IN_ORDER)
