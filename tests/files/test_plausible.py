"""Plausible times: what is outside 1990 to 2100 is refused, with the unit that would fit."""

from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from pipeline.files.plausible import check_plausible, timestamps

NOON = int(datetime(2026, 11, 24, 12, tzinfo=UTC).timestamp())
TIMES = {
    "seconds": ([NOON], "s", None),
    "nanoseconds": ([NOON * 10**9], "ns", None),
    "milliseconds as seconds": ([NOON * 1000], "s", "the unit 's', .*in the unit 'ms' it would be 2026-11-24"),
    "seconds as milliseconds": (
        [NOON],
        "ms",
        f"{NOON} in the unit 'ms', or 1970-01-21.*in the unit 's' it would be 2026",
    ),
    "digits as seconds": ([NOON, 20261124], "s", r"row 11: .*20261124 in .*digits are converted by .*'%Y%m%d'"),
    "digits of seconds": ([20261124120000], "ms", "digits are converted by"),
    "bounds": ([631_152_000, 4_133_980_799], "s", None),
    "before 1990": ([631_151_999], "s", "1989-12-31T23:59:59; .*; no unit fits: correct it, or leave the row out"),
    "2101": ([4_133_980_800], "s", "2101-01-01"),
    "never": (pa.array([NOON, 253402300799], pa.timestamp("s")), None, "row 11: at is .*, or 9999-12-31"),
    "dates": (pa.array([date(2026, 1, 1), date(1, 1, 1)]), None, "0001-01-01"),
    "a dictionary": (pa.array([0], pa.timestamp("us", "UTC")).dictionary_encode(), None, "1970-01-01"),
    "mixed numbers": ([0, NOON], None, "row 10: at is 0 in the unit 's'"),
    "numbers that are no times": ([0, 7, 1_000], None, None),
    "floats": ([NOON + 0.5, NOON * 1000.0], None, "in the unit 's' it would be"),
    "texts": (["1970-01-01"], None, None),
    "none": (pa.array([], pa.timestamp("s")), None, None),
}
"""Times, the unit of integers, and the refusal."""


@pytest.mark.parametrize("what", TIMES)
def test_implausible_times_are_refused_with_the_unit_that_fits(what):
    times, unit, said = TIMES[what]
    found = timestamps(times if isinstance(times, pa.Array) else pa.array(times), unit)
    if said is None:
        return check_plausible(found, "a.parquet", 10, "at")
    with pytest.raises(ValueError, match=f"a.parquet, .*{said}"):
        check_plausible(found, "a.parquet", 10, "at")
