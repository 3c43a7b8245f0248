"""The settings that a study tries, derived from the workflow's types or given by the `Tune` in its file."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline import models
from pipeline.own_code.code import run_file
from pipeline.settings.changes import arguments_of, kind_name
from pipeline.settings.tuning import Between, Tune
from pipeline.workflow import MODELS, Model, Workflow

Space = Mapping[str, Between | tuple[Any, ...]]
"""Ranges and choices by the path of a setting, or by BUCKETS and RARE."""
BUCKETS, RARE = "buckets", "rare"
KIND, DIM = "model.kind", "model.embedding_dim"
ONE_LABEL, SEVERAL_LABELS = ("DeepFM", "DCNv2", "DNN", "FinalNet", "FM", "LR"), ("SharedBottom", "MMoE", "PLE")
"""Models that are tried in place of each other. Models of other classes have no alternatives."""
RATE_FACTOR = 10.0
L2, L2_FACTOR = Between(low=1e-7, high=1e-1, log=True), 30.0
"""L2 of rows: its range if the workflow has none, else the factor by which it is decreased and increased."""
LINEAR_FACTOR = 10.0
"""Factor by which a linear model's learning rate of rows is larger, and its L2 smaller, than that of other models,
because its weights are ten times as large as those of embeddings. On two synthetic logs, where a deep model had logloss
.510 and .594, a linear model had .584 and .600 with the deep model's rate and L2, and .520 and .594 with ten times the
rate and a tenth of the L2. A deep model needed 12 epochs or more with the linear model's rate, and 2 with a tenth of
it."""
MIN_EDGES = 8
"""Minimum number of edges of a `Bucket` for which fewer edges are tried."""
ABSENT = {"model.args.dropout": 0.0, "model.args.batch_norm": False}
"""Values of arguments that the workflow omits."""


def space_of(workflow: Workflow, file: Path) -> Space:
    """Return the space of the file's `Tune`, if it has one, else the space derived from the workflow's types. Raises
    ValueError if a value does not fit the workflow."""
    tune = _tune_in(file)
    space: Space = tune.space if tune else derived(workflow)
    _check(workflow, space)
    return space


def _tune_in(file: Path) -> Tune | None:
    before, colon, _ = str(file).rpartition(".py:")
    file = Path(f"{before}.py") if colon else file
    found = getattr(run_file(f"workflow_{file.stem}", file), "tune", None) if file.suffix == ".py" else None
    if found is not None and not isinstance(found, Tune):
        raise ValueError(
            f"{file}: `tune` is a {type(found).__name__}; write tune = Tune(space={{...}}), or name it otherwise"
        )
    return found


def derived(workflow: Workflow) -> Space:
    """Space for a workflow that does not define one."""
    space: dict[str, Between | tuple[Any, ...]] = {}
    rows, model, kind = workflow.optimizer.rows, workflow.model, workflow.model.kind
    kinds = _kinds(workflow)
    if len(kinds) > 1:
        space[KIND] = tuple(kinds)
    space["optimizer.rows.lr"] = _around(rows.lr, RATE_FACTOR)
    space["optimizer.dense.lr"] = _around(workflow.optimizer.dense.lr, RATE_FACTOR)
    space["optimizer.rows.l2"] = _around(rows.l2, L2_FACTOR) if rows.l2 else L2
    # The same L2 is many times stronger with dense semantics, so a given L2 is varied only with the same semantics.
    if not rows.l2 and rows.kind != "ftrl" and not getattr(rows, "clip", None):
        space["optimizer.rows.semantics"] = (rows.semantics, *{"lazy", "dense"} - {rows.semantics})
    dim = model.embedding_dim
    if kind is models.LR and len(kinds) > 1:
        dim = dim or Model.model_fields["embedding_dim"].default
    if dim:
        least = max([2, *(category.width or 0 for category in workflow.data.categories)])
        space[DIM] = (dim, *(d for d in (dim // 4, dim // 2, 2 * dim) if d >= least))
    known = {name for one in kinds.values() for name in arguments_of(one) or ()}
    if "dropout" in known:
        space["model.args.dropout"] = Between(low=0.0, high=0.6)
    if "batch_norm" in known:
        space["model.args.batch_norm"] = (model.args.get("batch_norm", False), not model.args.get("batch_norm", False))
    batch = workflow.schedule.batch_size
    space["schedule.batch_size"] = (batch, *(size for size in (batch // 4, batch // 2, 2 * batch, 4 * batch) if size))
    if any(feature.kind == "bucket" and len(feature.edges or ()) >= MIN_EDGES for feature in workflow.data.features):
        space[BUCKETS] = (1, 2, 4)
    if counts := [feature.at_least for feature in workflow.data.features if feature.kind == "rare"]:
        space[RARE] = (counts[0], *(n for n in (2, 5, 10, 20) if n != counts[0]))
    return space


def _kinds(workflow: Workflow) -> dict[str, Any]:
    """Model classes to try, by name: the workflow's class first, then its alternatives."""
    kind = workflow.model.kind
    found = {kind.__name__: kind}
    for group in (ONE_LABEL, SEVERAL_LABELS):
        if kind_name(kind).startswith(f"{MODELS}.") and kind.__name__ in group:
            found |= {other: getattr(models, other) for other in group}
    if kind is models.LR and workflow.optimizer.rows.kind == "ftrl":
        # Embeddings cannot start at 0, as all weights of Ftrl do.
        return {kind.__name__: kind}
    if any(category.width for category in workflow.data.categories):
        # Widths are those of embeddings, and a linear model has none.
        found.pop("LR", None)
    return found


def _around(value: float, factor: float) -> Between:
    return Between(low=value / factor, high=value * factor, log=True)


def _check(workflow: Workflow, space: Space) -> None:
    for path, values in space.items():
        for value in (values.low, values.high) if isinstance(values, Between) else values:
            try:
                workflow.with_settings(settings_of(workflow, {path: value}, space))
            except ValueError as error:
                raise ValueError(f"the space of {path}: {str(error).removeprefix('settings: ')}") from None
        if not isinstance(values, Between) and len({*map(label_of, values)}) < len(values):
            raise ValueError(f"the space of {path} has a choice twice: {', '.join(map(str, values))}")


def label_of(value: Any) -> str | int | float | bool | None:
    """A choice in the form that Optuna stores: JSON text for a list or an object."""
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value)


def own_values(workflow: Workflow, space: Space) -> dict[str, Any]:
    """The workflow's values by name; for a value outside the space, the nearest number or the first choice."""
    fields, found = workflow.model_dump(mode="json"), dict[str, Any]()
    for path, values in space.items():
        value: Any = fields
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        value = ABSENT.get(path) if value is None else value
        if path == KIND:
            value = next((v for v in values if v in (value, workflow.model.kind.__name__)), value)
        if path in (BUCKETS, RARE):
            value = 1 if path == BUCKETS else next(f.at_least for f in workflow.data.features if f.kind == "rare")
        if isinstance(values, Between):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            found[path] = values.nearest(value) if is_number else values.low
        else:
            labels = [label_of(choice) for choice in values]
            found[path] = label_of(value) if label_of(value) in labels else labels[0]
    return found


def other_kinds(workflow: Workflow, space: Space, seed: int) -> list[dict[str, Any]]:
    """The workflow's values with each other kind of model once, in an order drawn by the seed. Between a linear model
    and others, the learning rate and L2 of rows change by LINEAR_FACTOR, within their ranges."""
    own, found = own_values(workflow, space), []
    kinds = space.get(KIND, ())
    assert not isinstance(kinds, Between)
    for label in [label_of(kind) for kind in kinds]:
        was, now = (workflow.with_settings({KIND: name}).model.kind is models.LR for name in (own[KIND], label))
        factor, values = LINEAR_FACTOR ** (now - was), own | {KIND: label}
        for path, by in (("optimizer.rows.lr", factor), ("optimizer.rows.l2", 1 / factor)):
            if isinstance(of := space.get(path), Between) and by != 1 and isinstance(of.high, float):
                values[path] = of.nearest(float(f"{own[path] * by:.3g}"))
        found += [values] if label != own[KIND] else []
    random.Random(seed).shuffle(found)
    return found


def settings_of(workflow: Workflow, params: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """Settings by path, for `Workflow.with_settings`, from a trial's values. Omits arguments that the trial's model
    does not have."""
    values = {name: _choice(params[name], name, space[name]) for name in params}
    kind = workflow.with_settings({KIND: values[KIND]}).model.kind if KIND in values else workflow.model.kind
    known, is_linear = arguments_of(kind), kind is models.LR and KIND in values
    settings = {
        path: value
        for path, value in values.items()
        if path not in (BUCKETS, RARE)
        and not (path.startswith("model.args.") and known is not None and path.split(".")[2] not in known)
    }
    if is_linear:
        # Nothing would train its embeddings.
        settings[DIM] = workflow.model.embedding_dim if workflow.model.kind is kind else 0
    if {BUCKETS, RARE} & values.keys():
        features = [feature.model_dump(mode="json") for feature in workflow.data.features]
        settings["data.features"] = [_feature(feature, values) for feature in features]
    return settings


def _choice(label: Any, name: str, values: Between | Sequence[Any]) -> Any:
    if isinstance(values, Between):
        return label
    # Another one, from a journal that somebody else wrote, could name a module to import.
    if label_of(label) not in (choices := {label_of(value): value for value in values}):
        raise ValueError(f"{name} of a trial is {label!r}, which is not in its space: {', '.join(map(str, choices))}")
    return choices[label_of(label)]


def _feature(feature: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    every = values.get(BUCKETS, 1)
    if feature["kind"] == "bucket" and len(feature["edges"] or ()) >= MIN_EDGES and every > 1:
        return feature | {"edges": feature["edges"][every - 1 :: every], "quantiles": None, "computed": False}
    if feature["kind"] == "rare" and RARE in values:
        return feature | {"at_least": values[RARE]}
    return feature
