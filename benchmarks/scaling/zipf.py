"""How many different keys a number of examples has, and how many of them a cache lacks: expected values, by formula.

A field's keys are drawn from the density x ** -s, s > 0, on [1, K + 1), as `pipeline.data.planted` draws them. Of n
draws, key x is among them with probability 1 - exp(-n p(x)) (draws as a Poisson process), so the number of different
keys is the integral of that over x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

POINTS = 4_000
"""Of the trapezoidal rule, on a grid that is even in log x."""


@dataclass(frozen=True)
class Fields:
    """`number` fields of `num_keys` keys each; an example has one value of each."""

    num_keys: float
    number: int


def unique_keys(fields: tuple[Fields, ...], exponent: float, examples: float, cached: float = 0.0) -> float:
    """Different keys of `examples` examples that are not among the `cached` ones that occur most often.

    So that is what must be fetched if a cache of as many rows were perfect, the least that any cache lets through.
    """
    minimum = _probability_of_rank(fields, exponent, cached) if cached else math.inf
    return sum(
        one.number * _different(examples, one.num_keys, exponent, _hotter(one.num_keys, exponent, minimum))
        for one in fields
    )


def _different(draws: float, num_keys: float, exponent: float, hotter: float) -> float:
    """Expected different keys of the field beyond its `hotter` most frequent ones."""
    if hotter >= num_keys:
        return 0.0
    log_x = np.linspace(math.log(1 + hotter), math.log(1 + num_keys), POINTS)
    x = np.exp(log_x)
    seen = -np.expm1(-draws * _top(num_keys, exponent) * x**-exponent)
    return float(np.trapezoid(seen * x, log_x))


def _top(num_keys: float, exponent: float) -> float:
    """p(1): what makes the density's integral 1."""
    rest = 1.0 - exponent
    return 1.0 / (math.log(1 + num_keys) if abs(rest) < 1e-6 else ((1 + num_keys) ** rest - 1) / rest)


def _hotter(num_keys: float, exponent: float, minimum: float) -> float:
    """Keys of the field that are drawn with a probability above `minimum`."""
    return min(max(0.0, (_top(num_keys, exponent) / minimum) ** (1 / exponent) - 1), num_keys)


def _probability_of_rank(fields: tuple[Fields, ...], exponent: float, rank: float) -> float:
    """The probability that `rank` keys of all fields exceed; by bisection of its logarithm."""
    low, high = -80.0, 0.0
    for _ in range(80):
        middle = (low + high) / 2
        hotter = sum(one.number * _hotter(one.num_keys, exponent, math.exp(middle)) for one in fields)
        low, high = (middle, high) if hotter > rank else (low, middle)
    return math.exp(low)
