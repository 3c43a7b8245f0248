"""Definition of a model's features, which turns columns into keys, numbers and the first rows of unseen keys; and the
workflow that a commit or a servable stores. Its model class belongs to this package or comes from the user's file; a
class that only the stored text names is never imported."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pipeline.features.derived import inputs_of
from pipeline.features.settings import AnyFeature
from pipeline.features.times import TimeInput, time_inputs
from pipeline.files.description import Description, kind_named
from pipeline.files.types import NOTHING
from pipeline.own_code.code import EDITED, code_digest, is_other_code
from pipeline.settings import Digests, Names, Strict, ValueKind, Years, read_json
from pipeline.storage.files import checksum
from pipeline.workflow import STAND_IN, Category, Data, Number, Sequence, Workflow, kind_name, without_removed


class Features(Strict):
    """Everything that determines the keys, numbers and first rows of an example."""

    labels: tuple[str, ...]
    numbers: tuple[Number, ...]
    categories: tuple[Category, ...]
    kinds: dict[str, ValueKind]
    """Kind of the values of each categorical column and item list in the training data (see
    `pipeline.files.types.kind_of`)."""
    hash: Literal["salted-murmur64"] = "salted-murmur64"
    """Hash function in `pipeline.kernels.hashing`. A different function gets a different name."""
    seed: int
    """Seed of first rows; see `pipeline.kernels.init_rows`."""
    init_std: float
    embedding_dim: int
    first_order: bool
    sequences: tuple[Sequence, ...] = ()
    """Omitted from the file if empty."""
    features: tuple[AnyFeature, ...] = ()
    """Columns derived from other columns. This field and those below are omitted from the file if empty."""
    inputs: Names
    """Name of the Arrow type, in the training data, of each column that these features read."""
    side_files: Digests
    """Checksum of each file that the features read (and of its copy), by the name that the features use."""
    canonical: bool = False
    """See `DataFile`. Omitted from the file if False, and not part of the digest."""
    years: Years
    """First and last year of each column of times in the training data, if known. Not part of the digest: more data may
    have more years."""

    def content(self, indent: int | None = None) -> bytes:
        """Definition as JSON."""
        left_out = set() if self.features else {"features", "inputs", "side_files"}
        left_out |= set() if self.sequences else {"sequences"}
        left_out |= {name for name in ("canonical", "years") if not getattr(self, name)}
        return self.model_dump_json(indent=indent, exclude=left_out).encode()

    @property
    def digest(self) -> str:
        """Checksum of the definition, used as a short name."""
        return checksum(self.model_copy(update={"canonical": False, "years": {}}).content())

    @property
    def description(self) -> Description:
        """Description of the columns that features read."""
        return Description(self.inputs, canonical=self.canonical, years=self.years)

    @property
    def times(self) -> dict[str, TimeInput]:
        """Data columns of times that the features read."""
        return time_inputs(self.features, self.inputs, self.years)

    def reads(self, others: Iterable[str] = ()) -> list[str]:
        """Names of the data columns that determine a score, and `others`."""
        return inputs_of(self.features, [*used_by(self), *others])

    @property
    def made(self) -> frozenset[str]:
        """Names of the columns that are derived from others."""
        return frozenset(name for feature in self.features for name in feature.makes)


def features_of(
    workflow: Workflow, first_order: bool, types: Mapping[str, str], side_files: Mapping[str, str], canonical: bool
) -> Features:
    """Features of a workflow that was trained on columns of these Arrow types (by name) and files with these checksums.
    `canonical`: see `DataFile`."""
    data, model = workflow.data, workflow.model
    made = {name for feature in data.features for name in feature.makes}
    keyed = with_keys(data.categories, data.sequences)
    inputs = inputs_of(data.features, [name for name in used_by(data) if name in made])
    return Features(
        labels=data.labels,
        numbers=data.numbers,
        categories=data.categories,
        kinds={name: kind_named(types[name]).replace(NOTHING, "integers") for name in keyed},
        seed=workflow.seed,
        init_std=model.init_std,
        embedding_dim=model.embedding_dim,
        first_order=first_order,
        sequences=data.sequences,
        features=data.features,
        inputs={name: types[name] for name in inputs},
        side_files=dict(side_files),
        canonical=canonical,
        years={},
    )


def used_by(of: Data | Features) -> list[str]:
    """Names of the numbers, the categories and the columns of sequences."""
    names = [column.name for column in (*of.numbers, *of.categories)]
    return names + [column for sequence in of.sequences for column in sequence.columns]


def with_keys(categories: Iterable[Category], sequences: Iterable[Sequence]) -> list[str]:
    """Names of the columns whose values have keys: categories, then the item lists of sequences."""
    return [category.name for category in categories] + [name for sequence in sequences for name in sequence.items]


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
