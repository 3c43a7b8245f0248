"""How deep a test goes: `make test` has each promise in one form, `make prove` all of them, and more examples."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import settings

PROVES = False
"""True in `make prove`; set by conftest.py before tests are imported."""


def some(values: Iterable[Any], *quick: Any, several: bool = False) -> list[Any]:
    """Values of a parameter, or of `several` as tuples: `quick` ones for both, the others for `make prove` alone."""
    return [
        value if value in quick else pytest.param(*(value if several else (value,)), marks=pytest.mark.prove)
        for value in values
    ]


def examples(quick: int, all_of_them: int) -> Callable[[Any], Any]:
    """Number of examples that Hypothesis tries, in `make test` and in `make prove`."""

    def decorate(test: Any) -> Any:
        return pytest.mark.deep(settings(deadline=None, max_examples=all_of_them if PROVES else quick)(test))

    return decorate
