"""User-written schema of a table: a list of NAME:ROLE[:TYPE], or a file with that list and the syntax of lines. If a
label's values are not 0 and 1, its type names the values that become 0 and 1: NAME:label:no/yes.

Example in JSON; TOML has the same keys:

    {"columns": ["click:label", "price:number", "age:number:int32", "city:category", "tags:category:string[|]",
                 "seen:time:iso", "note:skip"],
     "delimiter": ",", "header": true, "quoting": true, "newlines": false, "backslashes": false, "skip_others": false,
     "nulls": ["NA", "NULL"], "nulls_of": {"city": ["unknown"]}}
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, cast

import pyarrow as pa

from pipeline.errors import system_text
from pipeline.prepare.times import DAYS
from pipeline.settings import Strict

Role = Literal["label", "number", "category", "time", "skip", "list"]
"""`list` is the role of generated columns that workflows do not read."""
TYPES: dict[str, tuple[str, ...]] = {
    "label": ("int8",),
    "number": ("float32", "int32", "int64", "whole", "comma", "bool"),
    "category": ("string", "binary", "int32", "int64", "uint64", "whole"),
    "time": ("int64", "int32", "string", "float64", "whole", *DAYS),
    "skip": ("binary",),
}
"""Allowed column types of each role; the first is the default. Text must be UTF-8, `binary` may be any bytes. Times of
type `string` are compared as text, so they must be written year first. Times in a form of `DAYS` are also kept as
written, but compared as times."""
FORMS = {"whole": "int64", "comma": "float32", **dict.fromkeys(DAYS, "string")}
"""Types that also specify the notation: `whole` numbers are written as 7, not 007 or +7; `comma` as 0,5."""
LISTS = re.compile(r"(string|int64|uint64)\[(.+)\]")
"""Type of a category with lists of values: string[|] if separated by |, string[json] if written as JSON."""

ROLE = re.compile(rf":({'|'.join(TYPES)})(?=:|\Z)")


class Schema(Strict):
    columns: tuple[str, ...]
    """NAME:ROLE[:TYPE] of each column; see TYPES."""
    delimiter: str = ","
    header: bool = True
    quoting: bool = True
    newlines: bool = False
    backslashes: bool = False
    skip_others: bool = False
    nulls: tuple[str, ...] = ()
    """Texts that are null, as an empty one is, in columns of numbers and times."""
    nulls_of: dict[str, tuple[str, ...]] | None = None
    """The same of single columns, of any role but labels, instead of `nulls`."""


class Field(NamedTuple):
    name: str
    role: Role
    type: pa.DataType
    """Type of a single value, even if `many`."""
    many: bool = False
    """True if each example has a list of values."""
    values: tuple[str, str] | None = None
    """Values of a label that become 0 and 1, case-insensitive; None: 0 and 1."""
    form: str = ""
    """Notation of the values, unless plain: one of FORMS, or the separator of lists."""
    nulls: tuple[str, ...] = ()
    """Texts that mean null, besides the empty one."""
    history: str = ""
    """Event column with the values of the history list; empty for a column of the source."""

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.list_(self.type) if self.many else self.type


def read_schema(schema: Path | Sequence[str]) -> Schema:
    """Read a schema from a file or a list. Raises ValueError, with the file and the cause, if the file is invalid."""
    if not isinstance(schema, Path):
        return Schema(columns=tuple(schema))
    try:
        text = schema.read_text()
        found = tomllib.loads(text) if schema.suffix == ".toml" else json.loads(text)
        read = Schema.model_validate_json(json.dumps(found, default=str))
        names = [column.name for column in roles_of(read.columns)]
        if strangers := [name for name in read.nulls_of or () if name not in names]:
            raise ValueError(f"nulls_of: there is no column {', '.join(strangers)}")
        if len(read.delimiter.encode()) != 1:
            raise ValueError(f"delimiter: expected one character of ASCII, got {read.delimiter!r}")
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(system_text(error) or f"{schema} is not a schema of columns: {error}") from error
    return read


def roles_of(columns: Iterable[str], typed: bool = True) -> list[Field]:
    """Parse each NAME:ROLE[:TYPE], or NAME:ROLE if not `typed`."""
    return [_column_of(column, typed) for column in columns]


def _column_of(column: str, typed: bool) -> Field:
    # A name may contain colons, even followed by role names: the first valid interpretation counts.
    first: ValueError | None = None
    for found in ROLE.finditer(column):
        try:
            return _field_of(column, column[: found.start()], found[1], column[found.end() + 1 :], typed)
        except ValueError as error:
            first = first or error
    raise first or _no_role(column, typed)


def _no_role(column: str, typed: bool) -> ValueError:
    return ValueError(
        f"expected NAME:ROLE{'[:TYPE]' if typed else ''} with a role of {', '.join(TYPES)}, got {column!r}"
    )


def _field_of(column: str, name: str, role: str, given: str, typed: bool) -> Field:
    """Field of a column written as NAME:ROLE[:TYPE]. Raises ValueError if it is invalid."""
    spelled = role == "label" and given not in ("", *TYPES[role])
    if not name or (given and not spelled and (not typed or ":" in given)):
        raise _no_role(column, typed)
    if spelled:
        return Field(name, "label", pa.int8(), values=_label_values(column, given))
    if role == "category" and (lists := LISTS.fullmatch(given)):
        return Field(name, "category", pa.type_for_alias(lists[1]), many=True, form=lists[2])
    if given and given not in TYPES[role]:
        raise ValueError(f"{column!r}: a {role} has type {' or '.join(TYPES[role])}, got {given!r}")
    kind = pa.type_for_alias(FORMS.get(given, given) or TYPES[role][0])
    return Field(name, cast(Role, role), kind, form=given if given in FORMS else "")


def _label_values(column: str, given: str) -> tuple[str, str]:
    negative, _, positive = given.partition("/")
    if not negative or not positive or "/" in positive or negative.lower() == positive.lower():
        raise ValueError(
            f"{column!r}: a label has type int8, or the two values that become 0 and 1, such as no/yes; got {given!r}"
        )
    return negative, positive
