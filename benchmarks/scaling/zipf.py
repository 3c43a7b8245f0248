"""Expected number of unique keys of a number of examples, and of those missing in a cache, by formula.

A field's keys are drawn from the density x ** -s, s > 0, on [1, K + 1), as in `pipeline.data.planted`. Key x is among n
draws with probability 1 - exp(-n p(x)) (draws as a Poisson process), so the number of unique keys is the integral of
that over x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

POINTS = 4_000
"""Number of points of the trapezoidal rule, on a grid that is uniform in log x."""


@dataclass(frozen=True)
class Fields:
    """`number` fields of `num_keys` keys each. An example has one value of each."""

    num_keys: float
    number: int


def unique_keys(fields: tuple[Fields, ...], exponent: float, examples: float, cached: float = 0.0) -> float:
    """Expected unique keys of `examples` examples that are not among the `cached` most frequent ones.

    That is the number of rows to fetch with a perfect cache of that size: a lower bound for any cache.
    """
    minimum = _probability_of_rank(fields, exponent, cached) if cached else math.inf
    return sum(
        one.number * _different(examples, one.num_keys, exponent, _hotter(one.num_keys, exponent, minimum))
        for one in fields
    )


def _different(draws: float, num_keys: float, exponent: float, hotter: float) -> float:
    """Expected unique keys of a field beyond its `hotter` most frequent ones."""
    if hotter >= num_keys:
        return 0.0
    log_x = np.linspace(math.log(1 + hotter), math.log(1 + num_keys), POINTS)
    x = np.exp(log_x)
    seen = -np.expm1(-draws * _top(num_keys, exponent) * x**-exponent)
    return float(np.trapezoid(seen * x, log_x))


def _top(num_keys: float, exponent: float) -> float:
    """Value of p(1), which makes the density's integral 1."""
    rest = 1.0 - exponent
    return 1.0 / (math.log(1 + num_keys) if abs(rest) < 1e-6 else ((1 + num_keys) ** rest - 1) / rest)


def _hotter(num_keys: float, exponent: float, minimum: float) -> float:
    """Number of keys of a field that are drawn with a probability above `minimum`."""
    return min(max(0.0, (_top(num_keys, exponent) / minimum) ** (1 / exponent) - 1), num_keys)


def _probability_of_rank(fields: tuple[Fields, ...], exponent: float, rank: float) -> float:
    """Probability that `rank` keys over all fields exceed, found by bisection of its logarithm."""
    low, high = -80.0, 0.0
    for _ in range(80):
        middle = (low + high) / 2
        hotter = sum(one.number * _hotter(one.num_keys, exponent, math.exp(middle)) for one in fields)
        low, high = (middle, high) if hotter > rank else (low, middle)
    return math.exp(low)
