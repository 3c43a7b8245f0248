"""Deserialization of the workflow stored in a commit or servable. The model class belongs to this package or comes from
the user's file; a class that only the stored text names is never imported."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from pipeline.own_code.code import EDITED, code_digest, is_other_code
from pipeline.settings import read_json
from pipeline.workflow import STAND_IN, Workflow, kind_name, without_removed


def checked_workflow(
    kept: Mapping[str, Any], given: Workflow | None, needs_class: bool = True, code: str = ""
) -> Workflow:  # fmt: skip
    """Return a stored workflow. `given`: the user's workflow, which provides the model class and caps; if None, the
    class must belong to this package. `needs_class`: False if the model is not built; then any class is accepted, and
    none is imported. `code`: digest of the files of the class in training, if known.

    Raises ValueError if the class is unknown or differs from that of the given workflow.
    """
    saved, known = dict(kept), dict[str, Any]()
    model, kind = saved.get("model"), str(_at(saved, "model.kind"))
    if given:
        mine = json.loads(given.model_dump_json())
        saved["storage"] = mine["storage"] | {"chunk_rows": _at(saved, "storage.chunk_rows")}
        saved["device"] = mine["device"]
    if not given and not needs_class and isinstance(model, dict):
        saved["model"] = model | {"kind": STAND_IN}
    elif not has_own_model(saved):
        if not given:
            raise ValueError(
                f"the model class of the commit is {kind[:99]!r}, not one of this package, and a class that only the "
                "run directory names is not imported; give the workflow's file with --workflow (in Python: workflow=)"
            )
        # Fields and settings come from the commit, whatever the file says.
        now = code_digest(given.model.kind)
        if (named := kind_name(given.model.kind)) != kind and now != code:
            raise ValueError(
                f"--workflow: the file's model.kind is {named!r}, and that of the commit is {kind[:99]!r}; name the "
                "file that the run had"
            )
        known = {kind: given.model.kind}
        if is_other_code(code, now):
            print(f"warning: {EDITED.format(kind=kind)}, so its results may differ", file=sys.stderr)
    try:
        return read_json(Workflow, json.dumps(without_removed(saved)), known)
    except ValueError as error:
        raise ValueError(f"the workflow that was kept cannot be read: {error}") from error


def own_models() -> set[str]:
    """Names of this package's model classes, as in a stored workflow."""
    from pipeline import models

    kinds = [getattr(models, name) for name in models.__all__]
    return {f"{kind.__module__}.{kind.__qualname__}" for kind in kinds}


def has_own_model(kept: Mapping[str, Any]) -> bool:
    """True if the model class of a stored workflow belongs to this package."""
    kind = _at(kept, "model.kind")
    return isinstance(kind, str) and kind in own_models()


def _at(workflow: Mapping[str, Any], path: str) -> Any:
    value: Any = workflow
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value
