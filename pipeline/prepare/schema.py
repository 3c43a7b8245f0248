"""User-written schema of a table: a list of NAME:ROLE[:TYPE], or a file with that list and the syntax of lines. If a
label's values are not 0 and 1, its type names the values that become 0 and 1: NAME:label:no/yes. And times written as
text: the known forms, and conversion to microseconds since 1970 for comparison.

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

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.errors import system_text
from pipeline.settings import Strict

DAY = 86_400_000_000
DAYS = {
    "iso": r"(?P<year>[0-9]{4})[-/](?P<month>[0-9]{1,2})[-/](?P<day>[0-9]{1,2})",
    "d.m.y": r"(?P<day>[0-9]{1,2})\.(?P<month>[0-9]{1,2})\.(?P<year>[0-9]{4})",
    "d/m/y": r"(?P<day>[0-9]{1,2})[-/](?P<month>[0-9]{1,2})[-/](?P<year>[0-9]{4})",
    "m/d/y": r"(?P<month>[0-9]{1,2})[-/](?P<day>[0-9]{1,2})[-/](?P<year>[0-9]{4})",
    "d-mon-y": r"(?P<day>[0-9]{1,2})[-/ ](?P<month>[A-Za-z]{3})[-/ ](?P<year>[0-9]{4})",
}
"""Pattern of the date in each form."""
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
CLOCK = (
    r"(?:[T :](?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]+))?)?"
    r"(?: ?(?P<half>[AaPp])[Mm])? ?(?:Z|UTC|(?P<sign>[-+])(?P<ahead>[0-9]{2}):?(?P<further>[0-9]{2})?)?)?"
)
"""Pattern of what may follow the date: a time of day, 24-hour or 12-hour with AM or PM, and a time zone (default: UTC).
"""


def micros_of(texts: pa.Array | pa.ChunkedArray, form: str) -> pa.Array:
    """[N] int64 microseconds since 1970 in UTC; further digits are truncated. Null for a text that is not a time in
    this form. Each distinct text is parsed once."""
    codes = (texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts).dictionary_encode()
    found = pc.extract_regex(codes.dictionary.cast(pa.string()), f"^{DAYS[form]}{CLOCK}$")

    def part(name: str) -> NDArray[np.int64]:
        values = pc.fill_null(pc.struct_field(found, name), "0")
        if name == "month" and form == "d-mon-y":
            return np.asarray(pc.fill_null(pc.index_in(pc.utf8_lower(values), pa.array(MONTHS)), -1)).astype(int) + 1
        # Absent optional groups are empty.
        return np.asarray(pc.if_else(pc.equal(values, ""), "0", values).cast(pa.int64()))

    fraction_U = pc.utf8_slice_codeunits(
        pc.utf8_rpad(pc.fill_null(pc.struct_field(found, "fraction"), ""), 6, "0"), 0, 6
    )
    year_U, month_U, day_U = part("year"), part("month"), part("day")
    hour_U, minute_U, second_U = part("hour"), part("minute"), part("second")
    months_U = (year_U - 1970) * 12 + np.clip(month_U, 1, 12) - 1
    date_U = months_U.astype("datetime64[M]").astype("datetime64[D]") + (day_U - 1)
    good_U = np.asarray(pc.is_valid(found)) & (month_U >= 1) & (month_U <= 12) & (day_U >= 1)
    good_U &= date_U.astype("datetime64[M]").astype(np.int64) == months_U
    half = pc.utf8_lower(pc.fill_null(pc.struct_field(found, "half"), ""))
    in_halves_U, is_pm_U = np.asarray(pc.not_equal(half, "")), np.asarray(pc.equal(half, "p"))
    good_U &= np.where(in_halves_U, (hour_U >= 1) & (hour_U <= 12), hour_U <= 23) & (minute_U <= 59) & (second_U <= 59)
    hour_U = np.where(in_halves_U, hour_U % 12 + 12 * is_pm_U, hour_U)
    behind_U = np.asarray(pc.fill_null(pc.equal(pc.struct_field(found, "sign"), "-"), False))
    offset_U = part("ahead") * 60 + part("further")
    minutes_U = hour_U * 60 + minute_U - np.where(behind_U, -offset_U, offset_U)
    micros_U = date_U.astype(np.int64) * DAY + (minutes_U * 60 + second_U) * 1_000_000
    micros_U += np.asarray(fraction_U.cast(pa.int64()))
    return pa.array(micros_U, mask=~good_U).take(codes.indices)


def forms_of(texts: pa.Array | pa.ChunkedArray) -> list[str]:
    """Forms that all texts match; several if only the order of day and month is ambiguous. Nulls are ignored."""
    texts = texts.drop_null()
    return [form for form in DAYS if len(texts) and not micros_of(texts, form).null_count]


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
