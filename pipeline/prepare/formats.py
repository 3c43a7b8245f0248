"""Formats of raw logs: columns of a line, their roles, and the syntax of lines.

Column names and meanings follow the data sets' publishers: Criteo's display advertising challenge (2014) and its 1 TB
click logs, which share a layout, and Avazu's click-through rate challenge (2015).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import pyarrow as pa

from pipeline.files.find import DataFile, matches_name
from pipeline.files.flat import United, open_file, unite
from pipeline.files.types import HOLDS, fits, instead, is_list, kind_of, value_of
from pipeline.prepare.histories import Histories
from pipeline.prepare.schema import Field, Role, read_schema, roles_of

CALENDAR = ("hour_of_day", "weekday", "weekend")
"""Columns derived from hours written as YYMMDDHH: 0 .. 23; 0 (Monday) .. 6; 1 if the weekday is 5 or 6."""

MAX_COLUMNS = 10_000
LARGEST_NUMBER = (1 << 20) - 1
"""Largest field number or index that may become a column."""
QUERY = Field("qid", "list", pa.int64())
"""Column of the numbers of queries in lines `label qid:number index:value ...` of libsvm."""


@dataclass(frozen=True)
class Format:
    """Rules for reading a source. `fields` are in line order, followed by derived fields."""

    name: str
    kind: Literal["text", "json", "libsvm", "libffm", "parquet"]
    fields: tuple[Field, ...]
    delimiter: str = "\t"
    header: bool = False
    """True if the first line names the columns; the column order may then differ between files."""
    headerless: tuple[str, ...] = ()
    """Shell patterns of the sources without a header, if others have one."""
    quoting: bool = False
    """True if a value in double quotes may contain the delimiter, and quotes written as two quotes."""
    newlines: bool = False
    """True if a quoted value may also contain newlines. Such a file is not cut, but read from the start."""
    backslashes: bool = False
    """True if quotes within quotes are escaped with a backslash, as in Spark."""
    skip_others: bool = False
    """True if header columns not named in `fields` are omitted; otherwise they are an error."""
    calendar: str | None = None
    """Source column of the CALENDAR columns."""
    last_bytes: int | None = None
    """Length in bytes of a line's last value, if fixed; used to detect a file truncated within that value."""
    ignore_values: bool = False
    """True if values other than 1 are accepted and ignored (libsvm and libffm)."""
    left_out: tuple[str, ...] = ()
    """Names of skipped columns that may be absent from lines: the labels of rows to be scored."""
    histories: Histories | None = None
    """Source of the history columns."""

    notes: tuple[str, ...] = ()
    """Remarks on the sources, one line each."""

    def has_header(self, path: DataFile) -> bool:
        return self.header and not any(matches_name(path, pattern) for pattern in self.headerless)

    @property
    def in_lines(self) -> tuple[Field, ...]:
        """Fields of a line, without derived fields."""
        return tuple(f for f in self.fields if not (self.calendar and f.name in CALENDAR))

    @property
    def schema(self) -> pa.Schema:
        """Schema of the tables read: all columns except skipped ones, in the order of `fields`."""
        return pa.schema([(f.name, f.arrow_type) for f in self.fields if f.role != "skip"])

    @property
    def in_file(self) -> list[str]:
        """Names of the columns read from a Parquet file."""
        return [f.name for f in self.fields if f.role != "skip" and not f.history]


def criteo() -> Format:
    """Tab-separated lines without a header: label, 13 counts (may be negative), 26 categories of 8 hex digits each."""
    numbers, categories = (f"i{n}:number:int32" for n in range(1, 14)), (f"c{n}:category" for n in range(1, 27))
    return Format("criteo", "text", tuple(roles_of(["label:label", *numbers, *categories])), last_bytes=8)


AVAZU = (
    "click:label", "hour:time:int32", *(f"{name}:category:int32" for name in ("C1", "banner_pos")),
    *(f"{kind}_{what}:category" for kind in ("site", "app") for what in ("id", "domain", "category")),
    *(f"device_{what}:category" for what in ("id", "ip", "model")),
    *(f"{name}:category:int32" for name in ("device_type", "device_conn_type", *(f"C{n}" for n in range(14, 22)))),
)  # fmt: skip
"""Columns of Avazu's lines after `id`, in order."""


def avazu() -> Format:
    """CSV with a header. `id`, unique per row, is skipped. `hour` is kept as an integer YYMMDDHH for splits by time.
    The CALENDAR columns, for models, are derived from it here, since a workflow cannot derive them."""
    made = (Field(name, "category", pa.int8()) for name in CALENDAR)
    fields = (Field("id", "skip", pa.string()), *roles_of(AVAZU), *made)
    return Format("avazu", "text", fields, delimiter=",", header=True, calendar="hour")


def csv(schema: Path | Sequence[str], kind: Literal["text", "json"] = "text") -> Format:
    """Any delimited text, or JSON objects, one per line, described by a schema file (see schema.py) or by
    NAME:ROLE[:TYPE] of each column (for delimited text, in order).

    Raises ValueError, with the cause, if the schema is invalid.
    """
    found = read_schema(schema)
    nulls = {"number": found.nulls, "time": found.nulls}
    fields = tuple(
        field._replace(nulls=(found.nulls_of or {}).get(field.name, nulls.get(field.role, ())))
        for field in roles_of(found.columns)
    )
    _check(fields)
    if kind == "json":
        return Format("json", "json", fields)
    names = ("delimiter", "header", "quoting", "newlines", "backslashes", "skip_others")
    return Format("csv", "text", fields, **{name: getattr(found, name) for name in names})


def libsvm(numbers: Sequence[int] = (), ignore_values: bool = False) -> Format:
    """Lines `label index:value ...`. Each index in `numbers` becomes a column n{index} of its values, 0 where it is
    absent; all others go into one list column, `ids`. Workflows read lists of ids, not of floats, so the values of the
    others must be 1 unless they are ignored."""
    _check_numbers("libsvm: indices of numbers", numbers)
    fields = (Field("label", "label", pa.int8()), Field("ids", "category", pa.int64(), many=True))
    others = (Field(f"n{index}", "number", pa.float32()) for index in sorted(set(numbers)))
    return Format("libsvm", "libsvm", (*fields, *others), ignore_values=ignore_values)


def libffm(
    fields: Sequence[int], many: Sequence[int] = (), numbers: Sequence[int] = (), ignore_values: bool = False
) -> Format:
    """Lines `label field:index:value ...`. Each of `fields` becomes a column f{field}: its list of indices if the field
    is in `many`, its value if in `numbers`, else its index; null if a line lacks the field. Values outside `numbers`
    must be 1 unless they are ignored."""
    _check_numbers("libffm: fields", fields)
    if not fields:
        raise ValueError("libffm: no fields are named; each becomes a column, so give their numbers")
    if strangers := {*many, *numbers} - {*fields} or {*many} & {*numbers}:
        raise ValueError(
            f"libffm: fields {sorted(strangers)} are named in `many` or `numbers` but not in `fields`, "
            "or in both; name each field once in `fields`, and in at most one of the two"
        )
    columns = [
        Field(f"f{n}", "number", pa.float32()) if n in numbers else Field(f"f{n}", "category", pa.int64(), n in many)
        for n in sorted(set(fields))
    ]
    return Format("libffm", "libffm", (Field("label", "label", pa.int8()), *columns), ignore_values=ignore_values)


def without_labels(format: Format) -> Format:
    """Return the format without its labels, for rows to be scored."""
    fields = (f._replace(role="skip", type=pa.binary(), values=None) if f.role == "label" else f for f in format.fields)
    return replace(format, fields=tuple(fields), left_out=tuple(f.name for f in format.fields if f.role == "label"))


def parquet_format(columns: Sequence[str], paths: Sequence[DataFile], no_label: bool = False) -> Format:
    """Parquet files with columns NAME:ROLE, with types that can represent the values of all files. NAME may be a
    pattern (`c*:category`), but also matches literally. The first match of a column determines its role. Columns
    without a match are omitted, as are labels if `no_label`."""
    schemas = {}
    for path in paths:
        with open_file(path) as file:
            schemas[path] = file.schema_arrow
    there = unite(schemas)
    names = [column.name for column in there]
    patterns = [p for p in roles_of(columns, typed=False) if not (no_label and p.role == "label")]
    if unused := [p.name for p in patterns if not any(_matches(name, p.name) for name in names)]:
        raise ValueError(f"{paths[0]}: no column is named {', '.join(unused)}; it has: {', '.join(names)}")
    found = ((column, next((p for p in patterns if _matches(column.name, p.name)), None)) for column in there)
    chosen = [(column, p) for column, p in found if p and p.role != "skip"]
    fields = tuple(_as_read(paths[0], column, p.role, p.values) for column, p in chosen)
    if not no_label:
        _check(fields)
    notes = tuple(column.note(len(paths)) for column, _ in chosen if column.lacking)
    return Format("parquet", "parquet", fields, notes=notes)


def _matches(name: str, pattern: str) -> bool:
    # Taken as a pattern, "price [USD]" does not match itself.
    return name == pattern or fnmatchcase(name, pattern)


def _as_read(path: DataFile, column: United, role: Role, values: tuple[str, str] | None) -> Field:
    """Field of a Parquet column. Dictionaries are decoded; labels become int8, floats become float32, or int64 in
    categories."""
    found = column.type
    if column.conflict:
        raise ValueError(column.conflict)
    if column.lacking and role in ("label", "time"):
        raise ValueError(
            f"{column.lacking[0]}: has no column {column.name!r}, a {role}, which other files have; add it, or leave "
            "this file out"
        )
    roles = ("category", "list") if role == "category" else (role,)
    if not fits(found, *roles) and not (values and kind_of(found) == "text"):
        allowed = [kind for role in roles for kind in HOLDS[role]]
        ways = f"convert it in the file: {instead(found)}" if instead(found) else "convert it in the file"
        raise ValueError(
            f"{path}: column {column.name!r} has type {found}, but a {role} holds {' or '.join(allowed)}; "
            f"give the column another role, or {ways}"
        )
    many = is_list(found)
    value = value_of(found.value_type if many else found)
    if role == "label":
        value = pa.int8()
    elif role == "number" and (pa.types.is_floating(value) or pa.types.is_null(value)):
        value = pa.float32()
    elif role == "category" and kind_of(value) not in ("integers", "text"):
        value = pa.uint8() if pa.types.is_boolean(value) else pa.int64()
    return Field(column.name, role, value, many, values)


def _check_numbers(what: str, numbers: Sequence[int]) -> None:
    if len(set(numbers)) > MAX_COLUMNS or not all(0 <= n <= LARGEST_NUMBER for n in numbers):
        raise ValueError(
            f"{what}: expected at most {MAX_COLUMNS:,} from 0 to {LARGEST_NUMBER:,}, got {len(set(numbers)):,} from "
            f"{min(numbers)} to {max(numbers)}; fewer columns can be trained on as well"
        )


def _check(fields: Sequence[Field]) -> None:
    names = [f.name for f in fields]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"columns named more than once: {', '.join(twice)}; name each column once")
    if not any(f.role == "label" for f in fields):
        raise ValueError("no column has the role `label`; a workflow needs one: give a column of 0 and 1 that role")
