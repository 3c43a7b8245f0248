"""Times written as text: the known forms, and conversion to microseconds since 1970 for comparison."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

DAY = 86_400_000_000
DAYS = {
    "iso": r"(?P<year>[0-9]{4})[-/](?P<month>[0-9]{1,2})[-/](?P<day>[0-9]{1,2})",
    "d.m.y": r"(?P<day>[0-9]{1,2})\.(?P<month>[0-9]{1,2})\.(?P<year>[0-9]{4})",
    "d/m/y": r"(?P<day>[0-9]{1,2})[-/](?P<month>[0-9]{1,2})[-/](?P<year>[0-9]{4})",
    "m/d/y": r"(?P<month>[0-9]{1,2})[-/](?P<day>[0-9]{1,2})[-/](?P<year>[0-9]{4})",
    "d-mon-y": r"(?P<day>[0-9]{1,2})[-/ ](?P<month>[A-Za-z]{3})[-/ ](?P<year>[0-9]{4})",
}
"""Pattern of the date in each form."""
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
CLOCK = (
    r"(?:[T :](?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]+))?)?"
    r"(?: ?(?P<half>[AaPp])[Mm])? ?(?:Z|UTC|(?P<sign>[-+])(?P<ahead>[0-9]{2}):?(?P<further>[0-9]{2})?)?)?"
)
"""Pattern of what may follow the date: a time of day, 24-hour or 12-hour with AM or PM, and a time zone (default: UTC).
"""


def micros_of(texts: pa.Array | pa.ChunkedArray, form: str) -> pa.Array:
    """[N] int64 microseconds since 1970 in UTC; further digits are truncated. Null for a text that is not a time in
    this form. Each distinct text is parsed once."""
    codes = (texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts).dictionary_encode()
    found = pc.extract_regex(codes.dictionary.cast(pa.string()), f"^{DAYS[form]}{CLOCK}$")

    def part(name: str) -> NDArray[np.int64]:
        values = pc.fill_null(pc.struct_field(found, name), "0")
        if name == "month" and form == "d-mon-y":
            return np.asarray(pc.fill_null(pc.index_in(pc.utf8_lower(values), pa.array(MONTHS)), -1)).astype(int) + 1
        # Absent optional groups are empty.
        return np.asarray(pc.if_else(pc.equal(values, ""), "0", values).cast(pa.int64()))

    fraction_U = pc.utf8_slice_codeunits(
        pc.utf8_rpad(pc.fill_null(pc.struct_field(found, "fraction"), ""), 6, "0"), 0, 6
    )
    year_U, month_U, day_U = part("year"), part("month"), part("day")
    hour_U, minute_U, second_U = part("hour"), part("minute"), part("second")
    months_U = (year_U - 1970) * 12 + np.clip(month_U, 1, 12) - 1
    date_U = months_U.astype("datetime64[M]").astype("datetime64[D]") + (day_U - 1)
    good_U = np.asarray(pc.is_valid(found)) & (month_U >= 1) & (month_U <= 12) & (day_U >= 1)
    good_U &= date_U.astype("datetime64[M]").astype(np.int64) == months_U
    half = pc.utf8_lower(pc.fill_null(pc.struct_field(found, "half"), ""))
    in_halves_U, is_pm_U = np.asarray(pc.not_equal(half, "")), np.asarray(pc.equal(half, "p"))
    good_U &= np.where(in_halves_U, (hour_U >= 1) & (hour_U <= 12), hour_U <= 23) & (minute_U <= 59) & (second_U <= 59)
    hour_U = np.where(in_halves_U, hour_U % 12 + 12 * is_pm_U, hour_U)
    behind_U = np.asarray(pc.fill_null(pc.equal(pc.struct_field(found, "sign"), "-"), False))
    offset_U = part("ahead") * 60 + part("further")
    minutes_U = hour_U * 60 + minute_U - np.where(behind_U, -offset_U, offset_U)
    micros_U = date_U.astype(np.int64) * DAY + (minutes_U * 60 + second_U) * 1_000_000
    micros_U += np.asarray(fraction_U.cast(pa.int64()))
    return pa.array(micros_U, mask=~good_U).take(codes.indices)


def forms_of(texts: pa.Array | pa.ChunkedArray) -> list[str]:
    """Forms that all texts match; several if only the order of day and month is ambiguous. Nulls are ignored."""
    texts = texts.drop_null()
    return [form for form in DAYS if len(texts) and not micros_of(texts, form).null_count]
