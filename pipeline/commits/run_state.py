"""The part of a commit's state that is neither rows nor dense states. Reading validates every value strictly: a file
that someone edited can have a correct checksum and wrong values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from pipeline.commits.manifest import DETAILS, Manifest
from pipeline.data.agenda import Position
from pipeline.data.identity import SplitIdentity
from pipeline.metrics.totals import COUNTS, DiskTotals
from pipeline.settings import SPLITS, Amount, Count, Digest, Strict, read_json
from pipeline.spans.passes import ARRIVAL, SPAN
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.files import Damaged

REPORTED = (("auc", "logloss"), ("mse", "rmse"))
"""Metrics that every evaluation must have: the first pair, or the second pair if its first label is numeric."""


Figure = bool | int | float | str | None
EpochMetrics = dict[str, Figure | list[dict[str, Figure]]]
"""An entry of `History.epochs`, in JSON. Only settings in `settings.problems.REMOVED` made entries with lists."""


class SavedPosition(Strict):
    """See `pipeline.data.agenda.Position`."""

    epoch: Count
    split: str
    batch: Count
    span: Count | None = None


class SavedDiskSpeed(Strict):
    """See `pipeline.storage.disk_speed.DiskSpeed`."""

    seconds_per_read: Amount
    bytes_per_second: Amount
    direct: bool

    @property
    def of_disk(self) -> DiskSpeed:
        return DiskSpeed(self.seconds_per_read, self.bytes_per_second)


class RunState(Strict):
    """The `state` of a manifest. The first fields are those of `pipeline.driver.resume.description`; on resume,
    differences from them are refused or reported."""

    workflow: dict[str, Any]
    data: dict[str, SplitIdentity]
    steps_of_epoch: Count
    environment: dict[str, str]
    code: str
    """Digest of the files of the model class (see `pipeline.own_code.code`)."""
    side_files: dict[str, Digest]
    """Checksum of each file that features read, by the name that the workflow uses for it."""
    side_files_by_span: list[tuple[Count, dict[str, Digest]]] | None = None
    """Checksums by the first span that was trained with them; None if they have never changed."""
    epochs: list[EpochMetrics]
    trained: Count
    seconds: Amount
    tiers: dict[str, dict[str, Count]]
    disk: dict[str, Count | Amount]
    position: SavedPosition
    steps: Count | None = None
    """Number of steps before the position; None without spans, since it follows from `steps_of_epoch`."""
    speed: SavedDiskSpeed
    sums: dict[str, Any] | None = None
    """Not read; only in commits of earlier versions of this package."""

    @property
    def at(self) -> Position:
        return Position(**self.position.model_dump())

    @property
    def step(self) -> int:
        """Number of steps taken before the commit."""
        if self.steps is not None:
            return self.steps
        steps = self.steps_of_epoch
        return self.at.epoch * steps + (self.at.batch if self.at.split == "train" else steps)

    def check_trained(self, num_examples: int) -> None:
        """Raises ValueError unless `trained` equals `num_examples`, the number of examples before the position."""
        if self.trained != num_examples:
            raise ValueError(f"trained: {self.trained:,} examples, but {num_examples:,} lie before the position")


@contextmanager
def naming(manifest: Manifest) -> Iterator[None]:
    """Context in which a ValueError is raised as Damaged, with the commit number."""
    try:
        yield
    except ValueError as error:
        raise Damaged(f"commit {manifest.number}: state.{error}; {DETAILS}") from error


def newest_state(kept: Sequence[Manifest]) -> RunState:
    """Return the state of the last of these commits. Raises Damaged if the state of any of them is invalid."""
    for manifest in kept:
        with naming(manifest):
            state = read_state(manifest.state)
    return state


def read_state(state: Mapping[str, Any]) -> RunState:
    """Return the state of a manifest. Raises ValueError if no run could have written it."""
    read = read_json(RunState, json.dumps(state))
    known: dict[str, tuple[Mapping[str, object], tuple[str, ...]]] = {
        "data": (read.data, SPLITS),
        "tiers": (read.tiers, ("trained", "evaluated")),
        **{f"tiers.{name}": (counts, COUNTS) for name, counts in read.tiers.items()},
        "disk": (read.disk, tuple(field.name for field in fields(DiskTotals))),
    }
    for path, (values, names) in known.items():
        if set(values) != set(names):
            raise ValueError(f"{path}: has {', '.join(sorted(values)) or 'nothing'}, expected {', '.join(names)}")
    for entry in read.epochs:
        shown = json.dumps(entry)[:200]
        if entry.get("split") not in (*SPLITS, SPAN, ARRIVAL) or not isinstance(entry.get("epoch"), int):
            raise ValueError(f"epochs: {shown} has no valid epoch and split")
        names = REPORTED["mse" in entry]
        if entry["split"] != "train" and any(isinstance(entry.get(name, ""), str) for name in names):
            raise ValueError(f"epochs: {shown} has no {' or '.join(names)}")
    if read.position.split not in (*SPLITS, SPAN):
        raise ValueError(f"position: {read.position.split[:99]!r} is not a split")
    if ((read.position.span is None) != (read.steps is None)) or (read.position.span is None) != (
        read.data["train"].spans is None
    ):
        raise ValueError("position: a run with spans has a span and a number of steps, and any other run has neither")
    if not (read.speed.seconds_per_read and read.speed.bytes_per_second):
        raise ValueError("speed: seconds_per_read and bytes_per_second must be above 0")
    return read
