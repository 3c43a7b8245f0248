"""Parts of a time, such as its hour."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.features.feature import Name, SeveralColumns, expect
from pipeline.settings.times import known_zone

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.features.side_files import SideFile

DIGITS = re.compile("(%[YymdHMS])+")
"""Forms that consist only of digits."""
Part = Literal["hour", "weekday", "weekend", "day", "month", "minute"]


class Calendar(SeveralColumns):
    """Columns of integers made from a column of times: `hour` 0 to 23, `weekday` 0 (Monday) to 6, `weekend` 0 or 1,
    `day` 1 to 31, `month` 1 to 12, `minute` 0 to 59. Null stays null.

    Times are timestamps or dates; integers with `unit`, since 1970 in UTC; or text, or integers of decimal digits, with
    `form`. A time with a known zone, such as one with `unit`, is converted to `zone` (by default UTC). A time without a
    zone is used as written, and `zone` is rejected. Arrow supports daylight saving time up to 2037.
    """

    kind: Literal["calendar"] = "calendar"
    take: Annotated[dict[Part, Name], Field(min_length=1)]
    """Parts, each with the name of the column to make from it."""
    zone: str | None = None
    """Name of a time zone, such as "Europe/Berlin"."""
    unit: Literal["s", "ms", "us", "ns"] | None = None
    form: str | None = None
    """Format of a text, as for Python's `strptime`, such as "%y%m%d%H" for 14102100."""

    @field_validator("zone")
    @classmethod
    def _zone_is_known(cls, zone: str | None) -> str | None:
        return known_zone(zone)

    @model_validator(mode="after")
    def _has_one_form(self) -> Calendar:
        if self.unit is not None and self.form is not None:
            raise ValueError("unit is for integers since 1970, form for text and digits; give only one of them")
        return self

    def types(self, found: Sequence[pa.DataType], side: SideFile) -> list[pa.DataType]:
        import pyarrow as pa

        from pipeline.files.types import kind_of, value_of

        kind, has_zone = kind_of(found[0]), getattr(value_of(found[0]), "tz", None) is not None
        if self.form:
            expect(self.column, found[0], "text", "integers")
        elif self.unit:
            expect(self.column, found[0], "integers")
        elif kind in ("text", "integers"):
            way = "form, such as '%Y-%m-%d %H:%M:%S'" if kind == "text" else "unit, or form for decimal digits"
            raise ValueError(f"column {self.column!r} has type {found[0]}, which needs {way}")
        else:
            expect(self.column, found[0], "times")
        if self.zone and not (has_zone or self.unit) and kind in ("times", "text", "integers"):
            raise ValueError(
                f"column {self.column!r} has type {found[0]}, without a zone, and is taken as it is written; leave "
                f"zone={self.zone!r} out, or write timestamps with a zone"
            )
        return [pa.int64()] * len(self.take)

    def compute(self, given: Sequence[pa.Array], side: SideFile) -> list[pa.Array]:
        import pyarrow as pa
        import pyarrow.compute as pc

        times = given[0]
        if pa.types.is_dictionary(times.type):
            times = times.cast(times.type.value_type)
        if pa.types.is_null(times.type):
            return [pa.nulls(len(times), pa.int64())] * len(self.take)
        if self.form:
            texts = times.cast(pa.string())
            if pa.types.is_integer(times.type) and DIGITS.fullmatch(self.form):
                # An integer has lost the leading zero of its first part.
                width = sum(4 if part == "Y" else 2 for part in self.form[1::2])
                texts = pc.utf8_lpad(texts, width, "0")
            try:
                times = pc.strptime(texts, self.form, "s")
            except pa.ArrowInvalid as error:
                raise ValueError(f"column {self.column!r}: {error}; correct the data, or form") from error
        elif self.unit:
            times = times.cast(pa.int64()).cast(pa.timestamp(self.unit, "UTC"))
        if pa.types.is_date(times.type):
            times = times.cast(pa.timestamp("s" if pa.types.is_date32(times.type) else "ms"))
        if times.type.tz is not None:
            times = times.cast(pa.timestamp(times.type.unit, self.zone or "UTC"))
        parts: dict[str, Any] = {
            "hour": pc.hour, "weekday": pc.day_of_week, "day": pc.day, "month": pc.month, "minute": pc.minute,
            "weekend": lambda array: pc.greater_equal(pc.day_of_week(array), 5),
        }  # fmt: skip
        return [parts[part](times).cast(pa.int64()) for part in self.take]
