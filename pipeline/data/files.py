"""The files of a split, and checks of their columns against the workflow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa

from pipeline.errors import did_you_mean
from pipeline.files.description import Description, kind_named
from pipeline.files.find import DataFile, Listing, find
from pipeline.files.types import HOLDS, NOTHING, fits, has_no_values, instead, is_list, key_kind, kind_of, whole
from pipeline.settings import SPLITS

if TYPE_CHECKING:
    from pipeline.features.derived import Derived
    from pipeline.features.rare import RareKeys
    from pipeline.workflow import Data, Number, Task

ROLES = {
    "data.labels": ("label",), "data.weight": ("weight",), "data.numbers": ("number",),
    "data.categories": ("category", "list"), "data.sequences.items": ("list",),
    "data.sequences.numbers": ("list of numbers",), "metrics.group": ("group",),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class InputColumn:
    """A column named in the workflow, and its use."""

    name: str
    setting: str
    """Setting that names the column: "data.labels", "data.weight", "data.numbers", "data.categories",
    "data.sequences.items", "data.sequences.numbers" or "metrics.group"."""
    number: Number | None = None
    table: str = ""
    task: Task | None = None
    """The label's task, if the workflow has `data.tasks`."""
    rare: RareKeys | None = None
    """Keys for a category's rare values, if `data.features` has a rule for them."""
    sequence: str = ""
    """Name of the column's sequence."""
    max_length: int = 0
    """Maximum number of values kept per list of a sequence."""

    @property
    def roles(self) -> tuple[str, ...]:
        """The column's possible roles in the table of types (see `pipeline.files.types.HOLDS`)."""
        return ROLES[self.setting]

    @property
    def may_be_missing(self) -> bool:
        """True for a label that some examples may lack, so that a null is not an error."""
        return self.task is not None and (self.task.nulls or self.task.where is not None)

    @property
    def is_number_label(self) -> bool:
        return self.task is not None and not self.task.is_binary

    @property
    def is_category(self) -> bool:
        return self.setting == "data.categories"

    @property
    def is_item(self) -> bool:
        """True for a sequence's lists of items, whose values are hashed to keys."""
        return self.setting == "data.sequences.items"

    @property
    def has_rows(self) -> bool:
        """True if the column's keys have embedding rows."""
        return self.is_category or self.is_item

    @property
    def is_group(self) -> bool:
        return self.setting == "metrics.group"

    @property
    def has_keys(self) -> bool:
        """True if the column's values are hashed to keys."""
        return self.has_rows or self.is_group

    def is_multi(self, kinds: dict[str, str]) -> bool:
        """True for a column of lists; `kinds` as in `SchemaCheck`."""
        return kinds.get(self.name, "").startswith("lists")


def derived_of(data: Data, description: Description | None = None) -> Derived | None:
    """Columns computed by the workflow's features; None without features. `description`: see `Derived`. Raises
    ValueError if a feature lacks a statistic or a file."""
    if not data.features:
        return None
    from pipeline.features.derived import Derived

    return Derived(data.features, data.root, description or Description(), data.statistics)


def columns_of(data: Data, group: str | None = None, description: Description | None = None) -> list[InputColumn]:
    """All columns to read: labels, weight, numbers, categories, sequences, each in workflow order; then the column
    `group`, which may repeat an earlier one."""
    labels = [InputColumn(name, "data.labels", task=data.task_of(name) if data.tasks else None) for name in data.labels]
    weight = [InputColumn(data.weight, "data.weight")] if data.weight else []
    numbers = [InputColumn(n.name, "data.numbers", number=n) for n in data.numbers]
    tables = {category.name: category.table_name for category in data.categories}
    derived = derived_of(data, description)
    rare = derived.rare(tables) if derived else {}
    categories = [
        InputColumn(name, "data.categories", table=table, rare=rare.get(name)) for name, table in tables.items()
    ]
    # A column that is both a category and a group is hashed once, so both use the category's table.
    of_group = (
        [InputColumn(group, "metrics.group", table=tables.get(group, group), rare=rare.get(group))] if group else []
    )
    return [*labels, *weight, *numbers, *categories, *_in_sequences(data, categories), *of_group]


def _in_sequences(data: Data, categories: Sequence[InputColumn]) -> list[InputColumn]:
    """Columns of the sequences: for each sequence its items, hashed like their candidates, then its numbers."""
    column_of, found = {column.name: column for column in categories}, []
    for sequence in data.sequences:
        of = InputColumn("", "data.sequences.numbers", sequence=sequence.name, max_length=sequence.max_length)
        for name, candidate in sequence.items.items():
            like = column_of[candidate]
            found.append(replace(of, name=name, setting="data.sequences.items", table=like.table, rare=like.rare))
        found += [replace(of, name=name) for name in sequence.numbers]
    return found


def resolve(data: Data, split: str, description: Description) -> list[DataFile]:
    """Files of one split, to be read after training. Raises ValueError as `find` does."""
    found = find(getattr(data, split), data.root, f"data.{split}", "Parquet", description.types).files
    return with_derived(found, data, description)


def with_derived(files: Iterable[DataFile], data: Data, description: Description) -> list[DataFile]:
    """The files, read by the description, each with the columns derived from its own."""
    derived = derived_of(data, description)
    return [replace(file, derived=derived, canonical=description.canonical) for file in files]


def listings_of(data: Data, begun: Mapping[str, int | None] = MappingProxyType({})) -> dict[str, Listing]:
    """Files of each split: pattern by pattern, each sorted by name. `begun`: files of a resumed run, with their
    versions (see `table_files`). Raises ValueError as `find` does."""
    return {s: find(getattr(data, s), data.root, f"data.{s}", "Parquet", begun=begun) for s in SPLITS}


class SchemaCheck:
    """Check of the files' schemas, one by one: each must fit the workflow, and all must have the same kinds of keys."""

    def __init__(
        self, columns: list[InputColumn], kinds: Mapping[str, str] | None = None, described: Description | None = None
    ) -> None:
        """`kinds`: kind of each column of keys in the training data, required of all files and assumed for a column
        without values; None: those of the description. `described`: completed by the files."""
        self.columns = columns
        self.is_trained = kinds is not None
        """True if the kinds come from a trained run."""
        self.trained = frozenset(column.name for column in columns if not column.is_group)
        """Names of the columns used in training, excluding columns used only as a group of the metrics."""
        self.targets = frozenset(column.name for column in columns if column.setting in ("data.labels", "data.weight"))
        """Names of the label and weight columns."""
        self.described = described or Description()
        known = {c.name: self.described.types[c.name] for c in columns if c.has_keys and c.name in self.described.types}
        self.kinds: dict[str, str] = dict(kinds or {name: kind_named(found) for name, found in known.items()})
        """Kind of each column of keys (see `key_kind`): until `end`, those of columns with values."""
        self.notes: list[str] = []
        """One line per column that some files of a split lack."""
        self._empty: dict[str, str] = {}
        """Kind of each column of keys that has no values in some file."""
        self._absent: dict[str, list[tuple[DataFile | str, pa.Schema]]] = {}
        self._files: set[str] = set()
        self.known: set[str] = set()
        """Files that the run already has."""

    def check(self, path: DataFile | str, schema: pa.Schema, alone: bool = True) -> None:
        """Raises ValueError if a column does not fit; the message names the file, the column, the type found, the types
        expected, and what to change. `path`: the file, or the name of a table. `schema`: schema of the flattened
        columns. `alone`: False for a file of a split, where other files may have the columns of keys and numbers that
        this one lacks (see `end_split`)."""
        self._files.add(str(path))
        self.described.take(schema, path)
        for column in self.columns:
            if not alone and (column.has_keys or column.number or column.sequence) and column.name not in schema.names:
                self._absent.setdefault(column.name, []).append((path, schema))
                if self._is_renamed(path, schema, column):
                    raise _is_not_there(path, schema, column, self.is_trained)
                continue
            of_numbers = "lists of numbers" if column.sequence else "numbers"
            trained = self.kinds.get(column.name) if column.has_keys else of_numbers
            kind = _checked_kind(path, schema, column, trained if self.is_trained else None)
            if not column.has_keys:
                continue
            if NOTHING in kind:
                self._empty[column.name] = max(kind, self._empty.get(column.name, ""), key=len)
            elif self.kinds.setdefault(column.name, kind) != kind:
                way = "write the column with one type in all files, or leave this file out"
                before = "the training data" if self.is_trained else self.described.first(column.name)
                raise ValueError(
                    f"{path}: column {column.name!r} ({column.setting}) holds {kind}, expected "
                    f"{self.kinds[column.name]} as in {before}; {convert(path) if self.is_trained else way}"
                )

    def _is_renamed(self, path: DataFile | str, schema: pa.Schema, column: InputColumn) -> bool:
        """True if a file lacks a column, or an input of it, and instead has one that no file before it had, whose name
        differs in case and separators only."""
        lacking = {*map(_letters, _lacking(path, schema, column))}
        return any(_letters(name) in lacking and self.described.first(name) == str(path) for name in schema.names)

    def end_split(self, split: str) -> None:
        """Note the columns that are null in some files of the split that ends here. Raises ValueError if all new files
        lack a column, or, where none is new, if no file ever had it."""
        new = self._files - self.known
        for column in self.columns:
            lacking = dict(self._absent.pop(column.name, []))
            is_lost = lacking and (new or self._files) <= {str(path) for path in lacking}
            if is_lost and (new or column.name not in self.described.types):
                raise _is_not_there(*next(iter(lacking.items())), column, self.is_trained)
            if lacking:
                self.notes.append(
                    f"{split}: column {column.name!r} is missing in {len(lacking):,} of {len(self._files):,} files, "
                    f"and null there; the first is {next(iter(lacking))}"
                )
        self._files = set()

    def end(self) -> None:
        """Choose the kinds of columns without values in any file. Raises ValueError if a column contains lists in some
        files only."""
        lists = {column.name for column in self.columns if column.is_item}
        for name, empty in self._empty.items():
            empty = f"lists of {empty}" if name in lists and not empty.startswith("lists") else empty
            kind = self.kinds.setdefault(name, empty.replace(NOTHING, "integers"))
            if empty.startswith("lists") and not kind.startswith("lists"):
                raise ValueError(
                    f"column {name!r} holds {kind} in {self.described.first(name)} and lists in another file; write "
                    "the column alike in all files"
                )


@cache
def _letters(name: str) -> str:
    """A name without case and separators: user_id, USER_ID and userId are alike."""
    return "".join(filter(str.isalnum, name.casefold()))


def _lacking(path: DataFile | str, schema: pa.Schema, column: InputColumn) -> list[str]:
    """Names of the columns that a file or table lacks for a column: that column, or those it is made of."""
    derived = path.derived if isinstance(path, DataFile) else None
    return (derived.missing(column.name, schema.names) if derived else []) or [column.name]


def _is_not_there(path: DataFile | str, schema: pa.Schema, column: InputColumn, is_trained: bool) -> ValueError:
    """Error for a column that is missing or occurs more than once."""
    what, times = "table" if isinstance(path, str) else "file", schema.names.count(column.name)
    lacking = _lacking(path, schema, column)[0]
    close, hint = did_you_mean(lacking, schema.names) if not times else (None, "")
    way = f"correct the {what}" if is_trained else f"correct the name in {column.setting} or the {what}"
    problem = f"is there {times} times" if times else "is missing"
    if lacking != column.name:
        way, problem = f"correct the name in data.features or the {what}", f"is made of {lacking!r}, which is missing"
    if inside := [name for name in schema.names if name.startswith(f"{column.name}.")]:
        problem, close = "is a struct", column.name
        hint = f"; name one of its fields, such as {inside[0]!r}"
    return ValueError(
        f"{path}: column {column.name!r} ({column.setting}) {problem}, expected once{hint if close else ''}; {way}, "
        f"which has: {', '.join(schema.names)}"
    )


def _checked_kind(path: DataFile | str, schema: pa.Schema, column: InputColumn, trained: str | None) -> str:
    """Kind of a column. `trained`: its kind in the training data, assumed if it has no values, or None."""
    at = schema.get_all_field_indices(column.name)
    if len(at) != 1:
        raise _is_not_there(path, schema, column, trained is not None)
    found = schema.field(at[0]).type
    if trained and has_no_values(found) and (trained.startswith("lists") or not is_list(found)):
        return trained
    if not fits(found, *column.roles):
        expected = " or ".join(kind for role in column.roles for kind in HOLDS[role])
        expected = f"{trained} as in the training data" if trained and column.has_keys else expected
        said = f"; {convert(path)}" + (f": {instead(found)}" if instead(found) else "")
        if not trained:
            others = [setting for setting in ("data.numbers", "data.categories") if fits(found, *ROLES[setting])]
            said += f", or name another column in {column.setting}"
            said += f" (this one fits {others[0]})" if others else ""
        where = f"{path}: column {column.name!r} ({column.setting}) has type {found}"
        raise ValueError(f"{where}, expected {expected}{said}")
    return str(key_kind(found) if column.has_keys else kind_of(found))


def convert(path: DataFile | str) -> str:
    return f"convert the column {'of the table' if isinstance(path, str) else 'in the file'}"


def plain(column: pa.ChunkedArray, spec: InputColumn, kind: str | None, where: str) -> pa.ChunkedArray:
    """A column of a plain type as decoding reads it: columns without values get a type, keys stored as floats become
    integers, and numbers lose their dictionary. `kind`: kind of the values in the training data, None for numbers.
    Raises ValueError if a float key is not an integer; `where` is used in the message."""
    what = f"{where}: column {spec.name!r} ({spec.setting})"
    found = column.type
    if has_no_values(found):
        return _typed(column, kind or ("integers" if spec.has_keys else "lists of numbers" if spec.sequence else ""))
    if spec.has_keys and str(kind_of(found)).endswith("numbers"):
        return whole(column, what)
    if not spec.has_keys and pa.types.is_dictionary(found):
        return column.cast(found.value_type)
    return column


def _typed(column: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    """A column of nulls, or of lists of nulls, in the type of this kind."""
    inner = {"integers": pa.int64(), "text": pa.string()}.get(kind.removeprefix("lists of "), pa.float32())
    if is_list(column.type):
        return column.cast(pa.large_list(inner))
    return pa.chunked_array([pa.nulls(len(column), pa.list_(inner) if kind.startswith("lists") else inner)])
