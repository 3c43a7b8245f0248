"""Depth of tests: `make test` checks each promise in one form, `make prove` in several, `make prove-all` in all."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import settings

PROVES = ALL = False
"""PROVES: true in `make prove` and `make prove-all`; ALL: true in `make prove-all`. Set by conftest.py before tests are
imported."""
SHARE = 4
"""`make prove` runs one in SHARE of the forms of a test that `make test` skips, and of Hypothesis examples."""


def some(values: Iterable[Any], *quick: Any, several: bool = False) -> list[Any]:
    """Values of a parameter, or tuples of values of `several` parameters. `make test` runs only `quick` values, `make
    prove` also one in SHARE of the others, and `make prove-all` all of them."""
    return [
        value if value in quick else pytest.param(*(value if several else (value,)), marks=pytest.mark.prove)
        for value in values
    ]


def examples(quick: int, all_of_them: int) -> Callable[[Any], Any]:
    """Set the number of Hypothesis examples: `quick` in `make test`, `all_of_them` in `make prove-all`, and a share of
    these in `make prove`."""
    number = deep(quick, all_of_them) if PROVES else quick

    def decorate(test: Any) -> Any:
        return pytest.mark.deep(settings(deadline=None, max_examples=number)(test))

    return decorate


def deep(least: int, all_of_them: int) -> int:
    """Number of repetitions in a proof: all in `make prove-all`, otherwise a share, but at least `least`."""
    return all_of_them if ALL else max(least, all_of_them // SHARE)


def one_in_share(items: list[pytest.Item]) -> list[pytest.Item]:
    """Items that only `make prove-all` runs: all but one in SHARE of the forms of a test. Tests whose forms are
    different promises are marked `prove(every=True)`; tests that take minutes, `prove(weekly=True)`."""
    forms, weekly = defaultdict[str, list[pytest.Item]](list), list[pytest.Item]()
    for item in items:
        marks = [mark.kwargs for mark in item.iter_markers("prove")]
        if any(mark.get("weekly") for mark in marks):
            weekly.append(item)
        elif marks and not any(mark.get("every") for mark in marks):
            forms[item.nodeid.partition("[")[0]].append(item)
    return weekly + [item for of_test in forms.values() for n, item in enumerate(of_test) if n % SHARE]
