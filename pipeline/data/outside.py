"""Numbers outside their column's domain, in data to score: one bad row must not prevent the scoring of all others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args

import numpy as np

from pipeline.records import I64

BadValues = Literal["clip", "null", "refuse"]
"""Treatment of a row with such a number: score it with the nearest number inside, make its score null, or refuse all
data."""
SCORED_AS = {"clip": "scored with the nearest value inside", "null": "its row has no score"}


def check_rule(rule: str) -> None:
    """Raises ValueError if it is not one of `BadValues`."""
    if rule not in (names := get_args(BadValues)):
        raise ValueError(f"bad_values is {rule!r}; expected one of {', '.join(names)}")


class Outside:
    """Count of the numbers outside the domain.

    A scored number must be finite in float32, and above -1 if the column has log1p, after `fill` and `shift`. Since
    log1p has no lower bound near -1, the nearest number inside is then 0: counts are whole numbers, and the workflow
    that `prepare` writes shifts the lowest count of the training data to 0.
    """

    def __init__(self, rule: BadValues) -> None:
        self._rule = rule
        self.counts: dict[str, int] = {}
        """Number of such values per column."""
        self._first: dict[str, str] = {}
        self._rows: list[I64] = []

    def add(self, where: str, column: str, rows_N: I64, value: Any) -> None:
        """Count a column's numbers in these rows; `value`: the first one. Raises ValueError if the rule is to
        refuse."""
        said = f"the first is {value!r} at row {rows_N[0]} of {where}"
        if self._rule == "refuse":
            raise ValueError(
                f"column {column!r} (data.numbers): {_counted(len(rows_N))}, {said}; once `fill` and `shift` are "
                "applied, a number must be finite, and above -1 if the column has log1p; correct the data, or have the "
                'other rows scored with bad_values "clip" or "null"'
            )
        self.counts[column] = self.counts.get(column, 0) + len(rows_N)
        self._first.setdefault(column, said)
        if self._rule == "null":
            self._rows.append(rows_N)

    def take_rows(self) -> I64:
        """Rows without a score that were counted since the last call, in any order and possibly repeated."""
        rows, self._rows = self._rows, []
        return np.concatenate([np.empty(0, np.int64), *rows])

    def lines(self) -> Iterator[str]:
        """Yield one line per column."""
        for column, count in self.counts.items():
            yield (f"column {column!r}: {_counted(count)}, {self._first[column]}; {SCORED_AS[self._rule]} (bad_values)")


def _counted(count: int) -> str:
    return f"{count:,} bad value{'' if count == 1 else 's'}"
