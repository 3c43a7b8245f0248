"""Forms of text: detects the content of a text column, and its type in `prepare`'s schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.prepare.lines import RefusedLine
from pipeline.prepare.schema import Role, forms_of
from pipeline.prepare.values import JSON, lists_of

SPELLINGS = (
    "NA", "N/A", "NULL", "null", "None", "NaN", "nan", "\\N", "-", "n/a", "#N/A", "<NA>", "(null)", "?",
)  # fmt: skip
"""Texts that mean null in columns of numbers and times. In categories they may be values."""
DIGITS, WHOLE = "^[-+]?[0-9]+$", "^(0|-?[1-9][0-9]*)$"
EXPONENT = "([eE][-+]?[0-9]+)?$"
POINT, COMMA = (rf"^[-+]?([0-9]+{mark}?[0-9]*|{mark}[0-9]+){EXPONENT}" for mark in (r"\.", ","))
SIGNED = r"^[-+]?[$€£¥] ?[0-9][0-9.,]*$|^[-+]?[0-9][0-9.,]* ?[%$€£¥]$"
"""Pattern of amounts of money and percentages."""
TIME_OF_DAY = "[0-9]:[0-9]{2}"
MOSTLY = 0.8
"""Minimum share of numbers among a column's distinct texts for which the other texts are doubtful."""
THOUSANDS = r"^[-+]?[0-9]{1,3}(,[0-9]{3})+$"
BOOLS = r"^(true|True|TRUE|false|False|FALSE)$"
SEPARATORS = ("|", "; ", ";", ", ", ",", "^", " ")
ELEMENT = r"^[^\[\](){}]*$"
"""Pattern of an element between two separators. Brackets suggest a sentence, or the name of a browser."""
NESTED = r"(?s)^\s*(\[.*\]|\{.*\})\s*$"
FEWER, RECUR, LISTS = 2, 0.9, 0.2
"""Texts are lists if there are at least FEWER times fewer distinct elements than texts, at least a share RECUR of the
elements recurs, and at least a share LISTS of the texts contains separators."""


@dataclass(frozen=True, slots=True)
class Form:
    """Content of a text column: possible types, and doubts."""

    types: dict[Role, str] = field(default_factory=dict)
    """Possible role -> type of the column in a schema."""
    note: str = ""
    """Doubt about a column that becomes a category, with the setting that changes it."""


def form_of(name: str, texts: pa.ChunkedArray) -> Form:
    """Form of the column `name`. `texts`: sample of its texts; empty ones are null."""
    counted = pc.value_counts(texts.drop_null().combine_chunks())
    values, counts = counted.field("values"), counted.field("counts")
    nothing = pc.is_in(values, pa.array(SPELLINGS))
    spelled = dict(zip(values.filter(nothing).to_pylist(), counts.filter(nothing).to_pylist(), strict=True))
    known, note = values.filter(pc.invert(nothing)), ""
    if spelled:
        said = ", ".join(f"{text!r} ({count:,} times)" for text, count in spelled.items())
        quoted = ", ".join(f'"{text}"' for text in spelled).replace("\\", "\\\\")
        note = f'{name}: {said} is kept as a value; it is null with "nulls_of": {{"{name}": [{quoted}]}} in the schema'
    if not len(known):
        return Form({"category": "string"}, note)
    if types := _number(known):
        # If a spelling of null is kept as a value, the numbers are text too.
        return Form({**types, **({"category": "string"} if spelled else {})}, note)
    times = forms_of(known)
    if len(times) == 1:
        return Form({"time": times[0], "category": "string"}, note)
    if not times and not _thousands(known) and (kind := _lists(known)):
        note = f"{name}: {len(known):,} texts are lists, {kind}; as one value each: {name}:category in the schema"
        return Form({"category": kind}, note)
    doubt = _doubt(name, known, times)
    return Form({"category": "string", "time": "string"}, f"{name}: {doubt}" if doubt else note)


def _doubt(name: str, known: pa.Array, times: Sequence[str]) -> str:
    """Doubt about texts that are read as text, with what to do; "" if there is none. `times`: their possible forms."""
    if times:
        either = " or ".join(f"{name}:time:{form}" for form in times)
        return f"day or month first? read as text; write {either} in the schema"
    if _thousands(known):
        return f"thousands separators? read as text; if the commas are decimal, {name}:number:comma in the schema"
    if _all(known, SIGNED):
        return f"{known[0].as_py()!r} is read as text; write amounts as plain numbers, without signs"
    if _all(known, TIME_OF_DAY):
        return f"{known[0].as_py()!r} is read as text; write times as 2026-11-24 10:30:00 to divide rows by them"
    others = known.filter(pc.invert(_match(known, POINT)))
    if not len(others) and len(beyond := known.filter(_beyond(known))):
        return (
            f"{beyond[0]} is beyond the range of float32, 3.4e38: read as text; scale the numbers in the files, or if "
            f"only a few are that large, {name}:number in the schema, and --skip-bad leaves out their rows"
        )
    if len(others) and len(known) - len(others) >= MOSTLY * len(known):
        return (
            f"most values are numbers, but {others[0].as_py()[:40]!r} is not: read as text; if it marks missing "
            f"values, {name}:number in the schema, with it in `nulls`"
        )
    return ""


def nested_note(name: str, texts: pa.Array) -> str:
    """Advice on texts that are all JSON lists or objects; "" for other texts and bytes."""
    is_text = pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)
    if not (is_text and len(texts) and _all(texts[:100], NESTED) and _all(texts, NESTED)):
        return ""
    return (
        f"{name}: its texts are JSON lists or objects, each read as one value; write lists, and a model reads their "
        "values one by one, or the fields that matter as columns"
    )


def _match(texts: pa.Array, pattern: str) -> pa.BooleanArray:
    return pc.match_substring_regex(texts, pattern)


def _all(texts: pa.Array, pattern: str) -> bool:
    return pc.all(_match(texts, pattern), min_count=0).as_py() is True


def _thousands(texts: pa.Array) -> bool:
    """True if commas may be thousands separators, as in 1,200."""
    return bool(pc.any(_match(texts, THOUSANDS)).as_py()) and _all(texts, f"{THOUSANDS}|^[0-9]{{1,3}}$")


def _number(known: pa.Array) -> dict[Role, str] | None:
    """Types of a number column; None if the texts are not numbers."""
    trimmed = pc.ascii_trim_whitespace(known)
    if _all(trimmed, BOOLS):
        return {"number": "bool", "category": "string"}
    whole = trimmed.filter(_match(trimmed, DIGITS))
    # Numbers with a leading zero or plus, or beyond 64 bits, are identifiers.
    if not _all(whole, WHOLE) or not _fit(whole):
        return None
    if len(whole) == len(known):
        # Texts that differ only in surrounding blanks would become the same number.
        same = len(pc.unique(trimmed)) == len(trimmed)
        return {"number": "whole", "category": "whole", "time": "whole"} if same else None
    for kind, pattern in (("float32", POINT), ("comma", COMMA)):
        if _all(trimmed, pattern) and not _thousands(trimmed):
            plain = pc.replace_substring(trimmed, ",", ".")
            types: dict[Role, str] = {"number": kind, "category": "string"}
            return types | ({"time": "float64"} if kind != "comma" else {}) if _distinct(plain) else None
    return None


def _fit(whole: pa.Array) -> bool:
    try:
        whole.cast(pa.int64())
    except pa.ArrowInvalid:
        return False
    return True


def _beyond(texts: pa.Array) -> pa.BooleanArray:
    """True for numbers beyond the range of float32."""
    return pc.is_inf(texts.cast(pa.float64()).cast(pa.float32()))


def _distinct(texts: pa.Array) -> bool:
    """True if all texts are finite numbers, and no two different values are read as the same number."""
    values = texts.cast(pa.float64())
    if pc.any(_beyond(texts)).as_py():
        return False
    if len(pc.unique(values)) == len(values):
        return True
    exact: dict[float, Decimal] = {}
    pairs = zip(values.to_pylist(), map(Decimal, texts.to_pylist()), strict=True)
    return all(exact.setdefault(value, text) == text for value, text in pairs)


def _lists(known: pa.Array) -> str | None:
    """Type of a column of lists written as text; None if the texts are not lists."""
    column = pa.chunked_array([known])
    if _all(known, r"^\s*\[.*\]\s*$"):
        for kind in ("int64", "string"):
            try:
                lists_of(column, JSON, pa.type_for_alias(kind), "")
            except RefusedLine:
                continue
            return f"{kind}[{JSON}]"
        return None
    return next(_separated(known), None)


def _separated(known: pa.Array) -> Iterator[str]:
    for separator in SEPARATORS:
        some = pc.match_substring(known, separator)
        if pc.sum(some).as_py() < LISTS * len(known) or len(known) < FEWER:
            continue
        lists = pc.split_pattern(known, separator)
        inside = pc.list_flatten(lists)
        counted = pc.value_counts(inside)
        often = pc.mean(pc.greater(counted.field("counts"), 1).cast(pa.int8())).as_py()
        elements = counted.field("values")
        # Words of a sentence are also separated by blanks; identifiers contain digits.
        pattern = "[0-9]" if separator == " " else ELEMENT
        if FEWER * len(elements) <= len(known) and often >= RECUR and _all(elements, pattern):
            whole = _all(elements, WHOLE) and _fit(elements)
            yield f"{'int64' if whole else 'string'}[{separator}]"
