"""Settings of features: the columns that each reads and makes, and how. What computes them is in the file of the kind,
such as `bucket.py`; only this module is imported with every workflow, so it imports neither NumPy nor Arrow."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.errors import did_you_mean
from pipeline.settings import Strict, tagged
from pipeline.settings.times import known_zone

Name = Annotated[str, Field(min_length=1)]


class Feature(Strict):
    """Columns made of others. A subclass has a literal `kind`, and says what it reads and makes.

    The module of that name in this folder has two functions. types(feature, found, side) returns the types of the
    columns that the feature makes of columns of the types `found`, and raises ValueError, with the column, if one does
    not fit. compute(feature, given, side) returns the columns that it makes of `given`, Arrow arrays of types that
    `types` has accepted. `side` is its side file.
    """

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the columns that it is computed from."""
        return ()

    @property
    def makes(self) -> tuple[str, ...]:
        """Names of the columns that it makes."""
        return ()

    hashes: ClassVar[bool] = False
    """True if it hashes what it reads, so that whole numbers must come as integers, as those of a category."""
    side_field: ClassVar[str] = ""
    """Name of the field with the file that it reads, if it reads one."""

    @property
    def side_file(self) -> str | None:
        """File that it reads, relative to `data.root`."""
        return getattr(self, self.side_field) if self.side_field else None

    @property
    def lacks(self) -> str | None:
        """Statistic that has not been computed yet."""
        return None


class OneColumn(Feature):
    """A feature that reads one column and makes one."""

    column: Name
    name: Name

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def makes(self) -> tuple[str, ...]:
        return (self.name,)


class SeveralColumns(Feature):
    """A feature that reads one column and makes several; `take` has their names."""

    column: Name
    take: dict[Any, Name]

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def makes(self) -> tuple[str, ...]:
        return tuple(self.take.values())


class Bucket(OneColumn):
    """A column of integers made of one of numbers: the number of `edges` that a value reaches. Null and NaN are null.

    With `quantiles`, the edges are those of the training data; `pipeline prepare statistics` computes them. With
    `squared_log`, a value x above 2 is in bucket floor(ln(x)^2), any other in that of its integer part: the rule of the
    winners of Criteo's contest of 2014, which BARS took over. Values above 2^64, and those below -2^62,
    share a bucket.
    """

    kind: Literal["bucket"] = "bucket"
    edges: tuple[float, ...] | None = None
    quantiles: Annotated[int, Field(ge=2, le=1 << 16)] | None = None
    squared_log: bool = False
    missing: float | None = None
    """A value that is null, too."""
    computed: bool = False
    """True if the edges are from `data.statistics`."""

    @model_validator(mode="after")
    def _has_a_rule(self) -> Bucket:
        if (self.edges is None and self.quantiles is None) != self.squared_log:
            raise ValueError(f"bucket {self.name!r}: give one of edges, quantiles and squared_log")
        if not all(a < b for a, b in pairwise(self.edges or ())) or self.edges == ():
            raise ValueError(f"bucket {self.name!r}: edges are {self.edges}, expected one or more, in ascending order")
        return self

    @property
    def lacks(self) -> str | None:
        return "edges" if self.edges is None and not self.squared_log else None


Part = Literal["hour", "weekday", "weekend", "day", "month", "minute"]


class Calendar(SeveralColumns):
    """Columns of integers made of a column of times: `hour` 0 to 23, `weekday` 0 (Monday) to 6, `weekend` 0 or 1, `day`
    1 to 31, `month` 1 to 12, `minute` 0 to 59. Null is null.

    Times are timestamps or dates; integers with `unit`, since 1970 in UTC; or text, or integers of decimal digits, with
    `form`. A time of a known zone, such as one with `unit`, is read in `zone` (by default UTC); one without a zone is
    taken as it is written, and `zone` is refused. Arrow knows daylight saving time up to 2037.
    """

    kind: Literal["calendar"] = "calendar"
    take: Annotated[dict[Part, Name], Field(min_length=1)]
    """Parts, each with the name of the column that is made of it."""
    zone: str | None = None
    """Name of a time zone, such as "Europe/Berlin"."""
    unit: Literal["s", "ms", "us", "ns"] | None = None
    form: str | None = None
    """Form of a text as Python's `strptime` has it, such as "%y%m%d%H" for 14102100."""

    @field_validator("zone")
    @classmethod
    def _zone_is_known(cls, zone: str | None) -> str | None:
        return known_zone(zone)

    @model_validator(mode="after")
    def _has_one_form(self) -> Calendar:
        if self.unit is not None and self.form is not None:
            raise ValueError("unit is for integers since 1970, form for text and digits; give only one of them")
        return self


class Cross(Feature):
    """A column of 64-bit hashes of the values of two or more columns, in this order; no vocabulary is kept. Null is a
    value like others. Columns of lists are refused."""

    kind: Literal["cross"] = "cross"
    hashes: ClassVar[bool] = True
    columns: Annotated[tuple[Name, ...], Field(min_length=2)]
    name: Name

    @property
    def reads(self) -> tuple[str, ...]:
        return self.columns

    @property
    def makes(self) -> tuple[str, ...]:
        return (self.name,)


class Lookup(SeveralColumns):
    """Columns of a Parquet file, joined by a key: the row of the file whose `key` equals the value of `column`. Null,
    and a value that the file does not have, give null. The file is held in memory; each key must be in it once."""

    kind: Literal["lookup"] = "lookup"
    side_field: ClassVar[str] = "file"
    hashes: ClassVar[bool] = True
    file: Name
    """Parquet file, relative to `data.root`. Its checksum is part of the run, and a servable has a copy."""
    key: Name
    """The file's column of keys: integers or text, as `column` has them."""
    take: Annotated[dict[Name, Name], Field(min_length=1)]
    """Columns of the file, each with the name of the column that is made of it."""


class Rare(Feature):
    """Values of a category, or of its lists, that training data have fewer than `at_least` times share one key, which
    is that of the table. Which they are is in a file of counts that `pipeline prepare statistics` makes."""

    kind: Literal["rare"] = "rare"
    side_field: ClassVar[str] = "counts"
    column: Name
    """A column that `data.categories` names."""
    at_least: Annotated[int, Field(ge=2)]
    counts: Name
    """Parquet file, relative to `data.root`, with the columns value and count."""
    nulls: bool = False
    """True if null has that key, too; False if it has a separate one."""
    unseen: bool = True
    """True if values that the file does not have share the key, too."""


class Standardize(OneColumn):
    """A column of float32 numbers: (x - mean) / std, and no further from 0 than `clip`. Null and NaN are null, which
    `Number.fill`, 0 by default, makes the mean. `pipeline prepare statistics` computes mean and standard deviation of
    the training data if they are left out."""

    kind: Literal["standardize"] = "standardize"
    mean: float | None = None
    std: Annotated[float, Field(gt=0.0)] | None = None
    log1p: bool = False
    """Use sign(x) ln(1 + |x|) in place of x; mean and standard deviation are then those of this value."""
    clip: Annotated[float, Field(gt=0.0)] | None = None
    computed: bool = False
    """True if mean and standard deviation are from `data.statistics`."""

    @model_validator(mode="after")
    def _has_both_or_none(self) -> Standardize:
        if (self.mean is None) != (self.std is None):
            raise ValueError(f"standardize {self.name!r}: give mean and std, or neither, which are then computed")
        return self

    @property
    def lacks(self) -> str | None:
        return "mean and std" if self.mean is None or self.std is None else None


AnyFeature = tagged(Bucket | Calendar | Cross | Lookup | Rare | Standardize, "kind")


def check_features(
    features: Sequence[Any], categories: Collection[str], labels: Collection[str], weight: str | None
) -> None:
    """Raises ValueError if a feature reads a column that a later one makes, or makes an existing column, or a rule for
    rare values is of no category."""
    seen: dict[str, int] = {}
    for n, feature in enumerate(features):
        where = f"data.features[{n}] ({feature.kind})"
        later = {name for other in features[n:] for name in other.makes}
        if unmade := [name for name in feature.reads if name in later]:
            raise ValueError(f"{where} reads {unmade[0]!r}, which no feature before it makes; put that one first")
        if known := [name for name in feature.reads if name in labels]:
            raise ValueError(f"{where} reads {known[0]!r}, which is a label; what is scored has none")
        for name in feature.makes:
            if name in seen or name in (*labels, weight):
                other = f"data.features[{seen[name]}] does" if name in seen else "data.labels or data.weight names"
                raise ValueError(f"{where} makes column {name!r}, which {other}, too; give it another name")
            seen[name] = n
        if feature.kind == "rare" and feature.column not in categories:
            hint = did_you_mean(feature.column, categories, "there are")[1]
            raise ValueError(f"{where}.column is {feature.column!r}, which is not in data.categories{hint}")
    rare = [feature.column for feature in features if feature.kind == "rare"]
    if twice := sorted({name for name in rare if rare.count(name) > 1}):
        raise ValueError(f"data.features has several rules for rare values of {twice[0]!r}; leave one")
