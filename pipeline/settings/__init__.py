"""Base of all settings and stored records: values are immutable, types are exact (no conversion), and unknown fields
are rejected. For `help`, a class lists its fields, each with the text below it in the source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from inspect import Parameter
from types import FunctionType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_serializer

SPLITS = ("train", "validation", "test")
"""Names of the splits of the data, in the order in which they are shown."""
STRICT = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

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


class Strict(BaseModel, metaclass=Described):
    model_config = STRICT

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        cls.__signature__ = signature(cls)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy with some values replaced, without validation. Raises ValueError if there is no such field."""
        if unknown := ", ".join(sorted({*(update or ())} - {*type(self).model_fields})):
            raise ValueError(f"{type(self).__name__} has no {unknown}; it has {', '.join(type(self).model_fields)}")
        return super().model_copy(update=update, deep=deep)


class Omitting(Strict):
    """Settings with later fields, which JSON omits if they have their defaults: the bytes of commits and servables
    without them do not change."""

    later: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _without_defaults(self, fields_of: Callable[[Self], dict[str, Any]]) -> dict[str, Any]:
        unset = {name for name in self.later if getattr(self, name) == type(self).model_fields[name].default}
        return {name: value for name, value in fields_of(self).items() if name not in unset}


T = TypeVar("T")
# The result of a validator no longer counts as JSON, so a list in JSON is converted here, too.
OR_LIST = BeforeValidator(lambda given: tuple(given) if isinstance(given, list) else given)
"""Annotation of a tuple that may be given as a list."""
Tuple = Annotated[tuple[T, ...], OR_LIST]
"""Values of one type: a tuple, or a list, which becomes one."""
Count = Annotated[int, Field(ge=0, le=1 << 62)]
Amount = Annotated[float, Field(ge=0.0)]
Share = Annotated[float, Field(gt=0.0, le=1.0)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
"""64-bit XXH3 checksum as 16 hexadecimal digits."""
Digests = Annotated[dict[str, Digest], Field(default_factory=dict)]
"""Checksums by name (default: none)."""
Names = Annotated[dict[str, str], Field(default_factory=dict)]
"""Texts by name (default: none)."""
Years = Annotated[dict[str, tuple[int, int]], Field(default_factory=dict)]
"""First and last year by name (default: none)."""
PlainName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""Name of a file in a folder that cannot lead outside the folder."""
ValueKind = Annotated[str, Field(pattern=r"^(lists of )?(integers|text)$")]
"""Kind of a categorical column's values."""


def tagged(kinds: Any, name: str) -> Any:
    """Type of records of several kinds. The field `name` gives the kind of a record."""
    return Annotated[kinds, Field(discriminator=name)]


_adapter: Any = cache(TypeAdapter)


def read_json(kind: type[T], content: str | bytes, classes: Mapping[str, Any] | None = None) -> T:
    """Parse a JSON text as a value of type `kind`. `classes`: model classes by the names that a workflow uses for them;
    any other class is imported by name. Raises ValueError if the text is not such a value, with one line that names the
    first wrong field and the problem."""
    try:
        value: T = _adapter(kind).validate_json(content, context=classes)
        return value
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'content'}: {first['msg']}") from error
