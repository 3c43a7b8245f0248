"""Settings for warm starts: from another run's model, and from embeddings in Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from pipeline.settings import OR_LIST, Strict

Name = Annotated[str, Field(min_length=1)]


class FromRun(Strict):
    """Start with the rows and layers of another run, which is read once, before the first commit. Both runs must have
    the same `model.embedding_dim`. Tables are matched by name."""

    kind: Literal["run"] = "run"
    run: Annotated[Path, Field(strict=False), PlainSerializer(str, when_used="json")]
    """Folder of the run, such as runs/monday. `~` is expanded."""
    commit: Name | int | None = None
    """Commit to start from: "best", "last" or a number; by default the best commit if there is one, else the last."""
    layers: bool = True
    """Take the dense part's parameters and buffers with equal names and shapes; False: start with a new dense part."""
    optimizer_state: bool = False
    """Also take the optimizer state of the rows and of the layers taken. In any case steps start at 0, and with them
    warm-up and the bias correction of rows."""


class FromParquet(Strict):
    """Start with embeddings from Parquet files, such as pretrained ones. Each of their rows belongs to a value or a
    key. Rows with a null are skipped; if several rows have the same key, the last one is used."""

    kind: Literal["parquet"] = "parquet"
    files: Annotated[tuple[str, ...], Field(min_length=1), OR_LIST]
    """Parquet files, directories or globs, relative to `data.root`."""
    vector: Name = "vector"
    """Column of lists of `model.embedding_dim` numbers."""
    value: Name | None = None
    """Column of values of the table `table`, of the same type as in the training data."""
    table: Name | None = None
    """Table of the values; by default the table with the name of their column."""
    key: Name | None = None
    """Column of keys instead of values, such as `open_run(...).table_batches()` yields."""
    first_order: Name | None = None
    """Column of first-order weights; by default they are 0."""

    @model_validator(mode="after")
    def _is_found_by_one(self) -> FromParquet:
        if (self.value is None) == (self.key is None):
            raise ValueError("give either the column of values (value=) or that of keys (key=)")
        if self.table is not None and self.value is None:
            raise ValueError("table is for values, but key= names a column of keys; leave table out")
        return self

    @property
    def table_name(self) -> str | None:
        """Table of the values; None for keys."""
        return self.table or self.value


def _as_tuple(given: object) -> object:
    if isinstance(given, str | Path):
        return (FromRun(run=Path(given)),)
    return (given,) if isinstance(given, dict | FromRun | FromParquet) else given


Beginning = Annotated[FromRun | FromParquet, Field(discriminator="kind")]
# The result of a validator no longer counts as JSON, where a list is accepted as a tuple.
Beginnings = Annotated[tuple[Beginning, ...], BeforeValidator(_as_tuple), Field(strict=False)]
"""One source, or several in order: if several rows have the same key, the last is used. A string is a run's folder."""
