"""Texts of settings for `help` and for schemas: those of the class, and of each field, as the source has them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from inspect import Parameter
from types import FunctionType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

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
        return "\n".join([_own_text(cls), "", "Fields:", *_lines(cls)])


class _Text(str):
    def __repr__(self) -> str:
        return str(self)


def describe(schema: dict[str, Any], kind: Any) -> None:
    """Add the texts to the JSON schema of a class."""
    schema["description"], texts = _own_text(kind), _texts(kind)
    for name, field in schema.get("properties", {}).items():
        field |= {"description": texts[name]} if name in texts else {}


def signature(kind: Any) -> inspect.Signature:
    """Fields and their defaults, without types, since those of pydantic fill pages."""
    fields = {name: default for name, (_, default) in _fields(kind).items()}
    return inspect.Signature([Parameter(n, Parameter.KEYWORD_ONLY, default=fields[n]) for n in fields])


def _fields(kind: Any) -> dict[str, tuple[Any, Any]]:
    """Type and default of each field, except for one whose only value says which class it is. A group of settings is
    shown as its class."""
    found = {}
    for name, field in kind.model_fields.items():
        value = Parameter.empty if field.default is PydanticUndefined else field.default
        if isinstance(value, BaseModel) and value == type(value)():
            value = _Text(f"{type(value).__name__}()")
        if name != "kind" or get_origin(field.annotation) is not Literal:
            found[name] = field.annotation, value
    return found


def _owners(kind: Any) -> list[Any]:
    return [owner for owner in kind.__mro__ if isinstance(owner, Described)]


def _own_text(kind: Any) -> str:
    return inspect.cleandoc(vars(kind).get("__doc__") or "")


@cache
def _texts(kind: Any) -> dict[str, str]:
    """Text below each field in the source. One below several fields is that of all of them."""
    found: dict[str, str] = {}
    for owner in reversed(_owners(kind)):
        fields: list[str] = []
        try:
            source: Any = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        except (OSError, TypeError):
            continue  # A class that was typed in has no file.
        for node in source.body:
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                found |= dict.fromkeys(fields, inspect.cleandoc(str(node.value.value)))
            fields = [*fields, ast.unparse(node.target)] if isinstance(node, ast.AnnAssign) else []
    return found


def _lines(kind: Any) -> Iterator[str]:
    fields, texts = _fields(kind), _texts(kind)
    for (name, (found, default)), after in zip(fields.items(), [*fields, ""][1:], strict=True):
        yield f"  {name}: {_type_text(found)}{'' if default is Parameter.empty else f' = {default!r}'}"
        if name in texts and texts[name] != texts.get(after):
            yield textwrap.indent(texts[name], "      ")


def _type_text(kind: Any) -> str:
    """A type as it is written, without constraints."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _type_text(args[0])
    if origin in (Union, UnionType, Literal):
        return " | ".join(repr(arg) if origin is Literal else _type_text(arg) for arg in args)
    name = "None" if kind is type(None) else "..." if kind is ... else getattr(kind, "__name__", str(kind))
    return f"{name}[{', '.join(map(_type_text, args))}]" if args else name
