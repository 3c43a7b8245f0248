"""Base of all settings and stored records: values are immutable, types are exact (no conversion), and unknown fields
are rejected."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from pipeline.settings.described import Described, signature

SPLITS = ("train", "validation", "test")
"""Names of the splits of the data, in the order in which they are shown."""
STRICT = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


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
