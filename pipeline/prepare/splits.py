"""Split of rows into training, validation and test: at random, by a time column, or by file.

The split depends only on the row, so parts may be made and remade in any order, by any process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.data.files import kind_of
from pipeline.files.find import DataFile, matches_name
from pipeline.files.plausible import are_outside, check_plausible, timestamps
from pipeline.prepare.histories import PLACE
from pipeline.prepare.schema import micros_of
from pipeline.prepare.values import keys_of, value_type
from pipeline.records import RESERVED
from pipeline.settings import SPLITS

I8 = NDArray[np.int8]
TRAIN, VALIDATION, TEST = range(len(SPLITS))
OUTSIDE = -1
"""Mark of a row that is for training, since its time is outside 1990 to 2100."""
DRAWS = 1 << 64
INSTEAD_OF_RESERVED = np.uint64(0x5BD1E995C6A4A793)
TIME = re.compile(r"(.+?)((?:,(?:validation|test)_from=[^,]+)+),?")
"""Text after `time:`: the column, whose name may contain any characters, and the start of each split."""


def mixed(x: Any) -> Any:
    """SplitMix64's output function for an integer or array, as in kernels/hashing.py, without Numba's start-up time."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & (DRAWS - 1)
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & (DRAWS - 1)
    return x ^ (x >> 31)


class Split(Protocol):
    def of(self, file: int, number: int, path: DataFile, table: pa.Table) -> I8:
        """[N] index in SPLITS, or OUTSIDE, of each row of part `number` of source `file`. Raises ValueError if a row
        has none, or if half of the times are outside 1990 to 2100, as in a wrong unit."""


@dataclass(frozen=True)
class Ratio:
    """Random split: each row has its own draw, the key (kernels/hashing.py) of (seed, file, part, row). With `user`,
    each value of that column has one draw."""

    validation: float = 0.0
    test: float = 0.0
    seed: int = 0
    user: str = ""

    def __post_init__(self) -> None:
        if not (self.validation >= 0 and self.test >= 0 and self.validation + self.test < 1):
            raise ValueError(
                f"--split ratio: validation is {self.validation} and test {self.test}; give shares of the rows from 0 "
                "to 1 that leave some for training"
            )

    def of(self, file: int, number: int, path: DataFile, table: pa.Table) -> I8:
        salt = mixed(self.seed)
        if self.user:
            values = table.column(self.user)
            keys_N: NDArray[Any] = keys_of(values.cast(value_type(values.type)).combine_chunks(), self.user)
        else:
            salt, keys_N = mixed(mixed(salt ^ file) ^ number), np.arange(table.num_rows, dtype=np.uint64)
        draws_N = mixed(keys_N ^ np.uint64(salt))
        draws_N[draws_N == RESERVED] = INSTEAD_OF_RESERVED
        split_N = np.zeros(table.num_rows, np.int8)
        split_N[draws_N < int((self.validation + self.test) * DRAWS)] = TEST
        split_N[draws_N < int(self.validation * DRAWS)] = VALIDATION
        return split_N


@dataclass(frozen=True)
class ByTime:
    """Split by a column with an order: training, then validation, then test."""

    column: str
    validation_from: str | None = None
    test_from: str | None = None
    form: str = ""
    """Form of times written as text, one of `DAYS`. If empty, texts are compared as ISO 8601 times if all texts of a
    part have that form, else as text."""

    def of(self, file: int, number: int, path: DataFile, table: pa.Table) -> I8:
        times = table.column(self.column)
        if pa.types.is_dictionary(times.type):
            times = times.cast(times.type.value_type)
        if times.null_count:
            raise ValueError(
                f"--split time: {times.null_count:,} rows of {path}, part {number}, have no {self.column}, so they are "
                "in no split; split by another column, or by ratio or file"
            )
        is_text = pa.types.is_string(times.type) or pa.types.is_large_string(times.type)
        moments = micros_of(times, self.form or "iso") if is_text else timestamps(times, None)
        split_N, outside_N = np.zeros(table.num_rows, np.int8), np.zeros(table.num_rows, np.bool_)
        if not (is_text and moments.null_count):
            moments = moments.cast(pa.timestamp("us")) if is_text else moments
            outside_N = are_outside(moments)
            if 2 * outside_N.sum() >= table.num_rows:
                check_plausible(moments, f"{path}, part {number}", 0, f"column {self.column!r} (--split time)")
        for split, since in ((VALIDATION, self.validation_from), (TEST, self.test_from)):
            if since is not None:
                split_N[self.are_from(since, times)] = split
        split_N[outside_N] = OUTSIDE
        return split_N

    def are_from(self, since: str, times: pa.ChunkedArray) -> NDArray[np.bool_]:
        """[N] True for times at or after `since`. Texts are compared by the times they denote, if these are known."""
        if pa.types.is_string(times.type) or pa.types.is_large_string(times.type):
            form = self.form or "iso"
            moments, begin = micros_of(times, form), micros_of(pa.array([since]), form)[0]
            if begin.is_valid and not moments.null_count:
                return np.asarray(pc.greater_equal(moments, begin))
        return np.asarray(pc.greater_equal(times, self.parsed(since, times.type)))

    def parsed(self, text: str, kind: pa.DataType) -> pa.Scalar:
        """Value of a text in the column's type. A time without a zone is taken in the column's zone."""
        try:
            return pa.scalar(text).cast(kind)
        except pa.ArrowException as error:
            if pa.types.is_timestamp(kind) and kind.tz:
                with suppress(pa.ArrowException):
                    return pc.assume_timezone(pa.scalar(text).cast(pa.timestamp(kind.unit)), kind.tz)
            forms = {"timestamp": ", written 2026-11-24T18:30:00", "date": ", written 2026-11-24"}
            form = next((form for name, form in forms.items() if str(kind).startswith(name)), "")
            raise ValueError(f"--split time: {text!r} is no {kind}{form}, which {self.column} is") from error


@dataclass(frozen=True)
class ByFile:
    """Split by source: all rows of a source are in one split. Shell patterns are matched against the source's name or
    whole path; a source that matches both splits is for test."""

    validation: tuple[str, ...] = ()
    test: tuple[str, ...] = ()

    def of(self, file: int, number: int, path: DataFile, table: pa.Table) -> I8:
        return np.full(table.num_rows, self.split_of(path), np.int8)

    def split_of(self, path: DataFile) -> int:
        found = TRAIN
        for split, patterns in ((VALIDATION, self.validation), (TEST, self.test)):
            if any(matches_name(path, pattern) for pattern in patterns):
                found = split
        return found


@dataclass(frozen=True)
class Last:
    """Split by time within each user: the last example is for test, the one before it for validation."""

    validation: bool = True
    test: bool = True

    def of(self, file: int, number: int, path: DataFile, table: pa.Table) -> I8:
        return np.asarray(table.column(PLACE), np.int8)


@dataclass(frozen=True)
class ToScore:
    """No split: rows without labels, all in test."""

    test: bool = True

    def of(self, file: int, number: int, path: DataFile, table: pa.Table) -> I8:
        return np.full(table.num_rows, TEST, np.int8)


def asked_for(split: Split) -> list[str]:
    """Requested splits other than training."""
    return [name for name in SPLITS if getattr(split, name, None) or getattr(split, f"{name}_from", None) is not None]


def reaches(split: Split, span: tuple[Any, Any] | None) -> str:
    """Range of the column of a split by time, as the end of a sentence; empty for other splits."""
    if not isinstance(split, ByTime) or span is None:
        return ""
    return f", since {split.column} goes from {span[0]} to {span[1]}"


def check_split(split: Split, schema: pa.Schema, paths: Sequence[DataFile]) -> None:
    """Raises ValueError if the split does not fit the columns or the sources."""
    match split:
        case ByTime():
            if split.column not in schema.names:
                raise ValueError(
                    f"--split time: there is no column {split.column!r}; the columns are {', '.join(schema.names)}"
                )
            for since in (one for one in (split.validation_from, split.test_from) if one is not None):
                if split.form and micros_of(pa.array([since]), split.form).null_count:
                    raise ValueError(
                        f"--split time: {since!r} is not in the form of the times of {split.column}: {split.form}"
                    )
                split.parsed(since, schema.field(split.column).type)
        case Ratio() if split.user:
            if split.user not in schema.names or kind_of(schema.field(split.user).type) not in ("integers", "text"):
                raise ValueError(
                    f"--split ratio: {split.user!r} is not a column of integers or text; add it to --schema"
                )
        case ByFile():
            for pattern in (*split.validation, *split.test):
                if not any(matches_name(path, pattern) for path in paths):
                    names = ", ".join(path.name for path in paths[:8]) + (", ..." if len(paths) > 8 else "")
                    raise ValueError(f"--split file: {pattern!r} matches none of the sources: {names}")
            if all(split.split_of(path) != TRAIN for path in paths):
                raise ValueError("--split file: no source is left for training; give more, or other patterns")


def parse(text: str | None) -> Split:
    """Parse the value of --split; None means that all rows are for training.

    Raises ValueError if it cannot be parsed.
    """
    if text is None or text == "last":
        return Ratio() if text is None else Last()
    kind, colon, rest = text.partition(":")
    words = [word for word in rest.split(",") if word]
    try:
        if kind == "time" and (found := TIME.fullmatch(rest)):
            return ByTime(found[1], **_options(found[2].split(",")[1:], {"validation_from": str, "test_from": str}))
        if kind == "file" and words:
            return ByFile(**_patterns(words))
        if kind != "ratio" or not colon:
            raise KeyError(kind)
        options = _options(words, {"validation": float, "test": float, "seed": int, "user": str})
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"--split {text}: expected ratio:validation=0.1,test=0.1,seed=0 (and user=COLUMN), or "
            "time:COLUMN,validation_from=VALUE,test_from=VALUE, or file:validation=PATTERN,test=PATTERN, or last"
        ) from error
    return Ratio(**options)


def _options(words: Sequence[str], kinds: Mapping[str, type]) -> dict[str, Any]:
    pairs = [word.partition("=") for word in words]
    return {name: kinds[name](value) for name, _, value in pairs}


def _patterns(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Patterns of each split. A pattern without a name belongs to the preceding name: validation=a,b,test=c."""
    found: dict[str, tuple[str, ...]] = {}
    name = ""
    for word in words:
        before, equals, after = word.partition("=")
        # A folder may be called "day=1".
        begins = equals and (before in SPLITS[1:] or not name)
        name, pattern = (before, after) if begins else (name, word)
        if name not in SPLITS[1:]:
            raise KeyError(name)
        found[name] = (*found.get(name, ()), pattern)
    return found
