"""The rules of all values that come from outside: they cannot be changed, are of the very types that are named, and
there are no others."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

STRICT = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class Strict(BaseModel):
    model_config = STRICT


T = TypeVar("T", bound=Strict)
Count = Annotated[int, Field(ge=0, le=1 << 62)]
Amount = Annotated[float, Field(ge=0.0)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
"""XXH3, 64 bits, in hexadecimal digits."""


def read_json(kind: type[T], content: str | bytes) -> T:
    """The value that a JSON text holds. ValueError, in one line, says where it is another kind of value and why."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'content'}: {first['msg']}") from error
