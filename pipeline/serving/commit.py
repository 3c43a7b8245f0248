"""A commit opened for reading: its workflow, its features, and the step up to which its rows are valid."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import models
from pipeline.commits.manifest import Manifest
from pipeline.commits.reading import HeldCommit, hold
from pipeline.commits.run_state import RunState, newest_state
from pipeline.serving.features import Features, features_of
from pipeline.settings import read_json
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.layout import RowLayout
from pipeline.workflow import Workflow, load

OWN_MODELS = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in (getattr(models, n) for n in models.__all__)}
"""Model classes of this package, by the name that a commit has for them. No other name in a commit is imported."""
SAME = ("data.labels", "data.numbers", "data.categories", "model", "optimizer", "seed")
"""Settings in which the user's workflow must agree with the commit's."""


@dataclass(frozen=True, slots=True)
class OpenedCommit:
    held: HeldCommit
    workflow: Workflow
    """The commit's workflow; its model class is one of this package or comes from the user's file."""
    state: RunState
    layout: RowLayout
    features: Features

    @property
    def manifest(self) -> Manifest:
        return self.held.manifest

    @property
    def step(self) -> int:
        """Number of steps that were taken before the commit."""
        at, steps = self.state.at, self.state.steps_of_epoch
        return at.epoch * steps + (at.batch if at.split == "train" else steps)

    @property
    def speed(self) -> DiskSpeed:
        """Speed of the disk, as the run measured it."""
        return DiskSpeed(self.state.speed.seconds_per_read, self.state.speed.bytes_per_second)


def open_commit(run_dir: Path, which: str | int | None = None, workflow_file: Path | None = None) -> OpenedCommit:
    """Open a commit (see `hold`) for reading. `workflow_file`: the workflow's file, needed if it defines the model
    class. Raises ValueError if there is no such commit or the file does not fit it, and Damaged if the commit is."""
    given = load(workflow_file) if workflow_file else None
    held = hold(run_dir, which)
    try:
        state = newest_state([held.manifest])
        workflow = workflow_of(state, given)
        storage = workflow.storage.model_copy(update={"chunk_rows": held.manifest.chunk_rows})
        workflow = workflow.model_copy(update={"storage": storage})
        layout = RowLayout.of(held.manifest.row)
        features = features_of(workflow, layout.first_order, state.data["train"].types)
        return OpenedCommit(held, workflow, state, layout, features)
    except BaseException:
        held.close()
        raise


def workflow_of(state: RunState, given: Workflow | None) -> Workflow:
    """Return a commit's workflow. `given`: the workflow that the user names, for its model class and its caps; None:
    the model class must be one of this package. Raises ValueError if the class is unknown, or if the given workflow
    differs where it matters."""
    saved = dict(state.workflow)
    kind = saved["model"].get("kind") if isinstance(saved.get("model"), dict) else None
    if given:
        mine = json.loads(given.model_dump_json())
        if different := [path for path in SAME if _at(saved, path) != _at(mine, path)]:
            raise ValueError(
                f"--workflow: the file's {', '.join(different)} {'is' if len(different) == 1 else 'are'} not those of "
                "the commit; name the file that the run was trained with"
            )
        saved["storage"] = mine["storage"] | {"chunk_rows": saved["storage"]["chunk_rows"]}
        saved["device"] = mine["device"]
    elif kind not in OWN_MODELS:
        raise ValueError(
            f"the model class of the commit is {str(kind)[:99]!r}, not one of this package, and a class that only the "
            "run directory names is not imported; give the workflow's file with --workflow (in Python: workflow=)"
        )
    try:
        return read_json(Workflow, json.dumps(saved))
    except ValueError as error:
        raise ValueError(f"the workflow that the commit keeps cannot be read: {error}") from error


def _at(workflow: Mapping[str, Any], path: str) -> Any:
    value: Any = workflow
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value
