"""The files of a split, and checks that their columns fit the workflow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import did_you_mean
from pipeline.files.find import DataFile, Listing, find, typed
from pipeline.files.partitions import PartitionedFile
from pipeline.files.stores import is_remote, open_to_read
from pipeline.workflow import Data, Number

SPLITS = ("train", "validation", "test")
TEXT_SUFFIXES = (".csv", ".tsv", ".txt")
FLOATS = "integers, floating-point numbers or booleans"
GROUPS = "integers, strings or binary, or a dictionary of those"
KEYS = "integers, strings or binary, a dictionary of those, or a list of those"


@dataclass(frozen=True, slots=True)
class InputColumn:
    """A column that the workflow names, and its use."""

    name: str
    setting: str
    """Setting that names the column: "data.labels", "data.weight", "data.numbers", "data.categories" or
    "metrics.group"."""
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
        """True if the column's values are hashed to keys."""
        return self.is_category or self.is_group

    def is_multi(self, kinds: dict[str, str]) -> bool:
        """True for a column of lists; `kinds` as in `SchemaCheck`."""
        return kinds.get(self.name, "").startswith("lists")


def columns_of(data: Data, group: str | None = None) -> list[InputColumn]:
    """All columns to read: labels, weight, numbers, categories, each in the order of the workflow; then the column that
    `group` names, which may also be one of the former."""
    labels = [InputColumn(name, "data.labels") for name in data.labels]
    weight = [InputColumn(data.weight, "data.weight")] if data.weight else []
    numbers = [InputColumn(n.name, "data.numbers", number=n) for n in data.numbers]
    categories = [InputColumn(c.name, "data.categories", table=c.table_name) for c in data.categories]
    # A column that is both a category and the group is hashed once, so both use the category's table.
    table = next((c.table_name for c in data.categories if c.name == group), group)
    groups = [InputColumn(group, "metrics.group", table=table or group)] if group else []
    return [*labels, *weight, *numbers, *categories, *groups]


def resolve(data: Data, split: str, kinds: Mapping[str, str]) -> list[DataFile]:
    """Files of one split, for what is read after training. `kinds`: see `typed`. Raises ValueError as `find` does."""
    return list(find(getattr(data, split), data.root, f"data.{split}", "Parquet", kinds).files)


def listings_of(data: Data) -> dict[str, Listing]:
    """Files of each split: pattern after pattern, each in the order of names. Raises ValueError as `find` does."""
    found = {split: find(getattr(data, split), data.root, f"data.{split}", "Parquet") for split in SPLITS}
    files = iter(typed([file for listing in found.values() for file in listing.files], {}))
    return {split: Listing(tuple(islice(files, len(of.files))), of.left_out) for split, of in found.items()}


def open_file(path: DataFile | Path, **options: Any) -> pq.ParquetFile:
    """Open a Parquet file. Raises ValueError, with the cause, if it is not Parquet or is damaged."""
    try:
        place = str(path)
        opened = pq.ParquetFile(open_to_read(place) if is_remote(place) else place, **options)
        return PartitionedFile(path, opened) if isinstance(path, DataFile) and path.partitions else opened
    except (pa.ArrowException, OSError) as error:
        way = ", is it complete?"
        if path.suffix in TEXT_SUFFIXES:
            way = (
                f"; make Parquet of the text first: pipeline prepare csv {path} --schema SCHEMA.json "
                "--out FOLDER, with --no-label if its rows are to be scored"
            )
        raise ValueError(f"{path}: cannot be read as Parquet{way} ({error})") from error


def kind_of(found: pa.DataType) -> str | None:
    """Kind of the values of an Arrow type, as messages name it; None if no column of the type can be read."""
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
    """Check of one file's schema after another: each fits the workflow, and all agree with the first."""

    def __init__(self, columns: list[InputColumn], kinds: Mapping[str, str] | None = None) -> None:
        """`kinds`: kind of each column of keys in the training data, which all files must have, and which a column
        without any value counts as; None: any."""
        self.columns = columns
        self._trained = kinds is not None
        self.trained = frozenset(column.name for column in columns if not column.is_group)
        """Names of the columns used in training; one that is only the group of the metrics is not."""
        self.targets = frozenset(column.name for column in columns if column.setting in ("data.labels", "data.weight"))
        """Names of the label and weight columns."""
        self.kinds: dict[str, str] = dict(kinds or {})
        """Kind of each column of keys in the first file (see `kind_of`)."""
        self._first: DataFile | str | None = "the training data" if kinds else None

    def check(self, path: DataFile | str, schema: pa.Schema) -> None:
        """Raises ValueError if a column does not fit; the message names the file, the column, the type found, the types
        expected, and what to change. `path`: the file, or what a table is called."""
        for column in self.columns:
            trained = self.kinds.get(column.name) if column.has_keys else "numbers"
            kind = _checked_kind(path, schema, column, trained if self._trained else None)
            if column.has_keys and self.kinds.setdefault(column.name, kind) != kind:
                way = "write the column alike in all files, or remove the file from the patterns"
                raise ValueError(
                    f"{path}: column {column.name!r} ({column.setting}) holds {kind}, expected "
                    f"{self.kinds[column.name]} as in {self._first}; {convert(path) if self._trained else way}"
                )
        self._first = self._first or path


def _checked_kind(path: DataFile | str, schema: pa.Schema, column: InputColumn, trained: str | None) -> str:
    """Kind of a column. `trained`: that of the training data, which a column without values has, or None."""
    where, what = f"{path}: column {column.name!r} ({column.setting})", "table" if isinstance(path, str) else "file"
    at = schema.get_all_field_indices(column.name)
    if len(at) != 1:
        problem = "is missing" if not at else f"is there {len(at)} times"
        close, hint = did_you_mean(column.name, schema.names) if not at else (None, "")
        way = f"correct the {what}" if trained else f"correct the name in {column.setting} or the {what}"
        raise ValueError(
            f"{where} {problem}, expected once{hint if close else ''}; {way}, which has: {', '.join(schema.names)}"
        )
    found = schema.field(at[0]).type
    if trained and has_no_values(found):
        return trained
    # As a category, true and false are 1 and 0; as a number they are converted.
    kind = "integers" if column.is_category and pa.types.is_boolean(found) else kind_of(found)
    allowed = _allowed_kinds(found, column)
    if kind is None or kind not in allowed:
        expected, instead = _expected(column)
        if trained:
            expected = f"{trained} as in the training data" if column.has_keys else expected
        way = convert(path) if trained else f"{convert(path)}, or {instead}"
        raise ValueError(f"{where} has type {found}, expected {expected}; {way}")
    return kind


def has_no_values(found: pa.DataType) -> bool:
    """True for the types that pandas and others give a column in which each value, list or element is null."""
    if pa.types.is_list(found) or pa.types.is_large_list(found) or pa.types.is_dictionary(found):
        return bool(pa.types.is_null(found.value_type))
    return bool(pa.types.is_null(found))


def convert(path: DataFile | str) -> str:
    return f"convert the column {'of the table' if isinstance(path, str) else 'in the file'}"


def _expected(column: InputColumn) -> tuple[str, str]:
    """Types that a column may have, and what to do if it has another, both in words."""
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
    """Each column of the file with the number of its column chunk; a list column has a single one, too. Columns of the
    file's path have none."""
    paths = [metadata.schema.column(j).path for j in range(metadata.num_columns)]
    for column in columns:
        prefix = f"{column.name}."
        at = next((j for j, p in enumerate(paths) if p == column.name or p.startswith(prefix)), None)
        if at is not None:
            yield column, at
