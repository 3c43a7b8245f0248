"""Parts of a time, such as its hour."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.features.settings import Calendar
from pipeline.features.side_files import SideFile, expect
from pipeline.files.plausible import local_times, parsed, timestamps
from pipeline.files.types import kind_of, value_of

DIGITS = re.compile("(%[YymdHMS])+")
"""Formats that consist only of digits."""


def types(calendar: Calendar, found: Sequence[pa.DataType], side: SideFile) -> list[pa.DataType]:
    kind, has_zone = kind_of(found[0]), getattr(value_of(found[0]), "tz", None) is not None
    if calendar.form:
        expect(calendar.column, found[0], "text", "integers")
    elif calendar.unit:
        expect(calendar.column, found[0], "integers")
    elif kind in ("text", "integers"):
        way = "form, such as '%Y-%m-%d %H:%M:%S'" if kind == "text" else "unit, or form for decimal digits"
        raise ValueError(f"column {calendar.column!r} has type {found[0]}, which needs {way}")
    else:
        expect(calendar.column, found[0], "times")
    if calendar.zone and not (has_zone or calendar.unit) and kind in ("times", "text", "integers"):
        raise ValueError(
            f"column {calendar.column!r} has type {found[0]}, without a zone, and is taken as it is written; leave "
            f"zone={calendar.zone!r} out, or write timestamps with a zone"
        )
    return [pa.int64()] * len(calendar.take)


def compute(calendar: Calendar, given: Sequence[pa.Array], side: SideFile) -> list[pa.Array]:
    times = given[0]
    if pa.types.is_dictionary(times.type):
        times = times.cast(times.type.value_type)
    if pa.types.is_null(times.type):
        return [pa.nulls(len(times), pa.int64())] * len(calendar.take)
    if calendar.form:
        texts = times.cast(pa.string())
        if pa.types.is_integer(times.type) and DIGITS.fullmatch(calendar.form):
            # An integer has lost the leading zero of its first part.
            width = sum(4 if part == "Y" else 2 for part in calendar.form[1::2])
            texts = pc.utf8_lpad(texts, width, "0")
        times = parsed(texts, calendar.form)
        if times.null_count > texts.null_count:
            wrong = texts.filter(pc.and_(texts.is_valid(), times.is_null()))[0].as_py()
            what = f"{wrong!r} is no time in the form {calendar.form!r}"
            raise ValueError(f"column {calendar.column!r}: {what}; correct the data, or form")
    else:
        times = timestamps(times, calendar.unit)
    if times.type.tz is not None:
        times = local_times(times, calendar.zone or "UTC")
    parts: dict[str, Any] = {
        "hour": pc.hour, "weekday": pc.day_of_week, "day": pc.day, "month": pc.month, "minute": pc.minute,
        "weekend": lambda array: pc.greater_equal(pc.day_of_week(array), 5),
    }  # fmt: skip
    return [parts[part](times).cast(pa.int64()) for part in calendar.take]
