"""Descriptions of settings for `help` and schemas: the fields of a class, each with the text below it in the source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from inspect import Parameter
from types import FunctionType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


class Described(ModelMetaclass):
    # Metaclass of settings. `help` lists what `dir` returns, so methods of pydantic are left out; they work as always.
    def __dir__(cls) -> list[str]:
        own = {name: value for owner in _owners(cls) for name, value in vars(owner).items() if name[0] != "_"}
        return [name for name, value in own.items() if isinstance(value, FunctionType | property)]

    @property
    def __doc__(cls) -> str:  # type: ignore[override]
        return "\n".join([inspect.cleandoc(vars(cls).get("__doc__") or ""), "", "Fields:", *_lines(cls)])


def signature(kind: Any) -> inspect.Signature:
    """Fields and their defaults, without types, since those of pydantic fill pages."""
    defaults = {name: _default(field) for name, field in kind.model_fields.items()}
    return inspect.Signature([Parameter(n, Parameter.KEYWORD_ONLY, default=defaults[n]) for n in defaults])


def _default(field: Any) -> Any:
    return Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)


def _owners(kind: Any) -> list[Any]:
    return [owner for owner in kind.__mro__ if isinstance(owner, Described)]


def _lines(kind: Any) -> Iterator[str]:
    """Yield the fields. A text below several fields is that of all of them."""
    texts: dict[str, str] = {}
    for owner in reversed(_owners(kind)):
        above: list[str] = []
        for node in getattr(ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0], "body", ()):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                texts |= dict.fromkeys(above, textwrap.indent(inspect.cleandoc(str(node.value.value)), "      "))
            above = [*above, ast.unparse(node.target)] if isinstance(node, ast.AnnAssign) else []
    # The only value of a `kind` says which class it is.
    names = [n for n, field in kind.model_fields.items() if n != "kind" or get_origin(field.annotation) is not Literal]
    for name, after in zip(names, [*names, ""][1:], strict=True):
        default = _default(field := kind.model_fields[name])
        shown = f"{type(default).__name__}()" if isinstance(default, BaseModel) else repr(default)
        yield f"  {name}: {_type_text(field.annotation)}{'' if field.is_required() else f' = {shown}'}"
        if name in texts and texts[name] != texts.get(after):
            yield texts[name]


def _type_text(kind: Any) -> str:
    """A type as it is written, without constraints."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _type_text(args[0])
    if origin in (Union, UnionType, Literal):
        return " | ".join(repr(arg) if origin is Literal else _type_text(arg) for arg in args)
    name = "None" if kind is type(None) else "..." if kind is ... else getattr(kind, "__name__", str(kind))
    return f"{name}[{', '.join(map(_type_text, args))}]" if args else name
