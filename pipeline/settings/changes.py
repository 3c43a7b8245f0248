"""Changes to a workflow's fields by dotted path: `Workflow.with_settings`, and --set of the commands."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints, is_typeddict

from pydantic import ValidationError

from pipeline.errors import did_you_mean, shortened
from pipeline.own_code.code import plain_name
from pipeline.settings import Strict
from pipeline.settings.optimizer import ROW_OPTIMIZERS
from pipeline.settings.problems import Location, problems

GIVEN = ("num_fields", "num_numbers", "embedding_dim")
"""Arguments that every model class receives; model.args does not contain them."""
COLUMNS = ("data.categories", "data.numbers")
"""Lists of columns that may be given by name alone. A column that the workflow already has keeps its settings."""


def unfilled(feature: dict[str, Any]) -> dict[str, Any]:
    """Return a feature in JSON without the statistics that came from the file `data.statistics`."""
    statistics = {name: None for name in ("edges", "mean", "std") if name in feature}
    return feature | statistics | {"computed": False} if feature.get("computed") else feature


def kind_name(kind: Any) -> str:
    """Dotted name of a model class for messages, without the number of its module."""
    return f"{plain_name(kind.__module__)}.{kind.__name__}"


def arguments_of(kind: Callable[..., object]) -> list[str] | None:
    """Return the argument names allowed in model.args, or None if the class accepts any or its names are unknown."""
    try:
        parameters = inspect.signature(kind).parameters.values()
        names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        if any(p.kind == p.VAR_KEYWORD for p in parameters):
            hints = get_type_hints(kind.__init__)
            (others,) = get_args(next(hints[p.name] for p in parameters if p.kind == p.VAR_KEYWORD))
            if not is_typeddict(others):
                return None
            names += others.__annotations__
    # A user's class may have any signature, and type hints that cannot be resolved.
    except Exception:
        return None
    # A callable without these arguments, such as dict, is rejected as a whole, not because of a name in model.args.
    return [name for name in names if name not in (*GIVEN, "sequences")] if set(GIVEN) <= set(names) else None


def change(workflow: Any, values: Iterable[tuple[str, Any]], option: str) -> Any:
    """Return the workflow with these values at these paths, validated as a whole. If the kind of row optimizer or model
    changes, fields or arguments that both kinds have are kept. `option`: prefix of messages. Raises ValueError if a
    path or value is wrong, with the path, the value, the rule and the closest name."""
    fields: dict[str, Any] = workflow.model_dump(mode="json")
    rows_given = set(workflow.optimizer.rows.model_fields_set)
    classes = {kind_name(workflow.model.kind): workflow.model.kind}
    paths = []
    try:
        for path, given in values:
            *parents, last = path.split(".")
            at = _parent(fields, parents, path, option)
            if last not in at and (inside := list(_paths_to(last, at))):
                meant = " or ".join(repr(".".join([*parents, found])) for found in inside)
                raise ValueError(f"{option}{path}: the workflow has no {path}; did you mean {meant}?")
            value = _in_json(given, f"{option}{path}", classes)
            if path in COLUMNS and isinstance(value, list):
                there = {column.name: column.model_dump(mode="json") for column in getattr(workflow.data, last)}
                value = [there.get(each, {"name": each}) if isinstance(each, str) else each for each in value]
            if path == "optimizer.rows.kind" and value != at["kind"]:
                _switch_rows(at, value, rows_given)
            elif parents == ["optimizer", "rows"]:
                rows_given.add(last)
            at[last] = value
            paths.append(path)
        if {"data.root", "data.statistics"} & set(paths):
            # Statistics of other data are read again.
            fields["data"]["features"] = [unfilled(feature) for feature in fields["data"]["features"]]
        if not {"optimizer", "optimizer.rows"} & set(paths):
            # Fields that were not set stay unset: another kind of optimizer has different defaults.
            rows = fields["optimizer"]["rows"]
            fields["optimizer"]["rows"] = {name: rows[name] for name in rows if name in rows_given or name == "kind"}
        changed = type(workflow).model_validate_json(json.dumps(fields), context=classes)
    except ValidationError as error:
        if error.errors(include_url=False)[0]["type"] == "json_invalid":
            raise ValueError(f"{option.strip(': ')}: a value is nested too deeply") from error
        lines = [_with_path(problem.path, problem.text, paths, option) for problem in problems(error, in_json=True)]
        raise ValueError("\n       ".join(lines)) from error
    except RecursionError as error:
        raise ValueError(f"{option.strip(': ')}: a value is nested too deeply") from error
    if changed.model.kind is not workflow.model.kind and "model.args" not in paths:
        kept = {path.split(".")[2] for path in paths if path.startswith("model.args.")}
        known = arguments_of(changed.model.kind)
        args = {name: v for name, v in changed.model.args.items() if known is None or name in known or name in kept}
        return changed.model_copy(update={"model": changed.model.model_copy(update={"args": args})})
    return changed


def override(workflow: Any, settings: Sequence[str]) -> Any:
    """Return the workflow changed by the arguments `a.b=value` of --set; values are JSON or text. See `change`."""
    return change(workflow, list(parsed(settings)), "--set ")


def parsed(settings: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"--set {setting}: expected a.b=value, such as --set {path or 'seed'}=1")
        try:
            yield path, json.loads(text)
        except json.JSONDecodeError:
            yield path, text
        except RecursionError as error:
            raise ValueError(f"--set {path}: the value is nested too deeply") from error


def _in_json(value: object, where: str, classes: dict[str, Any]) -> object:
    """Convert a Python value to JSON, and add model classes in it to `classes`, by name. Raises ValueError if JSON
    cannot represent the value."""

    def plain(part: object) -> object:
        if isinstance(part, Strict):
            kind = getattr(part, "kind", "")
            return part.model_dump(mode="json") | ({} if isinstance(kind, str) else {"kind": plain(kind)})
        if isinstance(part, Path):
            return str(part)
        if isinstance(part, type) or hasattr(part, "__qualname__"):
            classes[kind_name(part)] = part
            return kind_name(part)
        raise ValueError(f"{where}: {shortened(part)} is a {type(part).__name__}; give a number, text or list")

    return json.loads(json.dumps(value, default=plain))


def _parent(fields: dict[str, Any], parents: Sequence[str], path: str, option: str) -> dict[str, Any]:
    """Return the group of settings at a path. Raises ValueError, with the closest path, if there is none."""
    at: Any = fields
    for depth, parent in enumerate(parents):
        if not isinstance(at, dict):
            before = ".".join(parents[:depth])
            raise ValueError(f"{option}{path}: the workflow has no {before}.{parent}; set {before} as a whole")
        if parent not in at:
            close, hint = did_you_mean(parent, at)
            if close:
                meant = [*parents[:depth], close, *path.split(".")[depth + 1 :]]
                hint = f"; did you mean {'.'.join(meant)!r}?"
            raise ValueError(f"{option}{path}: the workflow has no {'.'.join(parents[: depth + 1])}{hint}")
        at = at[parent]
    if not isinstance(at, dict):
        raise ValueError(f"{option}{path}: the workflow has no {path}; set {'.'.join(parents)} as a whole")
    return at


def _paths_to(name: str, group: dict[str, Any]) -> Iterator[str]:
    """Yield the paths of the settings with this name in the subgroups of a group."""
    for inner, values in group.items():
        if isinstance(values, dict):
            if name in values:
                yield f"{inner}.{name}"
            yield from (f"{inner}.{path}" for path in _paths_to(name, values))


def _switch_rows(rows: dict[str, Any], kind: object, given: Collection[str]) -> None:
    """Keep, for another kind of row optimizer, the given fields that it has; the others get its defaults."""
    fields = ROW_OPTIMIZERS[kind].model_fields if isinstance(kind, str) and kind in ROW_OPTIMIZERS else None
    # The fields of an unknown kind are unknown; its name is rejected with the rest.
    for name in [name for name in rows if fields is not None and (name not in given or name not in fields)]:
        del rows[name]


def _with_path(location: Location, text: str, paths: Sequence[str], option: str) -> str:
    """Text of a problem, prefixed with the last of the changed paths that it concerns, if any."""
    dotted = ".".join(map(str, location))
    for path in reversed(paths):
        if f"{dotted}.".startswith(f"{path}.") or (dotted and f"{path}.".startswith(f"{dotted}.")):
            return f"{option}{path}: {text.removeprefix(f'{path}: ')}"
    return text
