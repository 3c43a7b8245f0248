"""How deep a test goes: `make test` has each promise in one form, `make prove` in several, `make prove-all` in all."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import settings

PROVES = ALL = False
"""True in `make prove` and `make prove-all`; in the latter. Set by conftest.py before tests are imported."""
SHARE = 4
"""`make prove` takes one in so many forms of a test that `make test` leaves, and of the examples of Hypothesis."""


def some(values: Iterable[Any], *quick: Any, several: bool = False) -> list[Any]:
    """Values of a parameter, or of `several` as tuples: `quick` ones for `make test` too, the others for
    `make prove`, which takes one in SHARE of them, and `make prove-all`."""
    return [
        value if value in quick else pytest.param(*(value if several else (value,)), marks=pytest.mark.prove)
        for value in values
    ]


def examples(quick: int, all_of_them: int) -> Callable[[Any], Any]:
    """Number of examples that Hypothesis tries, in `make test` and in `make prove-all`; `make prove` tries a share."""
    number = deep(quick, all_of_them) if PROVES else quick

    def decorate(test: Any) -> Any:
        return pytest.mark.deep(settings(deadline=None, max_examples=number)(test))

    return decorate


def deep(least: int, all_of_them: int) -> int:
    """Number of repetitions in a proof: all of them in `make prove-all`, else a share, but `least` at least."""
    return all_of_them if ALL else max(least, all_of_them // SHARE)


def one_in_share(items: list[pytest.Item]) -> list[pytest.Item]:
    """Items that `make prove` leaves to `make prove-all`: of the forms of a test, all but one in SHARE. A test whose
    forms are different promises is marked `prove(every=True)`, one that takes minutes `prove(weekly=True)`."""
    forms, weekly = defaultdict[str, list[pytest.Item]](list), list[pytest.Item]()
    for item in items:
        marks = [mark.kwargs for mark in item.iter_markers("prove")]
        if any(mark.get("weekly") for mark in marks):
            weekly.append(item)
        elif marks and not any(mark.get("every") for mark in marks):
            forms[item.nodeid.partition("[")[0]].append(item)
    return weekly + [item for of_test in forms.values() for n, item in enumerate(of_test) if n % SHARE]
