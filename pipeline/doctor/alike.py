"""Rows that are like all others: as many as any rows drawn at random have each value of each feature.

Whatever else is said of such rows must be as it is elsewhere, too: their labels, and the values of one more column.
Without this, a day is another day: no share of a value or of the labels says that anything is broken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.doctor.dependence import Coarse, count_difference, counted_rows, counts_of_pairs
from pipeline.doctor.seen import Mask, SeenRows
from pipeline.doctor.times import moments
from pipeline.records import I64

ALIKE = 6.0
"""Standard deviations of chi-square, below which a column's values are distributed alike: of columns of two values one
in 500 exceeds it by chance, of 30 one in 100,000, and then the file is not judged. Also standard errors of a share,
above which a value has grown: 1e-9."""
ALIKE_ROWS = 100
"""Rows that must be there to be compared."""


@dataclass(frozen=True, slots=True)
class Grown:
    """A value that some rows have more often than the others, in the place of all other values alike."""

    column: str
    code: int
    """Number of the value in the column."""
    share: float
    elsewhere: float
    errors: float
    """Standard errors of the difference of both shares."""


def timeless(seen: SeenRows, coarse: Mapping[str, Coarse]) -> dict[str, Coarse]:
    """Features that do not say when a row was made: rows of a file or an hour differ in those anyway."""
    times = {column.name for column in moments(seen)}
    return {name: column for name, column in coarse.items() if name not in times}


def are_alike(seen: SeenRows, some_N: Mask, coarse: Mapping[str, Coarse]) -> bool:
    """True if some rows have the values of all features as often as the others. `some_N`: of the sample."""
    flag_N = some_N[counted_rows(seen)].astype(np.int32)
    tables = (counts_of_pairs(flag_N, column.codes_N, 2) for column in timeless(seen, coarse).values())
    return all(count_difference(table[1], table[0]) < ALIKE for table in tables)


def alike_files(seen: SeenRows, coarse: Mapping[str, Coarse]) -> dict[int, list[Grown]]:
    """Files whose rows are like those of the other files but for one value in some columns, and these values."""
    files_N = seen.file_N[counted_rows(seen)]
    found: dict[int, list[Grown]] = {
        number: [] for number, size in enumerate(np.bincount(files_N)) if ALIKE_ROWS <= size < len(files_N)
    }
    for name, column in timeless(seen, coarse).items():
        table = counts_of_pairs(files_N, column.codes_N, len(seen.files))
        for number in list(found):
            some_C, others_C = table[number], table.sum(0) - table[number]
            if count_difference(some_C, others_C) < ALIKE:
                continue
            grown = _grown(name, column, some_C, others_C)
            if grown is None:
                del found[number]
            else:
                found[number].append(grown)
    return found


def _grown(name: str, column: Coarse, some_C: I64, others_C: I64) -> Grown | None:
    """The value that has grown most, if all others, two at least, are as frequent among each other as elsewhere."""
    num_tops = len(column.tops)
    shares_C, elsewhere_C = some_C / some_C.sum(), others_C / others_C.sum()
    mean_C = (some_C + others_C) / (some_C.sum() + others_C.sum())
    spread_C = np.sqrt(np.maximum(mean_C * (1 - mean_C), 1e-12) * (1 / some_C.sum() + 1 / others_C.sum()))
    errors_C = (shares_C - elsewhere_C) / spread_C
    k = int(np.argmax(errors_C[:num_tops]))
    rest_C = np.arange(len(some_C)) != k
    if errors_C[k] < ALIKE or np.count_nonzero(others_C[rest_C]) < 2:
        return None
    if count_difference(some_C[rest_C], others_C[rest_C]) >= ALIKE:
        return None
    return Grown(name, int(column.tops[k]), float(shares_C[k]), float(elsewhere_C[k]), float(errors_C[k]))
