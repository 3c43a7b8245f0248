"""Checks of a workflow's `model.args`. Errors state the name, the value, and what is expected."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def whole(name: str, value: object, minimum: int = 1) -> int:
    """Return the value. Raises ValueError if it is not an integer of at least `minimum`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"{name} is {value!r}; expected an integer of at least {minimum}")
    return value


def widths(name: str, values: Sequence[int], minimum: int = 0) -> tuple[int, ...]:
    """Return the layer widths as a tuple. Raises ValueError if `values` are not positive integers for at least
    `minimum` layers."""
    if not isinstance(values, list | tuple) or len(values) < minimum:
        raise ValueError(f"{name} is {values!r}; expected the widths of at least {minimum} layers, such as [400, 400]")
    return tuple(whole(f"{name}[{layer}]", width) for layer, width in enumerate(values))


def one_of(name: str, value: str, choices: Iterable[str]) -> str:
    """Return the value. Raises ValueError if it is not one of the choices."""
    if value not in (known := tuple(choices)):
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(known)}")
    return value


def flag(name: str, value: bool) -> bool:
    """Return the value. Raises ValueError if it is not a bool."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}; expected true or false")
    return value


def at_least_zero(name: str, value: float) -> float:
    """Return the value. Raises ValueError if it is not a finite number of at least 0."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise ValueError(f"{name} is {value!r}; expected a number of at least 0")
    return value


def probability(name: str, value: float) -> float:
    """Return the value. Raises ValueError if it is not a number of at least 0 and less than 1."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise ValueError(f"{name} is {value!r}; expected a probability of at least 0 and less than 1")
    return value
