"""Settings of features: the columns that each reads and makes, and how. The computation is in the module of each kind,
such as `bucket.py`; only this module is imported with every workflow, so it imports neither NumPy nor Arrow."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.errors import did_you_mean
from pipeline.settings import OR_LIST, Omitting, Tuple, tagged
from pipeline.settings.times import known_zone

Name = Annotated[str, Field(min_length=1)]


class Feature(Omitting):
    """Columns computed from others. A subclass defines a literal `kind`, and the columns that it reads and makes.

    The module of that name in this folder has two functions. types(feature, found, side) returns the types of the
    columns made from columns of the types `found`, and raises ValueError, with the column, if one does not fit.
    compute(feature, given, side) returns the columns made from `given`, Arrow arrays of types that `types` has
    accepted. `side` is the feature's side file.
    """

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the columns that the feature reads."""
        return ()

    @property
    def makes(self) -> tuple[str, ...]:
        """Names of the columns that the feature makes."""
        return ()

    side_field: ClassVar[str] = ""
    """Name of the field that contains the name of the feature's side file, if any."""

    statistics: ClassVar[tuple[str, ...]] = ()
    """Names of the fields that `data.statistics` may fill in."""

    @property
    def side_file(self) -> str | None:
        """Name of the file that the feature reads, relative to `data.root`, if any."""
        return getattr(self, self.side_field) if self.side_field else None

    @property
    def lacks(self) -> str | None:
        """Description of the statistics not yet computed, if any."""
        return None


class OneColumn(Feature):
    """A feature that reads one column and makes one."""

    column: Name
    name: Name
    """Column to read, and name of the column to make."""

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def makes(self) -> tuple[str, ...]:
        return (self.name,)


class SeveralColumns(Feature):
    """A feature that reads one column and makes several, named by `take`."""

    column: Name
    """Column to read."""
    take: dict[Any, Name]

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def makes(self) -> tuple[str, ...]:
        return tuple(self.take.values())


class WithFile(Feature):
    """A feature that reads a side file, which may change between two spans of a run."""

    later = ("changes",)

    changes: Literal["take", "refuse"] = "take"
    """Whether a new file may have other values for known keys: "take" uses them from the next span on. New keys are
    always taken."""


class Bucket(OneColumn):
    """A column of integers made from a column of numbers: the number of `edges` that a value reaches. Null and NaN
    become null.

    With `quantiles`, the edges are quantiles of the training data, computed by `pipeline prepare statistics`. With
    `squared_log`, a value x above 2 is in bucket floor(ln(x)^2), and any other value in the bucket of its integer part:
    the rule of the winners of Criteo's 2014 contest, which BARS adopted. Values above 2^64 share a bucket, and so do
    values below -2^62.
    """

    kind: Literal["bucket"] = "bucket"
    statistics: ClassVar[tuple[str, ...]] = ("edges",)
    edges: Tuple[float] | None = None
    quantiles: Annotated[int, Field(ge=2, le=1 << 16)] | None = None
    squared_log: bool = False
    """The rule, one of three: edges in ascending order, a number of buckets, or the squared logarithm."""
    missing: float | None = None
    """A value that is also treated as null."""
    computed: bool = False
    """True if the edges come from `data.statistics`."""

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
    """Columns of integers made from a column of times: `hour` 0 to 23, `weekday` 0 (Monday) to 6, `weekend` 0 or 1,
    `day` 1 to 31, `month` 1 to 12, `minute` 0 to 59. Null stays null.

    Times are timestamps or dates; integers with `unit`, since 1970 in UTC; or text, or integers of decimal digits, with
    `form`. A time with a known zone, such as one with `unit`, is converted to `zone` (by default UTC). A time without a
    zone is used as written, and `zone` is rejected. Arrow supports daylight saving time up to 2037.
    """

    kind: Literal["calendar"] = "calendar"
    take: Annotated[dict[Part, Name], Field(min_length=1)]
    """Parts, each with the name of the column to make from it."""
    zone: str | None = None
    """Name of a time zone, such as "Europe/Berlin"."""
    unit: Literal["s", "ms", "us", "ns"] | None = None
    """Unit of integers since 1970."""
    form: str | None = None
    """Format of a text, as for Python's `strptime`, such as "%y%m%d%H" for 14102100."""

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
    """A column of 64-bit hashes of the values of two or more columns, in this order, without a vocabulary. Null is a
    value like any other. Whole floats count as integers; columns of lists are rejected."""

    kind: Literal["cross"] = "cross"
    columns: Annotated[tuple[Name, ...], Field(min_length=2), OR_LIST]
    name: Name
    """Columns to read, and name of the column to make."""

    @property
    def reads(self) -> tuple[str, ...]:
        return self.columns

    @property
    def makes(self) -> tuple[str, ...]:
        return (self.name,)


class Lookup(WithFile, SeveralColumns):
    """Columns of a Parquet file, joined by key: from the row whose `key` equals the value of `column`. Null, and values
    that the file does not contain, give null. The file is held in memory, and each key must occur in it once."""

    kind: Literal["lookup"] = "lookup"
    side_field: ClassVar[str] = "file"
    file: Name
    """Parquet file, relative to `data.root`. Its checksum is part of the run, and a servable contains a copy."""
    key: Name
    """The file's key column: integers (or whole floats) or text, as in `column`."""
    take: Annotated[dict[Name, Name], Field(min_length=1)]
    """Columns of the file, each with the name of the column to make from it."""


class Rare(WithFile):
    """Values of a category, or of its lists, that occur fewer than `at_least` times in the training data share one key
    per table. A file of counts, made by `pipeline prepare statistics`, says which values these are."""

    kind: Literal["rare"] = "rare"
    side_field: ClassVar[str] = "counts"
    column: Name
    """A column in `data.categories`."""
    at_least: Annotated[int, Field(ge=2)]
    """Number of occurrences from which a value has a key alone."""
    counts: Name
    """Parquet file, relative to `data.root`, with the columns value and count."""
    nulls: bool = False
    """True if null also has the shared key; False if it has a separate one."""
    unseen: bool = True
    """True if values that are missing from the file also have the shared key."""


class Standardize(OneColumn):
    """A column of float32 numbers: (x - mean) / std, clipped to +-`clip`. Null and NaN become null, which
    `Number.fill`, by default 0, replaces by the mean. If mean and std are omitted, `pipeline prepare statistics`
    computes them from the training data."""

    kind: Literal["standardize"] = "standardize"
    statistics: ClassVar[tuple[str, ...]] = ("mean", "std")
    mean: float | None = None
    std: Annotated[float, Field(gt=0.0)] | None = None
    """Mean and standard deviation; computed if both are omitted."""
    log1p: bool = False
    """Use sign(x) ln(1 + |x|) instead of x. Mean and standard deviation are then those of this value."""
    clip: Annotated[float, Field(gt=0.0)] | None = None
    """Largest magnitude of the result."""
    computed: bool = False
    """True if mean and standard deviation come from `data.statistics`."""

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
    """Raise ValueError if a feature reads a column that a later feature makes, if it makes an existing column, or if a
    rule for rare values does not belong to a category."""
    seen: dict[str, int] = {}
    for n, feature in enumerate(features):
        where = f"data.features[{n}] ({feature.kind})"
        later = {name for other in features[n:] for name in other.makes}
        if unmade := [name for name in feature.reads if name in later]:
            raise ValueError(f"{where} reads {unmade[0]!r}, which no earlier feature makes; move its feature up")
        if known := [name for name in feature.reads if name in labels]:
            raise ValueError(f"{where} reads {known[0]!r}, which is a label; examples to score have no labels")
        for name in feature.makes:
            if name in seen or name in (*labels, weight):
                other = f"data.features[{seen[name]}] does" if name in seen else "data.labels or data.weight names"
                raise ValueError(f"{where} makes column {name!r}, which {other} too; give it another name")
            seen[name] = n
        if feature.kind == "rare" and feature.column not in categories:
            hint = did_you_mean(feature.column, categories, "there are")[1]
            raise ValueError(f"{where}.column is {feature.column!r}, which is not in data.categories{hint}")
    rare = [feature.column for feature in features if feature.kind == "rare"]
    if twice := sorted({name for name in rare if rare.count(name) > 1}):
        raise ValueError(f"data.features has several rules for rare values of {twice[0]!r}; leave one")
