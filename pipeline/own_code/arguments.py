"""Arguments of a user's class."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import get_args, get_type_hints, is_typeddict

GIVEN = ("num_fields", "num_numbers", "embedding_dim")
"""Arguments of every model class, which model.args does not have."""


def arguments_of(kind: Callable[..., object]) -> list[str] | None:
    """Return the names that model.args may have. Returns None if the class takes any, or if its names are unknown."""
    try:
        parameters = inspect.signature(kind).parameters.values()
        names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        if any(p.kind == p.VAR_KEYWORD for p in parameters):
            hints = get_type_hints(kind.__init__)
            (others,) = get_args(next(hints[p.name] for p in parameters if p.kind == p.VAR_KEYWORD))
            if not is_typeddict(others):
                return None
            names += others.__annotations__
    # A class of the user's own may have any signature, and hints of names that cannot be found.
    except Exception:
        return None
    # A callable that does not take these, such as dict, fails as a whole, not for a name of model.args.
    return [name for name in names if name not in GIVEN] if set(GIVEN) <= set(names) else None
