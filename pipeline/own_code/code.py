"""Digest and argument names of a user's class. The digest covers the code of its methods and the functions, classes and
constants that they name. It describes the class in memory, even if the file has changed since; comments, docstrings and
module names do not affect it."""

from __future__ import annotations

import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any, get_args, get_type_hints, is_typeddict

GIVEN = ("num_fields", "num_numbers", "embedding_dim")
"""Arguments that every model class receives; model.args does not contain them."""
OWN_PACKAGE = __name__.partition(".")[0]
LIBRARIES = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "purelib", "platlib")})
NOT_CODE = ("__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__firstlineno__")
EDITED = "model.kind {kind}, or what it calls, was edited since the run was trained with it"
PLAIN = (int, float, complex, str, bytes, bool, type(None), type(...))


def code_digest(kind: Any) -> str:
    """Digest of the code that a user's class or function runs, preceded by the Python version that compiled it."""
    parts = "\n".join(_parts(kind, set()))
    return f"{sys.version_info[0]}.{sys.version_info[1]} {hashlib.blake2b(parts.encode(), digest_size=8).hexdigest()}"


def is_other_code(before: str, now: str) -> bool:
    """True if two digests show that a class was edited; False if one is unknown or from another Python version."""
    return before != now and before.partition(" ")[0] == now.partition(" ")[0]


def is_library(module: str) -> bool:
    """True if a module belongs to this package, the standard library or an installed library."""
    top = module.partition(".")[0]
    if top == OWN_PACKAGE or top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return file.startswith(LIBRARIES) or "/site-packages/" in file or "/dist-packages/" in file


def _parts(value: Any, seen: set[int]) -> Iterator[str]:
    if isinstance(value, PLAIN):
        yield repr(value)
    elif id(value) in seen:
        yield "seen"
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _parts(item, seen)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield repr(name) if isinstance(name, PLAIN) else type(name).__qualname__
            yield from _parts(item, seen)
    elif isinstance(value, frozenset | set):
        # The order of strings in a set differs between processes.
        yield from sorted("\n".join(_parts(item, seen)) for item in value)
    elif isinstance(value, CodeType):
        yield from (value.co_code.hex(), repr((value.co_names, value.co_varnames, value.co_freevars, value.co_flags)))
        yield from _parts(value.co_consts, seen)
    elif isinstance(value, staticmethod | classmethod):
        yield from _parts(value.__func__, seen)
    elif isinstance(value, property):
        yield from _parts((value.fget, value.fset), seen)
    elif isinstance(value, partial):
        yield from _parts((value.func, value.args, value.keywords), seen)
    elif isinstance(value, FunctionType) and not is_library(value.__module__ or ""):
        seen.add(id(value))
        yield from _function(value, seen)
    elif isinstance(value, type) and not is_library(value.__module__):
        seen.add(id(value))
        yield value.__qualname__
        yield from _parts(value.__bases__, seen)
        yield from _parts({name: vars(value)[name] for name in sorted(vars(value)) if name not in NOT_CODE}, seen)
    else:
        # From a library, or data of another kind.
        yield getattr(value, "__qualname__", type(value).__qualname__)


def _function(function: FunctionType, seen: set[int]) -> Iterator[str]:
    code = function.__code__
    doc = function.__doc__ is not None and code.co_consts[:1] == (function.__doc__,)
    yield from _parts(code.replace(co_consts=(None, *code.co_consts[1:])) if doc else code, seen)
    yield from _parts((function.__defaults__, function.__kwdefaults__), seen)
    for cell in function.__closure__ or ():
        try:
            yield from _parts(cell.cell_contents, seen)
        except ValueError:
            yield "empty"
    yield from _named(sorted(_names(code)), function.__globals__, seen)


def _named(
    names: Sequence[str], space: Mapping[str, Any], seen: set[int], outer: tuple[object, ...] = ()
) -> Iterator[str]:
    """Parts of the objects that names in a function's code may refer to, in a module and in the modules that it
    imports."""
    for name in names:
        found = space.get(name)
        if isinstance(found, ModuleType):
            if found not in outer and not is_library(found.__name__):
                yield from _named(names, vars(found), seen, (*outer, found))
        elif found is not None:
            yield name
            yield from _parts(found, seen)


def _names(code: CodeType) -> set[str]:
    """Names of globals and attributes in the code of a function and its nested functions."""
    inner = (_names(const) for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*inner)


def arguments_of(kind: Callable[..., object]) -> list[str] | None:
    """Return the argument names allowed in model.args, or None if the class accepts any or its names are unknown."""
    try:
        parameters = inspect.signature(kind).parameters.values()
        names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        if any(p.kind == p.VAR_KEYWORD for p in parameters):
            hints = get_type_hints(kind.__init__)
            (others,) = get_args(next(hints[p.name] for p in parameters if p.kind == p.VAR_KEYWORD))
            if not is_typeddict(others):
                return None
            names += others.__annotations__
    # A user's class may have any signature, and type hints that cannot be resolved.
    except Exception:
        return None
    # A callable without these arguments, such as dict, is rejected as a whole, not because of a name in model.args.
    return [name for name in names if name not in (*GIVEN, "sequences")] if set(GIVEN) <= set(names) else None
