"""Settings of columns: numbers, categories, sequences of past events, event times, labels, and synthetic data."""

from __future__ import annotations

from collections import abc
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from pipeline.errors import did_you_mean
from pipeline.settings import OR_LIST, Omitting, Strict, Tuple
from pipeline.settings.times import known_zone


class Column(Omitting):
    """A column. A name alone means the column with default settings."""

    name: str
    """Name of the column."""

    @model_validator(mode="before")
    @classmethod
    def _of_name(cls, given: object) -> object:
        return {"name": given} if isinstance(given, str) else given


class Number(Column):
    """A numeric column. Nulls and NaN are replaced by `fill`; then `shift` is added; then, if `log1p` is true, log1p is
    applied."""

    fill: float = 0.0
    shift: float = 0.0
    log1p: bool = False
    """Value of a null, amount added, and whether log1p is applied, in this order."""


class Category(Column):
    """A categorical column of integers, strings or dictionary values, with one value or a list of values per
    example."""

    later = ("width",)

    table: str | None = None
    """Name of the table to which its keys belong; by default the column's name."""
    pooling: Literal["sum", "mean"] = "sum"
    """Operation that combines the rows of a list of values into one embedding. No effect on columns of single
    values."""
    width: Annotated[int, Field(ge=1)] | None = None
    """Number of a row's weights (the first ones) that the field uses. A learned projection maps them to
    `model.embedding_dim` values. All fields of a table must have the same width. By default all weights, without a
    projection."""

    @property
    def table_name(self) -> str:
        return self.table or self.name


class Sequence(Strict):
    """Lists of past events of an example, such as the items that a user has clicked. The model gets the individual
    values (see `pipeline.models.ragged`). Within an example, all lists of a sequence have the same length. The oldest
    value comes first, and a null list counts as empty."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """Name of the sequence in the model's inputs."""
    items: Annotated[dict[str, str], Field(min_length=1)]
    """Columns of lists, each with its candidate: the single-valued category whose table, including its rules for rare
    values, the values of the lists share."""
    numbers: Tuple[str] = ()
    """Columns of lists of numbers, such as ratings or times between events."""
    max_length: Annotated[int, Field(ge=1, le=1 << 20)] = 100
    """Maximum number of values used. Of longer lists, the latest values are used."""

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.items, *self.numbers)


class Time(Column):
    """The column of event times, which divides training data into spans: timestamps, dates, or integers with `unit`; or
    a column given by folder names, such as day=2026-11-24; or several of these: ("year", "month", "day") or ("day",
    "hour")."""

    later = ("parts",)

    parts: Tuple[str] = ()
    """Columns given by folder names that follow `name` in a time of several columns."""
    unit: Literal["s", "ms", "us", "ns"] | None = None
    """Unit of integers that count since 1970 in UTC."""
    zone: Annotated[str | None, AfterValidator(known_zone)] = None
    """Name of the time zone that defines where days and hours begin, such as "Europe/Berlin"; by default UTC. Times
    without a zone are used as written, and `zone` is rejected for them."""

    @model_validator(mode="before")
    @classmethod
    def _of_names(cls, given: object) -> object:
        return {"name": given[0], "parts": given[1:]} if isinstance(given, tuple | list) and given else given

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.parts)


class Task(Strict):
    """The loss of a label, its weight, and which examples have the label. Examples without the label are excluded from
    its loss and its metrics."""

    label: str
    """A column in `data.labels`."""
    loss: Literal["cross_entropy", "squared", "huber"] = "cross_entropy"
    """Loss of an example. "cross_entropy" is for labels that are 0 or 1; the model returns the logit. With the other
    losses, the label may be any finite number, and the model returns its prediction: "squared" is the squared error;
    "huber" is half the squared error up to an error of `delta` and grows linearly beyond."""
    delta: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1.0
    """Error, in units of the label, from which the loss "huber" grows linearly."""
    weight: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1.0
    """Weight of the label's loss, which is the mean over the examples of a batch that have the label."""
    where: str | None = None
    """Name of an earlier label. Only examples in which that label is 1 have this label; in others this label may be 0,
    1 or null."""
    nulls: bool = False
    """True if examples with a null (or NaN) do not have the label; False if that is an error."""

    @property
    def is_binary(self) -> bool:
        """True if the label is 0 or 1, False if it is any number."""
        return self.loss == "cross_entropy"


class Synthetic(Strict):
    """Synthetic data, generated once as Parquet files under `Data.root`: Zipf-distributed keys, and labels drawn from a
    planted model so that they can be learned."""

    train_examples: Annotated[int, Field(ge=1, le=1 << 40)]
    validation_examples: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    test_examples: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    """Number of examples of each split."""
    keys_per_field: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1), OR_LIST]
    """Number of distinct values of each categorical field c0, c1, ..."""
    num_numbers: Annotated[int, Field(ge=0)] = 0
    """Number of numeric columns i0, i1, ..."""
    zipf: Annotated[float, Field(ge=0.0)] = 1.05
    """Exponent of the key distribution; 0 is uniform."""
    seed: int = 0
    """Seed of the keys and labels."""


def check_sequences(sequences: abc.Sequence[Sequence], categories: abc.Sequence[Category]) -> None:
    """Raise ValueError if the candidate of a list is not a category, or if two sequences have the same name."""
    known = {category.name for category in categories}
    for n, sequence in enumerate(sequences):
        for column, candidate in sequence.items.items():
            where = f"data.sequences[{n}] ({sequence.name!r}): the candidate of items {column!r} is {candidate!r}"
            if candidate not in known:
                hint = did_you_mean(candidate, known, "there are")[1]
                raise ValueError(
                    f"{where}, which is not in data.categories{hint}; name the category whose values they hold"
                )
    names = [sequence.name for sequence in sequences]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"data.sequences has {twice[0]!r} more than once; give each sequence a different name")


def check_widths(categories: abc.Sequence[Category], has_sequences: bool) -> None:
    """Raise ValueError if the fields of a table differ in width, or if a field has a width and there are sequences."""
    first_of = {category.table_name: category for category in reversed(categories)}
    for category in categories:
        if category.width != (first := first_of[category.table_name]).width:
            raise ValueError(
                f"data.categories: {first.name!r} has width {first.width} and {category.name!r} width "
                f"{category.width}, and both use the rows of table {category.table_name!r}; set one width"
            )
    if has_sequences and (narrow := [category.name for category in categories if category.width]):
        raise ValueError(
            f"data.categories: {narrow[0]!r} has a width, which is not possible with data.sequences; leave it out"
        )
