"""A workflow, everything that a user configures: one frozen, strict value that is validated before anything runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    ImportString,
    InstanceOf,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from pipeline.machine.limits import cpus
from pipeline.optimizer import Optimizer, Plateau
from pipeline.settings import Strict

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def parse_size(value: object) -> object:
    """Bytes of a size such as "512 MiB"; anything but text is left to pydantic."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]iB|B)\s*", value)
    if match is None:
        raise ValueError(f'expected a size such as "512 MiB" (units {", ".join(UNITS)}), got {value!r}')
    return int(Decimal(match[1]) * UNITS[match[2]])


def format_size(num_bytes: int) -> str:
    """The size in the largest unit that divides it, so that `parse_size` gives it back exactly."""
    for unit, scale in reversed(UNITS.items()):
        if num_bytes and num_bytes % scale == 0:
            return f"{num_bytes // scale} {unit}"
    return f"{num_bytes} B"


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """A share of the memory that is free when a run begins; as text "80 %"."""

    of_free: float

    def of(self, free_bytes: int) -> int:
        """Bytes of it."""
        return int(self.of_free * free_bytes)

    def __str__(self) -> str:
        return f"{100 * self.of_free:.12g} %"


def parse_size_or_share(value: object) -> object:
    """As `parse_size`; "80 %", or a number from 0 to 1 that is no whole one, as a share."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", value) if isinstance(value, str) else None
    if not match and not isinstance(value, float):
        return parse_size(value)
    share = float(Decimal(match[1]) / 100) if match else value
    if not (isinstance(share, float) and 0 < share <= 1):
        raise ValueError(f'expected a share of memory above 0 and up to "100 %", got {value!r}')
    return MemoryShare(share)


def format_size_or_share(value: int | MemoryShare) -> str:
    return str(value) if isinstance(value, MemoryShare) else format_size(value)


Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(format_size, return_type=str),
    Field(ge=0, le=1 << 60),
    WithJsonSchema({"type": "string", "examples": ["512 MiB"]}),
]
SizeOrShare = Annotated[
    Annotated[int, Field(ge=0, le=1 << 60)] | InstanceOf[MemoryShare],
    BeforeValidator(parse_size_or_share),
    PlainSerializer(format_size_or_share, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["512 MiB", "80 %"]}),
]
FilePath = Annotated[Path, Field(strict=False)]


class Number(Strict):
    """A numeric column. Nulls (and NaN) become `fill`; then `shift` is added, then log1p is taken, if so asked."""

    name: str
    fill: float = 0.0
    shift: float = 0.0
    log1p: bool = False


class Category(Strict):
    """A categorical column: integers, strings or a dictionary, one value or a list of values per example."""

    name: str
    table: str | None = None
    """The table that its keys belong to; by default a table of the column's own name."""
    pooling: Literal["sum", "mean"] = "sum"
    """How the rows of a list of values become one embedding; no effect on a column of single values."""

    @property
    def table_name(self) -> str:
        return self.table or self.name


class Synthetic(Strict):
    """Data made once, as Parquet, under `Data.root`: Zipf keys and a planted model that makes the label learnable."""

    train_examples: Annotated[int, Field(ge=1, le=1 << 40)]
    validation_examples: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    test_examples: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    keys_per_field: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
    """Number of different values of each categorical field c0, c1, ..."""
    num_numbers: Annotated[int, Field(ge=0)] = 0
    """Numeric columns i0, i1, ..."""
    zipf: Annotated[float, Field(ge=0.0)] = 1.05
    """Exponent of the key distribution; 0 is uniform."""
    seed: int = 0


class Data(Strict):
    root: FilePath = Path(".")
    """Folder that the patterns below are relative to. `~` is expanded; a relative root starts where you are."""
    train: Annotated[tuple[str, ...], Field(min_length=1)]
    """Parquet files, directories or globs."""
    validation: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    labels: Annotated[tuple[str, ...], Field(min_length=1)]
    weight: str | None = None
    numbers: tuple[Number, ...] = ()
    categories: Annotated[tuple[Category, ...], Field(min_length=1)]
    shuffle_window: Annotated[int, Field(ge=0)] = 1 << 17
    """Examples that are shuffled together; 0 keeps the order of the files."""
    synthetic: Synthetic | None = None

    @model_validator(mode="after")
    def _names_are_distinct(self) -> Data:
        weight = [self.weight] if self.weight else []
        names = [*self.labels, *weight, *(n.name for n in self.numbers), *(c.name for c in self.categories)]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"columns named more than once: {', '.join(twice)}; name each column once")
        return self


class Model(Strict):
    kind: ImportString[Any]
    """A `torch.nn.Module` class, or its dotted name. Called as
    kind(num_fields=, num_numbers=, embedding_dim=, **args)."""
    embedding_dim: Annotated[int, Field(ge=0)] = 16
    """Of every field: rows are moved whole, and all are equally wide. 0 for a model of first-order weights alone."""
    init_std: Annotated[float, Field(ge=0.0)] = 0.01
    """Standard deviation of a new row's embedding weights; first-order weights start at 0."""
    args: dict[str, Any] = Field(default_factory=dict)
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the dense model's matrix products (torch.autocast). Rows, gradients and optimizers are float32 always."""


class Storage(Strict):
    """Hard caps. Each covers a tier's slab and its ring of buffers; the key map has a cap of its own."""

    device: SizeOrShare
    """A size, or a share of the memory that is free when the run begins: of the GPU's, or of RAM without one, as far as
    this process may take it."""
    host: Size
    disk: Size
    """Everything that lies on the disk for long: the chunks of all kept commits, what was written since, dense models,
    and space held free for one whole commit."""
    read: Size = 1 << 30
    """Read ring and shuffle window."""
    map: Size = 1 << 30
    chunk_rows: Annotated[int, Field(ge=1024, multiple_of=1024)] = 8192
    """Rows of one chunk file of the log."""
    log_multiple: Annotated[float, Field(ge=1.1)] = 2.0
    """A commit refers to at most so many rows of the log, stale ones counted, per live row (and one chunk more)."""
    log_growth: Annotated[float, Field(ge=0.0)] = 1.0
    """Rows written to the log, as a share of the live rows, after which a commit is brought forward."""
    direct: bool = False
    """Read the log past the page cache, which else is a tier that no cap covers, and drop from it what was written."""
    policy: Literal["clock"] = "clock"

    @property
    def device_bytes(self) -> int:
        """The device's cap, where it is a size."""
        assert isinstance(self.device, int), "a share of memory is made a size before a run"
        return self.device


class Schedule(Strict):
    batch_size: Annotated[int, Field(ge=1)]
    epochs: Annotated[int, Field(ge=1)] = 1
    block_batches: Annotated[int, Field(ge=1)] = 16
    """Batches of a block (k); an upper bound."""
    look_ahead: Annotated[int, Field(ge=1)] = 2
    """Blocks that are planned and prefetched while one trains (L); an upper bound."""
    threads: Annotated[int, Field(ge=1)] = Field(default_factory=cpus)
    """Threads of `train`, by default one a CPU that this process may use. Part of what fixes a result's bits."""
    plateau: Plateau | None = None
    """Early stopping, and lower learning rates, by the validation split. `epochs` is then an upper bound."""


MAX_KEPT = 16


class Commit(Strict):
    """When all that was learned is made durable: besides at the end of every epoch, and when a signal stops the run."""

    every_blocks: Annotated[int, Field(ge=1)] | None = None
    """Training blocks from one commit to the next."""
    every_minutes: Annotated[float, Field(gt=0.0)] | None = 10.0
    keep: Annotated[int, Field(ge=1, le=MAX_KEPT)] = 2
    """The last so many commits are kept."""
    keep_best: bool = True
    """So is that of the best epoch on the validation split, by AUC or by schedule.plateau's metric, as "best"."""


SHARDS = 16
"""Of a table that several workers make, unless the workflow says otherwise."""


class Workers(Strict):
    """Settings for several workers (`--workers`, `--scheduler`). Storage caps are per worker; schedule.threads is per
    machine, and shared by its workers."""

    shards: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Of a table that is made: it stays with that number, so there are never more workers. By default 16 with several
    workers, 1 with one."""
    pairs_up_to: Annotated[int, Field(ge=0)] = 8
    """Up to so many workers keys travel from each to each as a Dask task of their own; among more by one collective."""
    timeout_seconds: Annotated[float, Field(gt=0.0)] = 120.0
    """How long one worker waits for another; longer than a commit takes."""
    silent_seconds: Annotated[float, Field(gt=0.0)] = 30.0
    """A worker that Dask has not heard of for so long is taken for lost."""
    check_collectives: bool = False
    """Have workers compare, before each, what they are about to do together. For those who change this code."""

    def num_shards(self, world: int) -> int:
        """Return the number of shards of a table that so many workers make."""
        return self.shards or (SHARDS if world > 1 else 1)


class Metrics(Strict):
    """Settings of what is reported besides AUC, logloss, normalized entropy and calibration of the evaluated splits;
    and, with CowClip, the share of an epoch's rows whose gradient was clipped."""

    group: str | None = None
    """A column of integers or strings, a user's id say: AUC within each of its values, averaged over them."""
    progressive: bool = False
    """The same metrics of the training split, each batch scored by the model that has not trained on it yet. By its own
    forward pass, so dropout and batch norm are as in training. Where a run went on within an epoch, of the examples of
    that epoch since then."""


MIN_FROZEN_EPS = 1e-6


class Workflow(Strict):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    data: Data
    model: Model
    optimizer: Optimizer = Optimizer()
    storage: Storage
    schedule: Schedule
    commit: Commit = Commit()
    metrics: Metrics = Metrics()
    workers: Workers = Workers()
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the device tier is and the model trains: "auto" takes a GPU if there is one."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0

    @model_validator(mode="after")
    def _settings_agree(self) -> Workflow:
        if self.optimizer.rows.kind == "ftrl" and self.model.embedding_dim and self.model.init_std:
            raise ValueError(
                "optimizer.rows is Ftrl, whose weights start from zero, and model.init_std is not 0; set it to 0, or "
                "take Ftrl for a model of first-order weights (model.embedding_dim = 0)"
            )
        merge, eps = self.optimizer.merge, self.optimizer.dense.eps
        if merge and merge.denominator == "frozen" and merge.k > 1 and eps < MIN_FROZEN_EPS:
            raise ValueError(
                f"optimizer.dense.eps is {eps}, and optimizer.merge has a frozen denominator: a weight whose gradient "
                f"was 0 for long would be thrown away when it comes back; take at least {MIN_FROZEN_EPS}, 1e-4 say"
            )
        plateau = self.schedule.plateau
        if self.optimizer.rows.kind == "ftrl" and plateau and plateau.lr_factor < 1:
            raise ValueError(
                "schedule.plateau.lr_factor is below 1, and a weight of optimizer.rows, Ftrl, is a function of its "
                "sums and of the one learning rate that they were made with; set it to 1"
            )
        if self.schedule.plateau and not self.data.validation:
            raise ValueError("schedule.plateau needs data.validation; name the files, or leave plateau out")
        if self.schedule.plateau and not self.commit.keep_best:
            raise ValueError("schedule.plateau needs commit.keep_best: the best epoch is the one that is tested")
        return self
