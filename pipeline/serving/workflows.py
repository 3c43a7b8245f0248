"""The workflow that a commit or a servable keeps as text, made a workflow again. Its model class is one of this package
or comes from the user's own file: a class that only the text names is never imported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipeline.settings import read_json
from pipeline.workflow import Workflow, without_removed

SAME = ("data.labels", "data.numbers", "data.categories", "model", "optimizer", "seed")
"""Settings in which the user's workflow must agree with the one that was kept."""
STAND_IN = "builtins.object"
"""Model class in place of one that nobody calls."""


def checked_workflow(kept: Mapping[str, Any], given: Workflow | None, needs_class: bool = True) -> Workflow:
    """Return a kept workflow. `given`: the workflow that the user names, for its model class and its caps; None: the
    class must be one of this package. `needs_class`: False if the model is not built; then any class will do, and
    none is imported.

    Raises ValueError if the class is unknown, or if the given workflow differs where it matters.
    """
    saved = dict(kept)
    model = saved.get("model")
    if given:
        mine = json.loads(given.model_dump_json())
        if different := [path for path in SAME if _at(saved, path) != _at(mine, path)]:
            raise ValueError(
                f"--workflow: the file's {', '.join(different)} {'is' if len(different) == 1 else 'are'} not "
                f"{'that' if len(different) == 1 else 'those'} of the commit; name the file that the run had"
            )
        saved["storage"] = mine["storage"] | {"chunk_rows": _at(saved, "storage.chunk_rows")}
        saved["device"] = mine["device"]
    elif not needs_class and isinstance(model, dict):
        saved["model"] = model | {"kind": STAND_IN}
    elif not has_own_model(saved):
        kind = str(_at(saved, "model.kind"))[:99]
        raise ValueError(
            f"the model class of the commit is {kind!r}, not one of this package, and a class that only the "
            "run directory names is not imported; give the workflow's file with --workflow (in Python: workflow=)"
        )
    try:
        return read_json(Workflow, json.dumps(without_removed(saved)))
    except ValueError as error:
        raise ValueError(f"the workflow that was kept cannot be read: {error}") from error


def own_models() -> set[str]:
    """Names of the model classes of this package, as a kept workflow has them."""
    from pipeline import models

    kinds = [getattr(models, name) for name in models.__all__]
    return {f"{kind.__module__}.{kind.__qualname__}" for kind in kinds}


def has_own_model(kept: Mapping[str, Any]) -> bool:
    """True if the model class of a kept workflow is one of this package."""
    kind = _at(kept, "model.kind")
    return isinstance(kind, str) and kind in own_models()


def _at(workflow: Mapping[str, Any], path: str) -> Any:
    value: Any = workflow
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value
