"""Texts for problems that pydantic finds in settings, and where in the user's code an exception was raised."""

from __future__ import annotations

import builtins
import inspect
import json
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, get_args

import pydantic
from pydantic import ValidationError

from pipeline.errors import did_you_mean, shortened
from pipeline.own_code.code import LIBRARIES
from pipeline.settings import Strict

Location = tuple[int | str, ...]

SAMPLES: Mapping[str, Any] = {
    "Workflow.name": "ml1m", "Data.train": ("train/*.parquet",), "Data.labels": ("label",), "Model.kind": "DeepFM",
    "Storage.device": "512 MiB", "Storage.host": "1 GiB", "Storage.disk": "10 GiB", "Schedule.batch_size": 4096,
    "Category.name": "user", "Number.name": "price", "Synthetic.train_examples": 100000,
    "Synthetic.keys_per_field": (1000, 50), "KStep.k": 20,
}  # fmt: skip
"""Example values of required fields, for messages."""
LOOKED_FOR = {
    "DenseAdam.kind": ": the dense part is always trained by Adam; optimizer.rows.kind chooses that of the rows"
}
"""Explanations for fields that users may look for but that do not exist."""
REMOVED = {"metrics.slices": "group scored files by the column instead (docs/results.md)"}
"""Settings that stored workflows may have, and that no workflow takes -> what to do instead. They change no bit."""
BOUNDS = {"greater_than_equal": "at least {ge}", "less_than_equal": "at most {le}", "greater_than": "more than {gt}",
          "less_than": "less than {lt}", "multiple_of": "a multiple of {multiple_of}"}  # fmt: skip
WHOLE, NUMBER, TEXT, TRUTH = "a whole number", "a number", "text", "true or false"
IN_WORDS = {"int_type": WHOLE, "int_parsing": WHOLE, "int_from_float": WHOLE, "float_type": NUMBER,
         "float_parsing": NUMBER, "string_type": TEXT, "bool_type": TRUTH, "bool_parsing": TRUTH}  # fmt: skip

PACKAGE = Path(__file__).parents[1]
NOT_OF_USER = (f"{PACKAGE}/", f"{Path(str(pydantic.__file__)).parent}/")


@dataclass(frozen=True, slots=True)
class Problem:
    """One wrong field."""

    path: Location
    """Location of the field, without the kinds of optimizers."""
    text: str


def problems(error: ValidationError, in_json: bool = False) -> list[Problem]:
    """Describe each wrong field once. `in_json`: show values as JSON and fields by dotted path; otherwise as Python,
    with the name of the class."""
    errors = error.errors(include_url=False)
    kind = _class_named(error.title)
    missing = {tuple(e["loc"]) for e in errors if e["type"] == "missing"}
    meant: set[Location] = set()
    found: dict[Location, Problem] = {}
    # Unknown fields come first: a misspelt name explains why the right one is missing.
    for e in sorted(errors, key=lambda e: e["type"] != "extra_forbidden"):
        location = tuple(e["loc"])
        owner, path = _walk(kind, location)
        if location in meant or path in found:
            continue
        name = ".".join(map(str, path if in_json else (error.title, *path))) or error.title
        field = str(location[-1]) if location else ""
        if e["type"] == "extra_forbidden" and owner:
            close, hint = did_you_mean(field, owner.model_fields)
            if close and (right := (*location[:-1], close)) in missing:
                meant.add(right)
                hint += f" ({close} is required)"
            setting = f"{owner.__name__.lower()}.{field}"
            text = f"{owner.__name__} has no field {field!r}{LOOKED_FOR.get(f'{owner.__name__}.{field}', hint)}"
            if setting in REMOVED:
                text = f"{setting} is gone: {REMOVED[setting]}"
        elif e["type"] == "missing" and owner:
            text = f"{owner.__name__} needs {field!r}{_example(owner, field, in_json)}"
        else:
            text = f"{name}: {_text(e, _innermost(kind, location), in_json)}"
        found[path] = Problem(path, text)
    return list(found.values())


def _example(owner: type[Strict], field: str, in_json: bool) -> str:
    if (example := SAMPLES.get(f"{owner.__name__}.{field}")) is None:
        return ""
    if in_json:
        return f", such as {json.dumps(field)}: {json.dumps(example)}"
    return f", such as {field}={example if field == 'kind' else repr(example)}"


def _text(e: Any, owner: type[Strict] | None, in_json: bool) -> str:
    value, context = e["input"], e.get("ctx", {})
    got = f" (got {shortened(value)})"
    if e["type"] == "value_error":
        text = str(context["error"])
        return text if repr(value) in text or not e["loc"] or not isinstance(value, str | int | float) else text + got
    if e["type"] == "union_tag_invalid":
        kinds = re.findall(r"'(\w+)'", str(context["expected_tags"]))
        hint = did_you_mean(str(context["tag"]), kinds)[1] if len(kinds) else ""
        return f"no kind {context['tag']!r}{hint if '?' in hint else ''} Kinds: {', '.join(kinds)}"
    if e["type"] in BOUNDS:
        return f"expected {BOUNDS[e['type']].format(**context)}{got}"
    advice = _advice(e["type"], value, in_json)
    if e["type"] in IN_WORDS:
        return f"expected {IN_WORDS[e['type']]}{advice}{got}"
    if e["type"] == "tuple_type":
        return f"expected a {'list' if in_json else 'tuple'}{advice}{got}"
    if e["type"] in ("model_type", "model_attributes_type", "dataclass_type") and owner:
        return f"expected a {owner.__name__}{advice}{got}"
    if e["type"] == "string_pattern_mismatch":
        better = re.sub(r"[^A-Za-z0-9._-]+", "_", value).strip("._-") or "tiny"
        such = f", such as {better!r}" if re.fullmatch(context["pattern"], better) else ""
        return f"expected text of the form {context['pattern']}{such}{got}"
    hint = ""
    if e["type"] == "literal_error" and isinstance(value, str):
        hint = did_you_mean(value, re.findall(r"'([^']*)'", str(context["expected"])))[1]
    return f"{e['msg']}{got}{hint if '?' in hint else ''}"


def _advice(kind: str, value: Any, in_json: bool) -> str:
    """Suggest how to write the value in the expected type; empty if unknown."""
    written = next(_written(kind, value, in_json), None)
    return f"; write {written}" if written is not None and len(written) < 200 else ""


def _written(kind: str, value: Any, in_json: bool) -> Iterator[str]:
    expected = IN_WORDS.get(kind)
    if expected in (WHOLE, NUMBER) and isinstance(value, str | float):
        try:
            number = float(value)
            yield str(int(number)) if expected == WHOLE else str(value)
        except (ValueError, OverflowError):
            return
    elif expected == TEXT and isinstance(value, int | float) and not isinstance(value, bool):
        yield json.dumps(str(value)) if in_json else repr(str(value))
    elif expected == TRUTH and str(value).lower() in ("1", "0", "true", "false", "yes", "no"):
        truth = str(value).lower() in ("1", "true", "yes")
        yield json.dumps(truth) if in_json else str(truth)
    elif kind == "tuple_type" and isinstance(value, str):
        yield json.dumps([value]) if in_json else repr((value,))
    elif kind == "tuple_type" and isinstance(value, Strict):
        yield f"({type(value).__name__}(...),)"


def _class_named(name: str) -> type[Strict] | None:
    """Settings class with this name; None if there is none."""
    waiting: list[type[Strict]] = [Strict]
    while waiting:
        kind = waiting.pop()
        if kind.__name__ == name:
            return kind
        waiting += kind.__subclasses__()
    return None


def _walk(kind: type[Strict] | None, location: Location) -> tuple[type[Strict] | None, Location]:
    """Return the class that owns the last field of a location, and the location without tags of unions."""
    path: list[int | str] = []
    current, owner, leaf = ([kind] if kind else []), kind, False
    for part in location:
        tagged = [c for c in current if len(current) > 1 and c.model_fields["kind"].default == part]
        if tagged:
            current, owner = tagged, tagged[0]
        elif isinstance(part, int):
            path.append(part)
        elif not leaf:
            path.append(part)
            owner = current[0] if current else None
            field = owner.model_fields.get(part) if owner else None
            current = list(_classes(field.annotation)) if field else []
            leaf = not current
    return owner, tuple(path)


def _innermost(kind: type[Strict] | None, location: Location) -> type[Strict] | None:
    """Class expected at a location, if any."""
    owner, path = _walk(kind, location)
    name = next((part for part in reversed(path) if isinstance(part, str)), None)
    field = owner.model_fields.get(name) if owner and name else None
    return next(_classes(field.annotation), None) if field else None


def _classes(annotation: Any) -> Iterator[type[Strict]]:
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        yield annotation
    for argument in get_args(annotation):
        yield from _classes(argument)


def message_of(error: Exception, path: Path) -> str:
    """Message for an exception caused by a workflow file or a file that it imports: one line per mistake."""
    frame = _last_of_user(error.__traceback__)
    if frame is None:
        return f"{path}: {type(error).__name__}: {error}"
    file = path if Path(frame.tb_frame.f_code.co_filename) == path.absolute() else frame.tb_frame.f_code.co_filename
    texts = [p.text for p in problems(error)] if isinstance(error, ValidationError) else [_with_hint(error, frame)]
    return "\n       ".join(f"{file}, line {frame.tb_lineno}: {text}" for text in texts)


def place_of(error: BaseException) -> str:
    """File and line of the innermost frame of user code (outside this package and the libraries), to append to a
    message. Empty if there is none."""
    frame = _last_of_user(error.__traceback__, (*NOT_OF_USER, *LIBRARIES))
    return f" ({frame.tb_frame.f_code.co_filename}, line {frame.tb_lineno})" if frame else ""


def defined_at(function: object) -> str:
    """File and line where a function begins, to append to a message; empty if unknown."""
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)  # type: ignore[arg-type]
    return f" ({code.co_filename}, line {code.co_firstlineno})" if code else ""


def _last_of_user(trace: TracebackType | None, others: tuple[str, ...] = NOT_OF_USER) -> TracebackType | None:
    found = None
    while trace:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith("<") and not name.startswith(others):
            found = trace
        trace = trace.tb_next
    return found


def _with_hint(error: Exception, frame: TracebackType) -> str:
    """Text of an error. For a name that does not exist, it suggests the name that was probably meant; for a field
    without its name, how to write it."""
    if isinstance(error, TypeError) and "BaseModel.__init__() takes" in str(error):
        return f"TypeError: {error}; name the fields of settings, such as Category(name='user')"
    wrong, known = "", list[str]()
    if isinstance(error, ModuleNotFoundError):
        wrong = error.name or ""
        inside = [f"pipeline.{module.name}" for module in pkgutil.iter_modules([str(PACKAGE)])]
        known = [*inside, *(name for name in sys.modules if "." not in name)]
    elif isinstance(error, ImportError) and (found := re.match(r"cannot import name '(\w+)'", str(error))):
        wrong, known = found[1], dir(sys.modules.get(error.name or ""))
    elif isinstance(error, NameError):
        wrong, known = error.name or "", [*frame.tb_frame.f_globals, *dir(builtins)]
    close, hint = did_you_mean(wrong, known)
    text = traceback.format_exception_only(type(error), error)[-1].strip() if not str(error) else str(error)
    return f"{type(error).__name__}: {text}{hint if close else ''}"
