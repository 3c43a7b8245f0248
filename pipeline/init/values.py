"""Roles of whole numbers inferred from their values: identifiers, amounts, or clock times.

Treating an id as an amount costs accuracy; treating an amount as an id costs only memory. Columns are therefore taken
for identifiers unless their values show that they are amounts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.files.types import is_list
from pipeline.init.columns import Look
from pipeline.prepare.schema import Role
from pipeline.prepare.times import forms_of, micros_of

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
EPOCH, CLOCKS = (10**9, 2 * 10**9), (1, 10**3, 10**6, 10**9)
"""Seconds since 1970 for times between 2001 and 2033, and the factors for seconds, milli-, micro- and nanoseconds."""


class WholeNumbers:
    """Whole numbers in a sample's columns: the values of each column, their frequencies, and their labels."""

    def __init__(self, look: Look, labels: Sequence[F8]) -> None:
        """`labels`: for each label, [N] 0 or 1 for each row of the sample."""
        self._look, self._labels = look, labels
        self._counted: dict[str, tuple[F8, I8]] = {}

    def forms(self, name: str) -> list[str]:
        """Time formats that all texts of a column match; most columns are ruled out by the first texts."""
        values = self._look.sample.column(name)
        texts = pc.unique(values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values)
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
        """True for days written as 20260131, with or without a trailing hour, and for numbers in the range of a clock.
        Unless the name says that they are times (`named`), the latter must also increase from row to row within each
        file or list, and span at least an hour."""
        values_M = self._counts(name)[0]
        if len(values_M) > 2 and any(_are_days(values_M, hours) for hours in (1, 100)):
            return True
        scales = [s for s in CLOCKS if len(values_M) and EPOCH[0] * s <= values_M[0] and values_M[-1] <= EPOCH[1] * s]
        if not scales or (not named and values_M[-1] - values_M[0] < 3600 * scales[0]):
            return False
        if named:
            return True
        values, within_N = self._look.sample.column(name), self._look.file_of
        if is_list(values.type):
            within_N = pc.list_parent_indices(values.combine_chunks()).to_numpy()
        values_N = _floats(values)
        known_N = np.isfinite(values_N)
        rises_N = (np.diff(values_N[known_N]) >= 0) | (np.diff(within_N[known_N]) != 0)
        return len(values_M) > FEW and bool(rises_N.mean() > UNIQUE_SHARE)

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
            values_N = _floats(self._look.sample.column(name))
            self._counted[name] = np.unique(values_N[np.isfinite(values_N)], return_counts=True)
        return self._counted[name]

    def _rates(self, name: str) -> Iterator[tuple[float, F8]]:
        """Yield for each label its mean where the column has a value, and [M] its sum over the rows of each value."""
        values_N = _floats(self._look.sample.column(name))
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


def _are_days(values_M: F8, hours: int) -> bool:
    """True if all values are calendar days from 2001 to 2032. `hours`: 100 if an hour follows the day, else 1."""
    days_M, hour_M = np.divmod(values_M, hours)
    if not (days_M[0] >= 2001_01_01 and days_M[-1] <= 2032_12_31 and hour_M.max() < 24):
        return False
    texts = pa.array(days_M.astype(np.int64)).cast(pa.string())
    dashed = pc.replace_substring_regex(texts, "^(.{4})(..)(..)$", r"\1-\2-\3")
    return micros_of(dashed, "iso").null_count == 0


def _floats(values: pa.ChunkedArray) -> F8:
    """[N] values of a column, or of its concatenated lists; null becomes NaN."""
    if is_list(values.type):
        values = pc.list_flatten(values)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    return np.asarray(values.cast(pa.float64(), safe=False).to_numpy())


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
