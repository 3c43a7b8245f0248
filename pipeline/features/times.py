"""Times given to a trained model, read as their column was in training: its unit, its zone or none, date or time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.features.settings import AnyFeature, Calendar
from pipeline.files.types import kind_of, value_of, whole

TYPES = re.compile(r"date(?:32\[day|64\[ms)\]|timestamp\[(?P<unit>s|ms|us|ns)(?:, tz=(?P<zone>[^\]]+))?\]")
"""Names of Arrow's date and timestamp types."""
CLOCK = "(?P<clock>[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.][0-9]+)?)?(?P<zone>Z|[-+][0-9]{2}(?::?[0-9]{2})?)?)?"
ISO = f"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}{CLOCK}$"
FLOORS = {"s": "second", "ms": "millisecond", "us": "microsecond", "ns": "nanosecond"}
YEARS = {"day": 365.2425} | {unit: 31_556_952.0 * 1000**n for n, unit in enumerate(FLOORS)}
"""Length of a year in each unit."""
MARGIN, PLAUSIBLE = 20, (1990, 2100)
"""Years by which integers may lie outside those of training; first and last year if those of training are unknown."""


@dataclass(frozen=True, slots=True)
class TimeInput:
    """A column of times that features read, as it was in training."""

    name: str
    type: pa.DataType
    """A timestamp or a date; int64 if the feature has a unit or a form."""
    unit: str
    """Unit of integers since 1970; empty with a form."""
    form: str | None = None
    """Form of texts or digits, which the feature parses."""
    years: tuple[int, int] | None = None
    """First and last year in the training data; None if unknown."""

    @property
    def zone(self) -> str | None:
        return "UTC" if pa.types.is_integer(self.type) else getattr(self.type, "tz", None)

    @property
    def parameters(self) -> dict[str, str]:
        """Parameters of the column in a model's metadata."""
        return {"form": self.form} if self.form else {"unit": self.unit, "zone": self.zone or "none"}

    def read(self, given: pa.ChunkedArray) -> pa.ChunkedArray:
        """The column as in training, though timestamps keep their unit: times and ISO texts are read by what they say,
        integers in `unit`. Columns of other kinds are returned unchanged. Raises ValueError, with the column, if a
        value could mean several times, or if integers are far outside the years of training."""
        kind, found = kind_of(given.type), value_of(given.type)
        if kind not in ("integers", "numbers", "text", "times") or pa.types.is_boolean(found):
            return given
        try:
            given = given.cast(found)
            if kind == "numbers":
                kind, given = "integers", whole(given, f"column {self.name!r}")
            if self.form:
                return given
            given = self._parsed(given) if kind == "text" else given
            return self._counted(given) if kind == "integers" else self._as_trained(given)
        except pa.ArrowException as error:
            raise ValueError(f"column {self.name!r}: {error}") from error

    def counts(self, given: pa.ChunkedArray) -> pa.ChunkedArray:
        """The column as integers in `unit`, rounded down; unchanged with a form."""
        times = self.read(given)
        if pa.types.is_date(self.type):
            return times.cast(self.type).cast(pa.int32() if self.unit == "day" else pa.int64())
        return self._in_unit(times) if pa.types.is_timestamp(times.type) else times

    def year(self, value: object) -> int | None:
        """Year of a value in the statistics of a file; None for text and with a form."""
        if isinstance(value, int):
            return int(1970 + value / YEARS[self.unit]) if self.unit else None
        return getattr(value, "year", None)

    def _parsed(self, given: pa.ChunkedArray) -> pa.ChunkedArray:
        texts = given.cast(pa.string())
        parts = pc.extract_regex(texts, ISO)
        has_clock, has_zone = (pc.not_equal(pc.struct_field(parts, name), "") for name in ("clock", "zone"))
        good = pc.and_(pc.or_(has_clock, pa.types.is_date(self.type)), pc.equal(has_zone, self.zone is not None))
        bad = pc.and_(texts.is_valid(), pc.invert(good.fill_null(False)))
        if pc.any(bad).as_py():
            raise self._refusal(repr(texts[pc.index(bad, True).as_py()].as_py()[:60]))
        # Arrow refuses more digits than its unit has.
        texts = pc.replace_substring_regex(texts, "([.][0-9]{6})[0-9]+", r"\1")
        return texts.cast(pa.timestamp("us", self.zone and "UTC"))

    def _counted(self, given: pa.ChunkedArray) -> pa.ChunkedArray:
        first, last = (self.years[0] - MARGIN, self.years[1] + MARGIN) if self.years else PLAUSIBLE
        for value in {*pc.min_max(given).as_py().values()} - {None}:
            year_of = {unit: int(1970 + value / length) for unit, length in YEARS.items()}
            # Any integer is in 1970 in a unit that is small enough.
            fits = [unit for unit, year in year_of.items() if first <= year <= last and year != 1970]
            if not first <= year_of[self.unit] <= last and (fits or self.years):
                way = f", but in {year_of[fits[0]]} in {fits[0]}" if fits else ""
                of = ", and training had {} to {}".format(*self.years) if self.years else ""
                raise self._refusal(f"{value} is in {year_of[self.unit]} in {self.unit}{way}{of}")
        narrow = pa.int32() if pa.types.is_date32(self.type) else pa.int64()
        return given.cast(narrow).cast(self.type)

    def _as_trained(self, times: pa.ChunkedArray) -> pa.ChunkedArray:
        is_date, was_date = pa.types.is_date(times.type), pa.types.is_date(self.type)
        if (getattr(times.type, "tz", None) is None) != (self.zone is None) or (is_date and not was_date):
            raise self._refusal(f"its type is {times.type}")
        if was_date and not is_date:
            return pc.floor_temporal(times, unit="day").cast(pa.date32())
        return self._in_unit(times) if pa.types.is_integer(self.type) else times

    def _in_unit(self, times: pa.ChunkedArray) -> pa.ChunkedArray:
        floors = pc.floor_temporal(times, unit=FLOORS[self.unit])
        return floors.cast(pa.timestamp(self.unit, times.type.tz)).cast(pa.int64())

    def _refusal(self, what: str) -> ValueError:
        form = "2026-11-24" if pa.types.is_date(self.type) else f"2026-11-24T18:30:00{'Z' * bool(self.zone)}"
        zone = "with" if self.zone else "without"
        return ValueError(
            f"column {self.name!r}: {what}; expected, as in training ({self.type}), {form} or any time {zone} a zone, "
            f"or an integer in {self.unit} since 1970"
        )


def time_inputs(
    features: Sequence[AnyFeature], types: Mapping[str, str], years: Mapping[str, tuple[int, int]]
) -> dict[str, TimeInput]:
    """Columns of times among the inputs of features. `types`: names of the Arrow types of the inputs in training.
    `years`: first and last year of each in the training data, where known."""
    found: dict[str, TimeInput] = {}
    for feature in features:
        if not isinstance(feature, Calendar) or (name := feature.column) not in types:
            continue
        if time := TYPES.search(types[name]):
            kind = pa.timestamp(time["unit"], time["zone"]) if time["unit"] else pa.type_for_alias(time[0])
            unit = time["unit"] or ("day" if pa.types.is_date32(kind) else "ms")
            found[name] = TimeInput(name, kind, unit, None, years.get(name))
        elif feature.unit or feature.form:
            found[name] = TimeInput(name, pa.int64(), feature.unit or "", feature.form, years.get(name))
    return found
