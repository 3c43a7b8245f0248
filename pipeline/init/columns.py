"""Columns of a sample of rows: words in their names, types, nulls, ranges and numbers of distinct values."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.files.find import DataFile
from pipeline.files.types import as_python, is_list, kind_of, value_of
from pipeline.init.forms import Form, nested_note
from pipeline.prepare.schema import DAYS, Role, micros_of
from pipeline.records import I32, I64

THINGS = (
    "user|item|product|ad|campaign|device|site|app|page|shop|store|movie|video|song|brand|query|session|cookie|client|"
    "customer|visitor|publisher|advertiser|creative|banner|channel|zone|placement|category|cat|zip|city|country|region"
)
ID_WORDS = re.compile(
    rf"(^|_)({THINGS}|id|ids|code|type|categories|hash|key|os|ip|model|state|genre|domain|day|weekday|hour|slot|pos|"
    r"position|level|group|segment|url|browser|carrier|gender|language)(s?)($|_|\d)"
)
"""Words in names of columns whose whole numbers are identifiers, not amounts."""
AMOUNT_WORDS = re.compile(
    r"(^|_)(count|cnt|num|number|price|amount|sum|age|duration|len|length|size|ms|score|rate|days|hours|weeks|minutes|"
    r"seconds|gain|gains|loss|losses|wage|cost|total|avg|mean|clicks|views|visits|impressions|sales|revenue|income|"
    r"balance|quantity|qty|percent|pct|ratio|distance|bid)($|_)"
)
"""Words in names of columns whose whole numbers are amounts. If a name has words of both kinds, the last one decides,
as in item_price and age_level. A name that matches PER is also an amount, as wage_per_hour."""
NUMBER_WORDS = re.compile(r"^(num|number)s?$")
"""Amount words that may denote an identifier at the end of a name, as in model_number."""
PER = re.compile(r"(^|_)per_")
THING_WORDS = re.compile(rf"(^|_)({THINGS})s?($|_)")
INDEXES = re.compile(r"__index_level_\d+__|Unnamed: \d+")
"""Names that pandas gives the number of a row: in Parquet, and when it reads text that it has written."""
WEIGHT_WORDS = re.compile(r"(^|_)weights?($|_)")
TIME_WORDS = re.compile(r"(^|_)(time|timestamp|ts|date|datetime|time_ms|at)s?($|_)")
OUTCOME_WORDS = re.compile(
    r"(^|_)(label|click|clicked|target|conversions?|converted|purchased?|bought|orders?|ordered|paid|refunded|outcome|"
    r"response|result|rating|rated|likes?|liked|comments?|follow|forward|shared?|installed|attributed|play|played|"
    r"watch|watched|dwell|stay|stayed|completed|finished|viewed|churned|defaulted|fraud)($|_)"
)
"""Words in names of columns that describe events after an example was shown."""
BORDERS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])|[\W_]+")
"""Word boundaries within a name: changes of case, digits, and characters that are not letters."""
GLUED = re.compile(rf"(?<![a-z])({THINGS}|post|u|uu|gu|p|c|s|t|g|v)(id|code|key|hash)(s?)(?![a-z])")
"""Compound words, such as deviceid; not words that merely end alike, such as paid or grid."""


def words_of(name: str) -> str:
    """Words of a name in lower case, joined by `_`: user_id for userId, UserID, user-id and userid."""
    cut = "_".join(word for word in BORDERS.split(name.replace("IDs", "Ids")) if word)
    return GLUED.sub(r"\1_\2\3", cut.lower())


def role_by_name(name: str) -> Role | None:
    """Role that a name suggests for a column of whole numbers; None if unclear."""
    words = words_of(name)
    last = words.rstrip("0123456789_").rpartition("_")[2]
    if PER.search(words) or (AMOUNT_WORDS.search(last) and not NUMBER_WORDS.search(last)):
        return "number"
    if ID_WORDS.search(words):
        return "category"
    return "number" if AMOUNT_WORDS.search(words) else None


@dataclass(frozen=True, slots=True)
class Column:
    """Description of a column of the sample."""

    name: str
    type: pa.DataType
    kind: str | None
    """See `pipeline.files.types.kind_of`; also "time", and None for types that no workflow can read."""
    num_rows: int
    num_nulls: int
    num_different: int
    """Number of distinct values, without null; for a list column, of the values in the lists."""
    minimum: Any = None
    maximum: Any = None
    """Minimum and maximum: exact if the files have statistics, else of the sample. None for text and lists."""
    examples: tuple[Any, ...] = ()
    infinite: bool = False
    """True if some values are known to be infinite; `minimum` and `maximum` then cover the other values of the sample.
    """
    types: Mapping[Role, str] = field(default_factory=dict)
    """Role -> type of a text column in `prepare`'s schema."""
    note: str = ""
    """Doubt about a text column that becomes a category, with the setting that changes it."""

    @property
    def whole(self) -> bool:
        return self.kind is not None and self.kind.endswith("integers")


@dataclass(frozen=True, slots=True)
class Look:
    """Sample of a set of files, with descriptions of its columns."""

    paths: tuple[DataFile, ...]
    rows: tuple[int, ...]
    """Number of rows of each file: exact for Parquet, estimated from the file size for text."""
    sample: pa.Table
    file_of: I64
    """[N] file index of each row of the sample."""
    columns: tuple[Column, ...]
    delimiter: str | None
    """Delimiter of text; empty for JSON objects, None for Parquet."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the text schema, other than the columns."""
    lacking: Mapping[str, frozenset[DataFile]] = field(default_factory=dict)
    """Name of each column -> Parquet files without it."""


def unread_column(name: str, found: pa.DataType, num_rows: int, note: str = "") -> Column:
    """Description of a column that is not read. `note`: reason, unless the user gave it no role."""
    return Column(name, found, None, num_rows, 0, num_rows, note=note)


def with_unread(sample: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """The sample with these columns in order; columns that were not read are null."""
    there, nulls = {*sample.column_names}, pa.nulls(sample.num_rows)
    return pa.table({one.name: sample.column(one.name) if one.name in there else nulls for one in columns})


def decoded(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values without a dictionary, and 16-bit floats, which Arrow cannot compare, as 32-bit ones."""
    found = value_of(values.type)
    return values.cast(pa.float32() if pa.types.is_float16(found) else found)


def codes_of(values: pa.ChunkedArray) -> I32:
    """[N] code of each row's value; null has a code like any other value."""
    plain = decoded(values)
    return np.asarray(pc.index_in(plain, pc.unique(plain)).to_numpy(), np.int32)


def described_text(name: str, values: pa.ChunkedArray, form: Form) -> Column:
    """Description of a text column; texts in a time format have the kind "time"."""
    column = described_column(name, values)
    column = replace(column, types=form.types, note=form.note or column.note)
    if form.types.get("time") not in DAYS:
        return column
    known = values.drop_null()
    order = pc.sort_indices(micros_of(known, form.types["time"]))
    return replace(column, kind="time", minimum=known[order[0].as_py()], maximum=known[order[-1].as_py()])


def described_column(name: str, values: pa.ChunkedArray, ends: Sequence[Any] = ()) -> Column:
    """Description of a column of the sample. `ends`: minima and maxima according to file statistics."""
    found = values.type
    # Lists of floats may be whole numbers in the sample, but not in other rows.
    kind = {"times": "time", "lists of numbers": None}.get(str(kind_of(found)), kind_of(found))
    if kind is None:
        return Column(name, found, None, len(values), values.null_count, len(values) - values.null_count)
    flat = pc.list_flatten(values) if is_list(found) else decoded(values)
    if pa.types.is_timestamp(flat.type) and flat.type.unit == "ns":
        # Without pandas, nanoseconds have no Python objects.
        flat = flat.cast(pa.timestamp("us", flat.type.tz), safe=False)
    different = pc.unique(flat)
    different = different.filter(pc.is_valid(different)) if len(different) else different
    minimum, maximum, infinite = None, None, False
    if kind in ("integers", "numbers", "time") and len(different):
        known = flat
        if pa.types.is_floating(known.type):
            infinite = any(map(math.isinf, ends)) or pc.any(pc.is_inf(known)).as_py() is True
            known = known.filter(pc.fill_null(pc.is_finite(known), False))
        # Row groups may lack statistics, and those of floats with NaN say nothing: the sample may reach further.
        both = [*map(as_python, pc.min_max(known).values()), *(() if infinite else ends)]
        both = [end for end in both if end is not None and end == end]
        minimum, maximum = min(both, default=None), max(both, default=None)
    examples = tuple(map(as_python, different.slice(0, 3)))
    numbers = len(values), values.null_count, len(different)
    note = nested_note(name, different) if kind == "text" else ""
    return Column(name, found, kind, *numbers, minimum, maximum, examples, infinite, note=note)
