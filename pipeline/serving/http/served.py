"""A servable as the HTTP server sees it: its columns, its scores, and its counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from pipeline.records import F32


@dataclass(frozen=True, slots=True)
class InputSpec:
    """A column that the model reads."""

    name: str
    datatype: str
    """Datatype of the Open Inference Protocol that the model's metadata announces: INT64, FP32, BYTES, ..."""
    is_list: bool
    required: bool
    """True for every column that the model reads."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Scores of the rows of one request."""

    scores: Mapping[str, F32]
    """[B] float32 of each output, in order: "LABEL.logit", "LABEL.probability"; NaN for a row without a score."""
    unknown: Mapping[str, int]
    """Number of keys without a row, by column."""
    bad: Mapping[str, int] = field(default_factory=dict)
    """Number of values outside the domain of their column, by column."""


class Served(Protocol):
    """An open servable, for many threads at a time. Its attributes may still be read after `close`, its methods not."""

    @property
    def name(self) -> str:
        """Name of the model."""

    @property
    def version(self) -> str:
        """Digest of the manifest."""

    @property
    def inputs(self) -> tuple[InputSpec, ...]: ...

    @property
    def outputs(self) -> tuple[str, ...]: ...

    @property
    def features(self) -> str:
        """Digest of the definition of the features. A servable is never replaced by one of other features."""

    def predict(self, table: pa.Table) -> Answer:
        """Score a table with the columns of `inputs`, one chunk each.

        Raises ValueError, with the column's name, if values are bad, and OSError if a page cannot be read or is
        damaged.
        """

    def counters(self) -> Mapping[str, int]:
        """Totals since the servable was opened, by name, for the metrics."""

    def example(self) -> pa.Table:
        """One row with every column."""

    def close(self) -> None: ...


OpenFunction = Callable[[Path], Served]
"""Opens the servable in a folder. Raises ValueError or OSError if it is damaged or incomplete."""
