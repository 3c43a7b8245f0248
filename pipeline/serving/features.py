"""Definition of a model's features: what turns columns into keys, numbers and the rows of keys never seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pipeline.settings import Strict, ValueKind
from pipeline.storage.files import checksum
from pipeline.workflow import Category, Number, Workflow


class Features(Strict):
    """Everything on which the keys, numbers and first rows of an example depend."""

    labels: tuple[str, ...]
    numbers: tuple[Number, ...]
    categories: tuple[Category, ...]
    kinds: dict[str, ValueKind]
    """Kind of each categorical column's values in the training data (see `pipeline.files.types.kind_of`)."""
    hash: Literal["salted-murmur64"] = "salted-murmur64"
    """Hash of `pipeline.kernels.hashing`. Another hash gets another name."""
    seed: int
    """Seed of the first rows of keys; see `pipeline.kernels.init_rows`."""
    init_std: float
    embedding_dim: int
    first_order: bool

    @property
    def digest(self) -> str:
        """Checksum of the definition, as a short name of it."""
        return checksum(self.model_dump_json().encode())


def features_of(workflow: Workflow, first_order: bool, types: Mapping[str, str]) -> Features:
    """Features of a workflow that was trained on columns of these Arrow types, by name."""
    data, model = workflow.data, workflow.model
    return Features(
        labels=data.labels,
        numbers=data.numbers,
        categories=data.categories,
        kinds={category.name: kind_of_name(types[category.name]) for category in data.categories},
        seed=workflow.seed,
        init_std=model.init_std,
        embedding_dim=model.embedding_dim,
        first_order=first_order,
    )


def kind_of_name(name: str) -> str:
    """Kind of the values of a categorical column, from the name of its Arrow type."""
    inner = inner_of_name(name)
    kind = "text" if "string" in inner or "binary" in inner else "integers"
    return f"lists of {kind}" if name.startswith(("list<", "large_list<")) else kind


def inner_of_name(name: str) -> str:
    """Text that begins with the type of a column's values, from the name of its Arrow type."""
    # The element of a list has a name, which may be any text.
    _, is_dictionary, values = name.partition("dictionary<values=")
    return values if is_dictionary else name.rpartition(": ")[2]
