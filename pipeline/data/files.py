"""The files of a split, and checks that their columns are what the workflow says."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.workflow import Data, Number

SPLITS = ("train", "validation", "test")
FLOATS = "integers, floating-point numbers or booleans"
GROUPS = "integers, strings or binary, or a dictionary of those"
KEYS = "integers, strings or binary, a dictionary of those, or a list of those"


@dataclass(frozen=True, slots=True)
class InputColumn:
    """A column that the workflow names, and what it is for."""

    name: str
    setting: str
    """"data.labels", "data.weight", "data.numbers", "data.categories" or "metrics.group"."""
    number: Number | None = None
    table: str = ""

    @property
    def is_category(self) -> bool:
        return self.setting == "data.categories"

    @property
    def is_group(self) -> bool:
        return self.setting == "metrics.group"

    @property
    def has_keys(self) -> bool:
        """Return whether its values are hashed."""
        return self.is_category or self.is_group

    def is_multi(self, kinds: dict[str, str]) -> bool:
        """Return whether it is a column of lists; `kinds` as in `SchemaCheck`."""
        return kinds.get(self.name, "").startswith("lists")


def columns_of(data: Data, group: str | None = None) -> list[InputColumn]:
    """Every column to be read: labels, weight, numbers, categories, each in the order of the workflow, and the one that
    `group` names, which may be one of those before."""
    labels = [InputColumn(name, "data.labels") for name in data.labels]
    weight = [InputColumn(data.weight, "data.weight")] if data.weight else []
    numbers = [InputColumn(n.name, "data.numbers", number=n) for n in data.numbers]
    categories = [InputColumn(c.name, "data.categories", table=c.table_name) for c in data.categories]
    # The keys of a dictionary that a category and the group share are those of the category's table.
    table = next((c.table_name for c in data.categories if c.name == group), group)
    groups = [InputColumn(group, "metrics.group", table=table or group)] if group else []
    return [*labels, *weight, *numbers, *categories, *groups]


def resolve(data: Data, split: str) -> list[Path]:
    """The split's files: each pattern's in sorted order, pattern after pattern, none twice.

    Raises ValueError for a pattern that finds nothing, or a folder with nothing in it.
    """
    files: dict[Path, None] = {}
    for pattern in getattr(data, split):
        found = matches(data, pattern)
        below = {match: sorted(match.rglob("*.parquet")) if match.is_dir() else [match] for match in found}
        if not any(below.values()):
            raise ValueError(
                f"data.{split}: {pattern!r} matches no Parquet file (looked for {_place(data, pattern)}); "
                f"correct the pattern, or data.root, which is {str(data.root)!r}"
            )
        for match in found:
            if not below[match]:
                raise ValueError(
                    f"data.{split}: {pattern!r} matches {match}, too, a folder that holds no Parquet file; correct the "
                    "pattern, or move the folder away"
                )
            files.update(dict.fromkeys(below[match]))
    return list(files)


def matches(data: Data, pattern: str) -> list[Path]:
    """Files and folders, in sorted order."""
    path = _place(data, pattern)
    return [path] if path.exists() else [Path(p) for p in sorted(glob.glob(str(path), recursive=True))]


def _place(data: Data, pattern: str) -> Path:
    return data.root.expanduser() / Path(pattern).expanduser()


def open_file(path: Path, **options: Any) -> pq.ParquetFile:
    """Opens a Parquet file; ValueError, with the cause, if it is none or is damaged."""
    try:
        return pq.ParquetFile(path, **options)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: cannot be read as Parquet, is it complete? ({error})") from error


def kind_of(found: pa.DataType) -> str | None:
    """Return what a column of this Arrow type holds, in the words of the messages; None for what is never read."""
    types = pa.types
    if types.is_list(found) or types.is_large_list(found):
        inner = kind_of(found.value_type)
        return f"lists of {inner}" if inner in ("integers", "text") else None
    if types.is_dictionary(found):
        inner = kind_of(found.value_type)
        return inner if inner in ("integers", "text") else None
    if types.is_integer(found):
        return "integers"
    if types.is_floating(found) or types.is_boolean(found):
        return "numbers"
    text = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return "text" if any(is_type(found) for is_type in text) else None


class SchemaCheck:
    """Checks one file after the other, and that they agree with each other."""

    def __init__(self, columns: list[InputColumn]) -> None:
        self.columns = columns
        self.trained = frozenset(column.name for column in columns if not column.is_group)
        """Names of those that are trained on."""
        self.targets = frozenset(column.name for column in columns if column.setting in ("data.labels", "data.weight"))
        """Names of those that examples are trained towards."""
        self.kinds: dict[str, str] = {}
        """What each column of keys holds, as the first file has it."""
        self._first: Path | None = None

    def check(self, path: Path, schema: pa.Schema) -> None:
        """ValueError names file, column, the type found, the types expected, and what to change."""
        for column in self.columns:
            kind = _checked_kind(path, schema, column)
            if column.has_keys and self.kinds.setdefault(column.name, kind) != kind:
                raise ValueError(
                    f"{path}: column {column.name!r} ({column.setting}) holds {kind}, expected "
                    f"{self.kinds[column.name]} as in {self._first}; "
                    "write the column alike in all files, or remove the file from the patterns"
                )
        self._first = self._first or path


def _checked_kind(path: Path, schema: pa.Schema, column: InputColumn) -> str:
    where = f"{path}: column {column.name!r} ({column.setting})"
    at = schema.get_all_field_indices(column.name)
    if len(at) != 1:
        problem = "is missing" if not at else f"is there {len(at)} times"
        raise ValueError(
            f"{where} {problem}, expected once; correct the name in {column.setting} or the file, "
            f"which has: {', '.join(schema.names)}"
        )
    found = schema.field(at[0]).type
    kind = kind_of(found)
    allowed = _allowed_kinds(found, column)
    if kind is None or kind not in allowed:
        expected, instead = _expected(column)
        raise ValueError(f"{where} has type {found}, expected {expected}; convert the column in the file, or {instead}")
    return kind


def _expected(column: InputColumn) -> tuple[str, str]:
    """The types that a column may have, and what to do about another, both in words."""
    if column.is_group:
        return GROUPS, "name another one in metrics.group"
    expected, other = (KEYS, "data.numbers") if column.is_category else (FLOATS, "data.categories")
    return expected, f"leave it out of {column.setting} (would it fit {other}?)"


def _allowed_kinds(found: pa.DataType, column: InputColumn) -> tuple[str, ...]:
    if column.is_category:
        return ("integers", "text", "lists of integers", "lists of text")
    if column.is_group:
        return ("integers", "text")
    return () if pa.types.is_dictionary(found) else ("integers", "numbers")


def leaves(
    schema: pa.Schema, metadata: pq.FileMetaData, columns: list[InputColumn]
) -> Iterator[tuple[InputColumn, int]]:
    """Each column with the number of its column chunk (a list column, too, has a single one)."""
    paths = [metadata.schema.column(j).path for j in range(metadata.num_columns)]
    for column in columns:
        prefix = f"{column.name}."
        yield column, next(j for j, p in enumerate(paths) if p == column.name or p.startswith(prefix))
