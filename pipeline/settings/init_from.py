"""Settings of where training begins: at another run's model, and at embeddings from Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from pipeline.settings import Strict

Name = Annotated[str, Field(min_length=1)]


class FromRun(Strict):
    """Begin with the rows and layers of another run, which is read once, before the first commit. Both runs have the
    same `model.embedding_dim`; rows belong to tables of equal names."""

    kind: Literal["run"] = "run"
    run: Annotated[Path, Field(strict=False), PlainSerializer(str, when_used="json")]
    """Folder of the run, such as runs/monday. `~` is expanded."""
    commit: Name | int | None = None
    """Commit to begin with: "best", "last" or a number; by default the best one if there is one, else the last."""
    layers: bool = True
    """Take the dense part's parameters and buffers that have equal names and shapes; False: a new dense part."""
    optimizer_state: bool = False
    """Take the optimizer's state of rows and of the layers taken, too. Steps start at 0 in any case, and so do warm-up
    and the bias correction of rows."""


class FromParquet(Strict):
    """Begin with embeddings from Parquet files, such as pretrained ones. Each of their rows belongs to a value or to a
    key; rows with a null are left out, and of several rows with the same key the last one is used."""

    kind: Literal["parquet"] = "parquet"
    files: Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
    """Parquet files, directories or globs, relative to `data.root`."""
    vector: Name = "vector"
    """Column of lists of `model.embedding_dim` numbers."""
    value: Name | None = None
    """Column of values of the table `table`, of the same type as in the training data."""
    table: Name | None = None
    """Table of the values, by default the one with the name of their column."""
    key: Name | None = None
    """Column of keys in place of values, as `pipeline export --format parquet` writes them."""
    first_order: Name | None = None
    """Column of first-order weights; by default they are 0."""

    @model_validator(mode="after")
    def _is_found_by_one(self) -> FromParquet:
        if (self.value is None) == (self.key is None):
            raise ValueError("give the column of values (value=) or that of keys (key=), one of the two")
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
# What a validator returns is no longer JSON, of which a list is a tuple.
Beginnings = Annotated[tuple[Beginning, ...], BeforeValidator(_as_tuple), Field(strict=False)]
"""One source, or several in order: of several rows with one key, the last is used. A string is the folder of a run."""
