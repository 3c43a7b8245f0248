"""The files of each split of a run, and the properties known before rows are read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import pyarrow as pa

from pipeline.data.files import InputColumn, SchemaCheck, listings_of, with_derived
from pipeline.data.groups import RowGroup, list_groups
from pipeline.data.identity import Begun, FileIdentity, SplitIdentity, file_difference, name_of, split_identity
from pipeline.features.settings import Cross, Lookup
from pipeline.files.description import Description
from pipeline.files.find import DataFile, check_once, find, is_hidden, named, place_of, typed
from pipeline.files.flat import open_file, type_with_sign
from pipeline.messages.uris import is_remote
from pipeline.spans.calendar import CalendarMaker
from pipeline.workflow import Data


def files_of_splits(data: Data, begun: Begun, described: Description) -> dict[str, list[DataFile]]:
    """The files of each split, with columns that agree with the description. A run started with the same files keeps
    its order, and also keeps files whose names have since become ignored. Training data with spans consists of the
    run's files, followed by those of `begun.extend`. Raises ValueError if a file is named twice, unless the run started
    that way."""
    root = data.root.expanduser().absolute()
    spans = _of_spans(data, begun) if data.spans_by else []
    other = data.model_copy(update={"train": ()}) if spans else data
    places = {str(root / name): version for name, version in begun.places}
    found = {split: [*listing.files] for split, listing in listings_of(other, places).items()}
    same = bool(begun.splits) and not spans
    for split, files in found.items():
        here = {name_of(file, data.root): file for file in files}
        was = [name for name, _ in begun.files(split)]
        for name in was:
            if is_hidden(name) and not is_remote(data.root) and (path := data.root.expanduser() / name).exists():
                here.setdefault(name, named(path))
        same = same and here.keys() == {*was}
        found[split] = [here[name] for name in was] if here.keys() == {*was} else files
    if data.spans_by:
        added = added_files(data, begun.extend)
        of_train = spans or found["train"]
        places_of_train = {file.place for file in of_train}
        found["train"] = [*of_train, *(file for file in added if file.place not in places_of_train)]
    if not same:
        check_once({f"data.{split}": files for split, files in found.items()})
    every = typed([file for files in found.values() for file in files], described.types)
    ready = iter(with_derived(every, data, described))
    return {split: list(islice(ready, len(files))) for split, files in found.items()}


def added_files(data: Data, extend: Sequence[str]) -> list[DataFile]:
    """Files to extend a run by. Raises ValueError as `find` does."""
    return list(find(extend, data.root, "--extend", "Parquet").files)


def _of_spans(data: Data, begun: Begun) -> list[DataFile]:
    """The run's files of a training split with spans; empty if it has none."""
    if not begun.splits.get("train") or begun.splits["train"].spans is None:
        return []
    return [
        replace(named(place_of(name, data.root), data.root), version=version) for name, version in begun.files("train")
    ]


@dataclass(frozen=True, slots=True)
class ListedSplit:
    identity: SplitIdentity
    groups: list[RowGroup]
    """Non-empty row groups, file by file."""
    files: dict[DataFile, FileIdentity]
    empty: dict[DataFile, frozenset[str]]
    """Names of the columns without values, per file."""
    notes: list[str]


def list_split(files: Iterable[DataFile], check: SchemaCheck, data: Data, was: SplitIdentity | None) -> ListedSplit:
    """Inspect all files of a split. `was`: the split so far, if it has spans, which are then continued; otherwise None.
    A file in `was` may be gone, since data already trained on is not read again. Raises ValueError if a file does not
    fit."""
    known = {file.path: file for file in was.files} if was else {}
    maker = CalendarMaker(data, was.spans or (), check.described) if was else None
    identities: dict[DataFile, FileIdentity] = {}
    groups: list[RowGroup] = []
    empty: dict[DataFile, frozenset[str]] = {}
    for file in files:
        name = name_of(file, data.root)
        before = known.get(name)
        if was and before and not is_remote(file.place) and not Path(file.place).exists():
            identities[file], empty[file] = before.model_copy(update={"types": was.types_of(before)}), frozenset()
            sizes = [rows for count, rows in before.row_groups for _ in range(count)]
            groups += [RowGroup(file, number, rows, 0, 0) for number, rows in enumerate(sizes) if rows]
            continue
        identity, of_file, empty[file] = list_groups(file, check, name)
        groups += [group for group in of_file if group.num_rows]
        if maker:
            if before and before.row_groups != identity.row_groups:
                # The spans of the run do not divide other rows.
                said, way = file_difference(before, identity, {}, {}), "restore the file, or, once all its rows"
                raise ValueError(f"data.train: {said}; {way} were trained on, remove it")
            spans = before.spans if before else _cuts(maker, file, name)
            identity = identity.model_copy(update={"spans": spans})
        identities[file] = identity
    labels = maker.labels if maker else None
    identity_of_all = split_identity(list(identities.values()), labels)
    return ListedSplit(identity_of_all, groups, identities, empty, maker.notes if maker else [])


def _cuts(maker: CalendarMaker, file: DataFile, name: str) -> list[tuple[int, int]]:
    with open_file(file) as opened:
        return maker.cut(file, name, opened)


def check_signs(columns: Iterable[InputColumn], data: Data, files: Mapping[DataFile, FileIdentity]) -> None:
    """Raises ValueError, with both files, if a column whose values are hashed has negative integers, and others from
    2^63 on, which may have the keys of these."""
    hashed = [name for feature in data.features if isinstance(feature, Cross | Lookup) for name in feature.reads]
    for name in [*(column.name for column in columns if column.has_keys), *hashed]:
        kinds = " ".join({identity.types.get(name, "").partition(", indices")[0] for identity in files.values()})
        if "uint64" in kinds and re.search(r"\bint[0-9]", kinds):
            there = [file for file in files if is_remote(file.place) or Path(file.place).exists()]
            if said := type_with_sign(pa.uint64(), name, there)[1]:
                raise ValueError(said)
