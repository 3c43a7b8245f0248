"""Label rates: files or hours whose labels differ from the rest, and rows sorted by label.

I units (files, hours, or stretches of rows)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipeline.doctor.finding import Finding
from pipeline.doctor.seen import F64, Mask, SeenColumn, SeenRows
from pipeline.doctor.times import moments
from pipeline.records import F32, I32

RATE_ERRORS = 6.0
"""Minimum number of standard errors, including the spread of the other units, to report a rate: by chance, one of 100
units is that far off in one of five million cases."""
FEW = 5
"""Minimum number of other units to estimate their spread."""
ODDS, ODDS_OF_FEW, ODDS_OF_HOUR = 1.1, 1.5, 2.0
"""Minimum ratio of a unit's odds to those of the rest to matter: for one of many units; for one of so few that their
natural spread is unknown; for an hour, which may be dominated by a single user."""
LEAST_LABELS = 10
"""Minimum expected number of labels of the rarer class for a unit to be judged."""
STRETCHES, BUCKETS = 20, 200
WAY = (
    "Were labels lost, set, or joined too early there? Compute them again, or leave these rows out; if these rows are "
    "another population, nothing is wrong"
)


@dataclass(frozen=True, slots=True)
class Off:
    """Deviation of one unit's rate from that of the others."""

    rest: float
    odds: float
    """Ratio of the higher odds to the lower."""
    errors: float


class LabelRates:
    """Label counts by unit."""

    def __init__(self, units_N: I32, labels_N: F32, num: int) -> None:
        self.size_I: F64 = np.bincount(units_N, minlength=num).astype(np.float64)
        self.hits_I: F64 = np.bincount(units_N, labels_N, num).astype(np.float64)
        rarer = min(float(labels_N.mean()), 1 - float(labels_N.mean()))
        self.judged: list[int] = np.flatnonzero(self.size_I * rarer >= LEAST_LABELS).tolist()
        """Units with enough rows."""

    def compare(self, number: int) -> Off | None:
        """Compare a unit with the other judged units; None if there are none, or they all have the same label."""
        others = [other for other in self.judged if other != number]
        hits_J, size_J = self.hits_I[others], self.size_I[others]
        known = len(others) >= FEW
        rest = float(np.median(hits_J / size_J)) if known else float(hits_J.sum() / max(1.0, size_J.sum()))
        if not 0 < rest < 1:
            return None
        hits, size = float(self.hits_I[number]), float(self.size_I[number])
        variance = rest * (1 - rest)
        # Variance among the others, from the median deviation (of a normal distribution), minus that expected by
        # chance.
        chance = variance / float(np.median(size_J))
        spread = (1.4826 * float(np.median(np.abs(hits_J / size_J - rest)))) ** 2 - chance
        natural = max(0.0, spread) if known else 0.0
        error = math.sqrt(variance * (1 / size + 1 / float(size_J.sum())) + natural)
        odds = (hits + 0.5) / (size - hits + 0.5) * (1 - rest) / rest
        return Off(rest, max(odds, 1 / odds), abs(hits / size - rest) / error)


def find_label_rates(seen: SeenRows) -> list[Finding]:
    """Compare the rates of each label by file and by each time column, and check whether rows are sorted by label."""
    found = []
    for label, name in enumerate(seen.label_names):
        labels_N = np.ascontiguousarray(seen.labels_NT[:, label])
        mean = float(labels_N.mean())
        if not 0 < mean < 1:
            said = f"{name} is {mean:g} in all {len(labels_N):,} rows: there is nothing to learn; correct the files"
            found.append(Finding("label_rate", "fault", (name,), said))
            continue
        of_label = list(_by_file(seen, labels_N, name)) or list(_in_order(seen, labels_N, name))
        found += [*of_label, *_by_time(seen, labels_N, name)]
    return found


def _by_file(seen: SeenRows, labels_N: F32, name: str) -> Iterator[Finding]:
    """Files whose rate differs by more than the natural spread between files."""
    rates = LabelRates(seen.file_N, labels_N, len(seen.files))
    for number in rates.judged:
        found = rates.compare(number)
        least = ODDS_OF_FEW if len(rates.judged) <= FEW else ODDS
        if found and found.errors >= RATE_ERRORS and found.odds >= least:
            yield _finding(name, rates, number, found, f"the rows of {seen.files[number].path.name}")


def _in_order(seen: SeenRows, labels_N: F32, name: str) -> Iterator[Finding]:
    """Report rows sorted by label: most stretches of rows have a single label."""
    size = math.ceil(LEAST_LABELS / min(float(labels_N.mean()), 1 - float(labels_N.mean())))
    units: list[I32] = []
    total = 0
    for file in seen.files:
        num = max(1, min(STRETCHES, file.num_seen // size))
        units.append(total + np.arange(file.num_seen, dtype=np.int32) * num // file.num_seen)
        total += num
    rates = LabelRates(np.concatenate(units), labels_N, total)
    one_kind = [n for n in rates.judged if rates.hits_I[n] in (0, rates.size_I[n])]
    if len(rates.judged) > 1 and 2 * len(one_kind) >= len(rates.judged):
        said = (
            f"the rows are in the order of {name}: {len(one_kind)} of {len(rates.judged)} stretches of about {size:,} "
            "rows or more have one label only, and so would batches. Shuffle the rows of the files"
        )
        yield Finding("label_rate", "fault", (name,), said)


def _by_time(seen: SeenRows, labels_N: F32, name: str) -> Iterator[Finding]:
    """For each time column, the time that is farthest off, and the number of others."""
    for column in moments(seen):
        units_N = _buckets(column)
        rates = LabelRates(units_N, labels_N, int(units_N.max()) + 1)
        judged = rates.judged if len(rates.judged) > FEW else []
        off = {n: found for n in judged if (found := rates.compare(n))}
        off = {n: found for n, found in off.items() if found.errors >= RATE_ERRORS and found.odds >= ODDS_OF_HOUR}
        if off:
            worst = max(off, key=lambda n: off[n].errors)
            more = f" ({len(off) - 1} of {len(rates.judged)} others are off, too)" if len(off) > 1 else ""
            yield _finding(name, rates, worst, off[worst], _rows_at(seen, column, units_N == worst) + more)


def _rows_at(seen: SeenRows, column: SeenColumn, some_N: Mask) -> str:
    rows = np.flatnonzero(some_N)
    assert column.raw_N is not None
    ends = [rows[np.argmin(column.raw_N[rows])], rows[np.argmax(column.raw_N[rows])]]
    low, high = (seen.shown(column, int(column.codes_N[row])) for row in ends)
    return f"the rows with {column.name} {low}" + (f" to {high}" if low != high else "")


def _buckets(column: SeenColumn) -> I32:
    """[N] index of each row's time or, if there are more than BUCKETS times, of one of BUCKETS equal intervals."""
    if column.num_values <= BUCKETS:
        return column.codes_N
    assert column.raw_N is not None
    low, high = np.nanmin(column.raw_N), np.nanmax(column.raw_N)
    parts_N = np.nan_to_num((column.raw_N - low) / max(high - low, 1e-300) * BUCKETS, nan=BUCKETS)
    return np.minimum(parts_N, BUCKETS).astype(np.int32)


def _finding(name: str, rates: LabelRates, number: int, found: Off, what: str) -> Finding:
    hits, size = rates.hits_I[number], rates.size_I[number]
    said = (
        f"{name} is 1 in {hits / size:.4f} of {int(size):,} rows, {what}, and in {found.rest:.4f} of the others "
        f"({found.errors:.0f} standard errors). {WAY}"
    )
    return Finding("label_rate", "fault", (name,), said)
