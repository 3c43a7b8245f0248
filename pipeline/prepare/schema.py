"""Schema that a user writes for a table: a list of NAME:ROLE[:TYPE], or a file with that list and the syntax of lines.
Of a label that is not 0 and 1, the type is the values that become these: NAME:label:no/yes.

Example in JSON; TOML has the same keys:

    {"columns": ["click:label", "price:number", "age:number:int32", "city:category", "note:skip"],
     "delimiter": ",", "header": true, "quoting": true, "newlines": false, "skip_others": false}
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, cast

import pyarrow as pa

from pipeline.errors import system_text
from pipeline.settings import Strict

Role = Literal["label", "number", "category", "time", "skip", "list"]
"""`list` is that of lists which are made here and which no workflow reads."""
TYPES: dict[str, tuple[str, ...]] = {
    "label": ("int8",),
    "number": ("float32", "int32", "int64"),
    "category": ("string", "binary", "int32", "int64", "uint64"),
    "time": ("int64", "int32", "string"),
    "skip": ("binary",),
}
"""Types that a column of each role may have; the first is the default. Text must be UTF-8, `binary` may be any bytes.
Times as text are compared as text, so they must be written year first (ISO 8601)."""


class Schema(Strict):
    columns: tuple[str, ...]
    """NAME:ROLE[:TYPE] of each column; see TYPES."""
    delimiter: str = ","
    header: bool = True
    quoting: bool = True
    newlines: bool = False
    skip_others: bool = False


class SchemaColumn(NamedTuple):
    name: str
    role: Role
    type: pa.DataType
    values: tuple[str, str] | None = None
    """Values of a label that become 0 and 1."""


def read_schema(schema: Path | Sequence[str]) -> Schema:
    """Read a schema from a file or a list. Raises ValueError, with the file and the cause, if the file is wrong."""
    if not isinstance(schema, Path):
        return Schema(columns=tuple(schema))
    try:
        text = schema.read_text()
        found = tomllib.loads(text) if schema.suffix == ".toml" else json.loads(text)
        read = Schema.model_validate_json(json.dumps(found, default=str))
        roles_of(read.columns)
        if len(read.delimiter.encode()) != 1:
            raise ValueError(f"delimiter: expected one character of ASCII, got {read.delimiter!r}")
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(system_text(error) or f"{schema}: is no schema of columns: {error}") from error
    return read


def roles_of(columns: Sequence[str], typed: bool = True) -> list[SchemaColumn]:
    """Parse each NAME:ROLE[:TYPE], or NAME:ROLE if not `typed`."""
    return [_column_of(column, typed) for column in columns]


def _column_of(column: str, typed: bool) -> SchemaColumn:
    name, role, given = (*column.split(":", 2), "", "")[:3]
    spelled = role == "label" and given not in ("", *TYPES[role])
    if not name or role not in TYPES or (column.count(":") > 1 + typed and not spelled):
        raise ValueError(
            f"expected NAME:ROLE{'[:TYPE]' if typed else ''} with a role of {', '.join(TYPES)}, got {column!r}"
        )
    if spelled:
        return SchemaColumn(name, "label", pa.int8(), _label_values(column, given))
    if given and given not in TYPES[role]:
        raise ValueError(f"{column!r}: a {role} has type {' or '.join(TYPES[role])}, got {given!r}")
    return SchemaColumn(name, cast(Role, role), pa.type_for_alias(given or TYPES[role][0]))


def _label_values(column: str, given: str) -> tuple[str, str]:
    negative, _, positive = given.partition("/")
    if not negative or not positive or "/" in positive or negative.lower() == positive.lower():
        raise ValueError(
            f"{column!r}: a label has type int8, or the two values that become 0 and 1, as in no/yes; got {given!r}"
        )
    return negative, positive
