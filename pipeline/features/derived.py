"""Columns made by a workflow's features, added to those of a file or table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline.features.settings import AnyFeature, Rare
from pipeline.features.side_files import NO_FILE, SideFile, side_file
from pipeline.features.times import time_inputs
from pipeline.files.description import Description
from pipeline.files.find import place_of

if TYPE_CHECKING:
    from pipeline.features.rare import RareKeys


class Derived:
    """Columns made by `data.features`, in order; the same for every file."""

    def __init__(
        self, features: Sequence[AnyFeature], root: Path, description: Description, statistics: Path | None = None
    ) -> None:
        """`root`: folder or address to which file names are relative. `description`: that of the columns that features
        read; completed by the files. `statistics`: the file named by `data.statistics`, for messages. Raises ValueError
        if a feature lacks a statistic or a file."""
        self._features, self._description = tuple(features), description
        self._times = {} if description.years is None else time_inputs(features, description.types, description.years)
        self._sides: dict[int, SideFile] = {}
        for n, feature in enumerate(features):
            if feature.lacks:
                computes = "`pipeline prepare statistics` computes what is missing from the training data"
                if statistics is None:
                    where = f"; {computes}, and data.statistics names the file that it writes"
                else:
                    place = place_of(str(statistics), root)
                    where = f": {place}, which data.statistics names, lacks it or is not there; {computes}"
                raise ValueError(f"{self._of(n)} has no {feature.lacks}{where}")
            if feature.side_file is not None:
                with _naming(f"{self._of(n)}"):
                    self._sides[n] = side_file(place_of(feature.side_file, root), description.canonical)
        self._maker = {name: n for n, feature in enumerate(features) for name in feature.makes}

    def __contains__(self, name: object) -> bool:
        """True for the name of a column made by a feature."""
        return name in self._maker

    def inputs(self, names: Iterable[str]) -> list[str]:
        """Distinct data columns to read for these columns: each column itself, or the inputs of its feature."""
        return inputs_of(self._features, names)

    def schema(self, flat: pa.Schema, where: object) -> pa.Schema:
        """Flat columns of a file or a table, followed by the columns made from them. A feature without all its inputs
        makes none. `where`: the file or table, for messages. Raises ValueError if a column does not fit or already
        exists."""
        self._description.take(flat, where)
        types = {field.name: field.type for field in flat}
        made: list[pa.Field] = []
        for n, feature in enumerate(self._features):
            with _naming(f"{where}: {self._of(n)}"):
                if twice := [name for name in feature.makes if name in flat.names]:
                    raise ValueError(f"makes column {twice[0]!r}, which already exists; give it another name")
                if not feature.makes or not types.keys() >= {*feature.reads}:
                    continue
                found = [self._read_as(name, types[name]) for name in feature.reads]
                kinds = _code_of(feature.kind).types(feature, found, self._sides.get(n, NO_FILE))
            types |= dict(zip(feature.makes, kinds, strict=True))
            made += [pa.field(name, kind) for name, kind in zip(feature.makes, kinds, strict=True)]
        return pa.schema([*flat, *made], flat.metadata)

    def _read_as(self, name: str, found: pa.DataType) -> pa.DataType:
        """Type in which a feature reads a column. Raises ValueError if its kind differs from that in training."""
        if name in self._maker:
            return found
        if name in self._times:
            return self._times[name].read(pa.chunked_array([], found)).type
        if said := self._description.difference(name, found):
            raise ValueError(f"column {name!r}, of type {found}, {said}; write it alike in all files")
        return found

    def columns(
        self, names: Iterable[str], given: Callable[[str], pa.ChunkedArray], where: object
    ) -> dict[str, pa.ChunkedArray]:
        """Columns with these names, read from the data or computed by features. `given`: returns a column of the data
        in its plain type. `where`: the file or table, for messages."""
        found: dict[str, pa.ChunkedArray] = {}
        for name in names:
            self._find(name, given, where, found)
        return {name: found[name] for name in names}

    def _find(
        self, name: str, given: Callable[[str], pa.ChunkedArray], where: object, found: dict[str, pa.ChunkedArray]
    ) -> None:
        if name in found:
            return
        if name not in self._maker:
            found[name] = given(name)
            if name in self._times:
                with _naming(str(where)):
                    found[name] = self._times[name].read(found[name])
            return
        n = self._maker[name]
        feature = self._features[n]
        for read in feature.reads:
            self._find(read, given, where, found)
        with _naming(f"{where}: {self._of(n)}"):
            inputs = [_one_array(found[read]) for read in feature.reads]
            made = _code_of(feature.kind).compute(feature, inputs, self._sides.get(n, NO_FILE))
        found |= {out: pa.chunked_array([array]) for out, array in zip(feature.makes, made, strict=True)}

    def missing(self, name: str, names: Iterable[str]) -> list[str]:
        """Inputs of a column made by a feature that are not among these names."""
        return [one for one in self.inputs([name]) if one not in {*names}] if name in self._maker else []

    def rare(self, tables: Mapping[str, str]) -> dict[str, RareKeys]:
        """Rule of each category that has one. `tables`: table of each category. Raises ValueError if a file contains
        counts for another column."""
        found = {}
        for n, feature in enumerate(self._features):
            if isinstance(feature, Rare):
                with _naming(self._of(n)):
                    found[feature.column] = _code_of(feature.kind).rare_keys(
                        feature, tables[feature.column], self._sides[n]
                    )
        return found

    def _of(self, n: int) -> str:
        return f"data.features[{n}] ({self._features[n].kind})"


def inputs_of(features: Sequence[AnyFeature], names: Iterable[str]) -> list[str]:
    """Distinct data columns to read for these columns: each column itself, or the inputs of its feature."""
    maker = {name: feature for feature in features for name in feature.makes}
    found: dict[str, None] = {}
    for name in names:
        found |= dict.fromkeys(inputs_of(features, maker[name].reads) if name in maker else [name])
    return list(found)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) and combined.num_chunks == 1 else combined


@cache
def _code_of(kind: str) -> Any:
    """Module that computes features of a kind (see `Feature`). Some modules need Numba, which is slow to import."""
    return import_module(f"pipeline.features.{kind}")


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Context that adds a prefix with the origin to any ValueError raised in it."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, pa.ArrowException):
            raise
        raise ValueError(f"{what}: {error}") from error
