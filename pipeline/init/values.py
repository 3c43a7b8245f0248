"""Roles of whole numbers inferred from their values: identifiers, amounts, or clock times.

Treating an id as an amount costs accuracy; treating an amount as an id costs only memory. Columns are therefore taken
for identifiers unless their values show that they are amounts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.files.find import DataFile
from pipeline.files.flat import open_file
from pipeline.files.plausible import MAX_OUTSIDE, UNITS, parsed
from pipeline.files.types import is_list
from pipeline.init.columns import Look, decoded
from pipeline.prepare.draft import DraftedTime, suffixes
from pipeline.prepare.schema import Role, forms_of

F8 = NDArray[np.float64]
I8 = NDArray[np.int64]
MIN_ROWS, UNIQUE_SHARE = 1000, 0.95
"""Minimum number of rows for a meaningful share of distinct values, and the minimum share for a key."""
DENSE = 0.9
"""Minimum share of the whole numbers from minimum to maximum that occur in a column of numbered things."""
FEW = 200
"""Number of distinct values up to which a column without gaps hardly ever contains amounts."""
SCALES = (32, 128)
"""Range of the number of distinct values of scales without gaps, such as ages and weeks, that may have an order."""
COMPARED = 2000
"""Maximum number of values looked up in other columns."""
OFTEN = 5
"""Minimum number of rows of a frequent value: for amounts, neighbouring numbers occur as well."""
SMOOTH, JUMP = 0.6, 2.5
"""Minimum correlation of the frequencies of neighbouring amounts, and the maximum change of a label's rate between
them, relative to chance."""
ZERO, UNEVEN, EVEN = 0.1, 0.25, 0.1
"""Minimum share of zeros among amounts that are often zero, the minimum distance of the others from a uniform
distribution, and the maximum distance for keys."""
LOW = 0.05
"""Maximum share of the range that contains half of the rows, for amounts with a few very large values."""
EPOCH = (10**9, 2 * 10**9)
"""Seconds since 1970 for times between 2001 and 2033."""
DIGITS = ("%Y%m%d", "%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S", "%y%m%d%H")
"""Formats of times as decimal digits."""
TEXTS = [
    f"{date}{clock}"
    for date in ("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y")
    for clock in (" %H:%M:%S", "T%H:%M:%S", " %H:%M:%SZ", "T%H:%M:%SZ", " %H:%M", "T%H:%M")
]
"""Formats of times in text."""
MIN_STEPS = 100
"""Minimum number of steps from row to row that show a number of the row."""


class WholeNumbers:
    """Whole numbers in a sample's columns: the values of each column, their frequencies, and their labels."""

    def __init__(self, look: Look, labels: Sequence[F8]) -> None:
        """`labels`: for each label, [N] 0 or 1 for each row of the sample."""
        self._look, self._labels = look, labels
        self._counted: dict[str, tuple[F8, I8]] = {}

    def forms(self, name: str) -> list[str]:
        """Time formats that all texts of a column match; most columns are ruled out by the first texts."""
        texts = pc.unique(decoded(self._look.sample.column(name)))
        is_text = pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)
        return forms_of(texts) if is_text and forms_of(texts[:100]) else []

    def are_unique(self, num_different: int, known: int) -> bool:
        """True if values hardly ever repeat in the files. The number of repeats in the sample is scaled up: a sample of
        a tenth of the rows contains only a tenth of the other rows with the same value."""
        files = max(1.0, sum(self._look.rows) / self._look.sample.num_rows)
        return known >= MIN_ROWS and (known - num_different) * files <= (1 - UNIQUE_SHARE) * known

    def are_whole(self, name: str) -> bool:
        """True if no value of the column has a fraction, regardless of its type."""
        values_M = self._counts(name)[0]
        return bool((values_M == np.trunc(values_M)).all())

    def are_times(self, name: str, named: bool) -> bool:
        """True for numbers whose decimal digits are times, and for numbers in the range of a clock. Unless the name
        says that they are times (`named`), the latter must also increase from row to row within each file or list, and
        span at least an hour."""
        values_M, counts_M = self._counts(name)
        clock = clock_of(values_M, counts_M)
        if named or not clock or clock.startswith("%"):
            return bool(clock)
        if len(values_M) <= FEW or values_M[-1] - values_M[0] < 3600 * UNITS[clock]:
            return False
        steps_N = self._steps(name)
        return len(steps_N) > 0 and bool((steps_N >= 0).mean() > UNIQUE_SHARE)

    def are_row_numbers(self, name: str) -> bool:
        """True if values increase from each row of a file to the next."""
        steps_N = self._steps(name)
        return len(steps_N) >= MIN_STEPS and bool((steps_N > 0).all())

    def _steps(self, name: str) -> F8:
        """[N] differences of known values that follow each other in a file, or in a list."""
        values, within_N = self._look.sample.column(name), self._look.file_of
        if is_list(values.type):
            within_N = pc.list_parent_indices(values.combine_chunks()).to_numpy()
        values_N = floats_of(values)
        known_N = np.isfinite(values_N)
        return np.diff(values_N[known_N])[np.diff(within_N[known_N]) == 0]

    def role(self, name: str) -> tuple[Role, str, bool]:
        """Role of whole numbers, the reason, and whether the opposite role is also possible."""
        values_M, counts_M = self._counts(name)
        known, num, (least, greatest) = int(counts_M.sum()), len(values_M), values_M[[0, -1]]
        if least < -1:
            return "number", "some are negative, like amounts", True
        if num >= DENSE * (greatest - least + 1):
            if SCALES[0] <= num <= SCALES[1] and self._is_scale(name):
                return "number", f"without gaps from {least:,.0f} on, and the label rises or falls with it", True
            return "category", f"whole numbers without gaps from {least:,.0f} on, like numbered things", num > FEW
        if reason := self._amounts(name):
            return "number", reason, True
        if other := self._also_in(name):
            return "category", f"its values are also in {other}", False
        if self.are_unique(num, known):
            if _distance(values_M) < EVEN:
                return "skip", "unique per row, and evenly spread like a key", True
            return "number", "hardly any value repeats, like amounts", True
        return "category", f"{num:,} different whole numbers with gaps, like ids", True

    def _counts(self, name: str) -> tuple[F8, I8]:
        """[M] distinct finite values, sorted, and [M] their frequencies."""
        if name not in self._counted:
            self._counted[name] = counted(floats_of(self._look.sample.column(name)))
        return self._counted[name]

    def _rates(self, name: str) -> Iterator[tuple[float, F8]]:
        """Yield for each label its mean where the column has a value, and [M] its sum over the rows of each value."""
        values_N = floats_of(self._look.sample.column(name))
        known_N = np.isfinite(values_N)
        places_N = np.searchsorted(self._counts(name)[0], values_N[known_N])
        for label_N in self._labels:
            sums_M = np.bincount(places_N, label_N[known_N], len(self._counts(name)[0])).astype(np.float64)
            yield float(label_N[known_N].mean()), sums_M

    def _also_in(self, name: str) -> str | None:
        """Name of another column that contains most values of this one, but few of the neighbouring numbers; None if
        there is none."""
        values_M, draw = self._counts(name)[0], np.random.default_rng(0)
        some_C = draw.choice(values_M, COMPARED, replace=False) if len(values_M) > COMPARED else values_M
        for other in self._look.columns:
            if other.name == name or other.kind not in ("integers", "lists of integers") or other.num_different <= 8:
                continue
            others = self._counts(other.name)[0]
            near = np.mean([np.isin(some_C + step, others).mean() for step in (-2, -1, 1, 2)])
            if np.isin(some_C, others).mean() >= max(0.5, 2 * near):
                return other.name
        return None

    def _is_scale(self, name: str) -> bool:
        """True if a label depends on the order of the values: its rates differ between sixteen ranges of values more
        than between sixteen random groups of values, by five standard deviations. False for values numbered by
        decreasing frequency."""
        counts_M = self._counts(name)[1]
        if (np.diff(counts_M) <= 0).mean() > UNIQUE_SHARE:
            return False
        draw = np.random.default_rng(0)
        orders = [np.arange(len(counts_M)), *(draw.permutation(len(counts_M)) for _ in range(40))]
        for mean, sums_M in self._rates(name):
            found, *others = (_spread(counts_M[order], sums_M[order], mean) for order in orders)
            if found > np.mean(others) + 5 * np.std(others):
                return True
        return False

    def _amounts(self, name: str) -> str | None:
        """Reason why whole numbers with gaps are amounts; None if there is no evidence."""
        values_M, counts_M = self._counts(name)
        num, known, (least, greatest) = len(values_M), counts_M.sum(), values_M[[0, -1]]
        steps = np.diff(values_M)[counts_M[:-1] >= OFTEN]
        sizes, times = np.unique(steps, return_counts=True) if len(steps) else (np.ones(1), np.zeros(1))
        # Amounts in steps of five are multiples of five; numbered things may start anywhere.
        is_even = len(steps) >= 8 and times.max() >= len(steps) / 2 and least % sizes[times.argmax()] == 0
        if num >= SCALES[0] and is_even and _likeness(counts_M) > SMOOTH and not self._jumps(name):
            return "neighbouring values are about as frequent, like counts"
        rest = values_M[values_M != 0]
        if least == 0 and counts_M[0] >= ZERO * known and _distance(rest) > max(UNEVEN, 2 / len(rest) ** 0.5):
            return f"{counts_M[0] / known:.0%} are 0, and the others far from evenly spread, like amounts"
        median = values_M[np.searchsorted(np.cumsum(counts_M), known / 2)]
        digit = np.bincount((np.abs(rest) % 10).astype(int)).max() / len(rest)
        is_rounded = digit > 0.2 and (digit - 0.1) * len(rest) ** 0.5 > 1.5
        if median - least <= LOW * (greatest - least) and (is_rounded or known < 3 * num):
            return f"half of them are at most {median:,.0f}, and the greatest is {greatest:,.0f}, like amounts"
        return None

    def _jumps(self, name: str) -> bool:
        """True if a label's rate is unrelated between neighbouring values, as for things; for amounts, it changes
        gradually."""
        counts_M = self._counts(name)[1]
        often_M = counts_M >= 20
        if often_M.sum() < 20:
            return False
        for _, sums_M in self._rates(name):
            n, s = counts_M[often_M].astype(float), sums_M[often_M]
            p = (s[1:] + s[:-1] + 1) / (n[1:] + n[:-1] + 2)
            steps = n[1:] * n[:-1] / (n[1:] + n[:-1]) * np.diff(s / n) ** 2 / (p * (1 - p))
            # By chance, the median is that of chi-square with one degree of freedom: 0.455.
            if np.median(steps) > JUMP * 0.455:
                return True
        return False


def drafted_time(
    look: Look, times: Sequence[str], columns: Collection[str], files: Iterable[DataFile]
) -> DraftedTime | None:
    """The first of the columns `times` without nulls that has hours and that `Calendar` can read in all rows; None if
    there is none. `columns`: those of the Parquet files `files`."""
    for name in (name for name in times if name in columns and not look.sample.column(name).null_count):
        values, clock, zone = decoded(look.sample.column(name)), "", ""
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            clock = next((form for form in TEXTS if _are_in(form, values[:100]) and _are_in(form, values)), "")
        elif pa.types.is_integer(values.type):
            clock = clock_in(values)
        elif pa.types.is_timestamp(values.type):
            # The zone of a place has local hours; a fixed offset is no name that `Calendar` takes.
            zone = values.type.tz if "/" in (values.type.tz or "") else ""
        if form := clock if "%" in clock else "":
            values = pc.strptime(values.cast(pa.string()), form, "s")
        elif clock:
            values = values.cast(pa.int64()).cast(pa.timestamp(clock))
        elif not pa.types.is_timestamp(values.type):
            continue
        parts = {"hour": pc.hour(values), "weekday": pc.day_of_week(values)}
        taken = [part for part, of_N in parts.items() if pc.count_distinct(of_N).as_py() > 1]
        opened = map(open_file, files if form else ())
        read = (file.iter_batches(1 << 16, columns=[name], use_threads=False) for file in opened)
        if "hour" in taken and all(_are_in(form, batch.column(0)) for batches in read for batch in batches):
            ends = suffixes(columns, [f"_{part}" for part in taken])
            settings = {"zone": zone} if zone else {"form" if form else "unit": clock} if clock else {}
            return DraftedTime(name, {part: name + end for part, end in zip(taken, ends, strict=True)}, settings)
    return None


def _are_in(form: str, values: pa.ChunkedArray | pa.Array) -> bool:
    """True if all texts, or digits of integers, are times in this format."""
    return parsed(values.cast(pa.string()), form).null_count == 0


def clock_in(values: pa.ChunkedArray) -> str:
    """See `clock_of`; "" for values that are no numbers."""
    is_number = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
    return clock_of(*counted(floats_of(values))) if is_number else ""


def clock_of(values_M: F8, counts_M: I8) -> str:
    """How numbers say times: the format of their decimal digits, such as "%Y%m%d%H" for 2026013107, or the unit since
    1970 that puts them between 2001 and 2033, but for MAX_OUTSIDE of the rows; "" if neither is possible. The numbers
    are as from `counted`."""
    # Shorter numbers are often ids.
    is_long = (
        len(values_M) > 2
        and 10_01_01_00 <= values_M[0] <= values_M[-1] < 10**14
        and (values_M == np.trunc(values_M)).all()
    )
    texts = pa.array(values_M.astype(np.int64) if is_long else ()).cast(pa.string())
    for form in DIGITS if is_long else ():
        if _are_in(form, texts[:100]):
            times = pc.strptime(texts, form, "s", error_is_null=True)
            years = pc.min_max(pc.year(times)).as_py()
            # 30 February would become 2 March.
            if pc.strftime(times, form).equals(texts) and 2001 <= years["min"] <= years["max"] <= 2032:
                return form
    most = (1 - MAX_OUTSIDE) * counts_M.sum()
    for unit, scale in UNITS.items() if len(values_M) else ():
        if counts_M[(EPOCH[0] * scale <= values_M) & (values_M <= EPOCH[1] * scale)].sum() >= most:
            return unit
    return ""


def counted(values_N: F8) -> tuple[F8, I8]:
    """[M] distinct finite values, sorted, and [M] their frequencies."""
    return np.unique(values_N[np.isfinite(values_N)], return_counts=True)


def floats_of(values: pa.ChunkedArray) -> F8:
    """[N] values of a column, or of its concatenated lists; null becomes NaN, and times counts of their unit."""
    if is_list(values.type):
        values = pc.list_flatten(values)
    if pa.types.is_temporal(values.type):
        values = values.cast(pa.int32() if values.type == pa.date32() else pa.int64())
    return np.asarray(decoded(values).cast(pa.float64(), safe=False).to_numpy())


def _spread(counts_M: I8, sums_M: F8, mean: float) -> float:
    """Sum over sixteen consecutive ranges with about the same number of rows: squared deviation of a label's sum from
    its expectation, divided by the number of rows."""
    range_M = ((np.cumsum(counts_M) - counts_M / 2) * 16 / counts_M.sum()).astype(int)
    rows, sums = np.bincount(range_M, counts_M, 16), np.bincount(range_M, sums_M, 16)
    return float(((sums - rows * mean) ** 2 / np.maximum(rows, 1)).sum())


def _likeness(counts_M: I8) -> float:
    """Correlation of the log frequencies of neighbouring values; 0 if all values are equally frequent."""
    logs_M = np.log(counts_M)
    if logs_M[1:].std() == 0 or logs_M[:-1].std() == 0:
        return 0.0
    return float(np.corrcoef(logs_M[1:], logs_M[:-1])[0, 1])


def _distance(values_M: F8) -> float:
    """Maximum distance of the values' distribution from the uniform distribution (Kolmogorov and Smirnov)."""
    if len(values_M) < 2:
        return 0.0
    places_M = (values_M - values_M[0]) / (values_M[-1] - values_M[0])
    return float(np.abs(places_M - (np.arange(len(values_M)) + 0.5) / len(values_M)).max())
