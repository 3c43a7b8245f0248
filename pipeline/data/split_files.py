"""The files of each split of a run, and the properties known before rows are read."""

from __future__ import annotations

import filecmp
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from pipeline.data.arrivals import Arrivals
from pipeline.data.files import InputColumn, SchemaCheck, listings_of, with_derived
from pipeline.data.groups import RowGroup, list_groups
from pipeline.data.identity import Begun, FileIdentity, SplitIdentity, file_difference, look_at, name_of, split_identity
from pipeline.data.waiting import begun_part, chosen, waiting_in
from pipeline.errors import FileChanged
from pipeline.features.settings import Cross, Lookup
from pipeline.files import stores
from pipeline.files.description import Description
from pipeline.files.find import DataFile, as_added, check_once, find, is_hidden, named, partitions_of, place_of, typed
from pipeline.files.flat import open_file, type_with_sign
from pipeline.files.tables import table_files, table_of
from pipeline.messages.uris import is_remote
from pipeline.spans.calendar import CalendarMaker
from pipeline.spans.times import RowTimes, Run
from pipeline.spans.waiting import Waiting
from pipeline.storage.files import checksum
from pipeline.workflow import Data


@dataclass(frozen=True, slots=True)
class SplitFiles:
    of: dict[str, list[DataFile]]
    """The files of each split, in order."""
    given: list[list[str]]
    """See `SplitIdentity.given`."""
    known: frozenset[str]
    """Names of the files that the run has, or that this command names."""
    arrivals: Arrivals


def files_of_splits(data: Data, begun: Begun, described: Description) -> SplitFiles:
    """The files of each split, with columns that agree with the description. A run started with the same files keeps
    its order, and also keeps files whose names have since become ignored. Training data with spans consists of the
    run's files, followed by those of spans that wait, and by those of `begun.extend`. Raises ValueError if a file is
    named twice, unless the run started that way."""
    root = data.root.expanduser().absolute()
    spans = _of_spans(data, begun) if data.spans_by else []
    # All files of the run may be in lists.
    goes_on = bool(data.spans_by and begun.splits and begun.splits["train"].spans)
    other = data.model_copy(update={"train": ()}) if goes_on or begun.waiting else data
    places = {str(root / name): version for split in begun.splits for name, version in begun.files(split)}
    found = {split: [*listing.files] for split, listing in listings_of(other, places).items()}
    given: list[tuple[str, ...]] = []
    known = begun.trains_on
    same = bool(begun.splits) and not (goes_on or begun.waiting)
    for split, files in found.items():
        here = {name_of(file, data.root): file for file in files}
        was = [name for name, _ in begun.files(split)]
        for name in was:
            if is_hidden(name) and not is_remote(data.root) and (path := data.root.expanduser() / name).exists():
                here.setdefault(name, named(path))
        same = same and here.keys() == {*was}
        found[split] = [here[name] for name in was] if here.keys() == {*was} else files
    arrivals = Arrivals(data, begun)
    if data.spans_by:
        added, again = added_files(data, begun.extend), _listed_again(data, begun)
        listed = {file.place: name_of(file, data.root) for _, files in again for file in files}
        listed |= {file.place: name_of(file, data.root) for file in (*found["train"], *added)}
        final = begun.known_among({*listed.values()})
        of_train: dict[str, DataFile] = {file.place: file for file in spans}
        for file in (*found["train"], *(file for _, files in again for file in files), *added):
            if listed[file.place] not in final:
                of_train.setdefault(file.place, file)
        # Values of a path are in the order of their names.
        in_order = of_train.values() if data.spans_by == "value" else as_added(of_train.values())
        found["train"] = arrivals.complete(in_order)
        waits = begun.waiting is not None and bool(begun.waiting.rows or begun.waiting.held)
        settled = final.keys() - {file.path for file in begun.shared}
        # A place without files waits, too, since some may come back.
        given = [one for one, files in again if ({listed[file.place] for file in files} - settled if files else waits)]
        given = [*(given if begun.waiting else [data.train]), *filter(None, [begun.extend])]
        known |= {name_of(file, data.root) for file in added} | arrivals.before.keys()
    if not same:
        check_once({f"data.{split}": files for split, files in found.items()})
    every = typed([file for files in found.values() for file in files], described.types)
    ready = iter(with_derived(every, data, described))
    names = [tuple(name_of(DataFile(place_of(place, data.root)), data.root) for place in places) for places in given]
    return SplitFiles(
        {split: list(islice(ready, len(files))) for split, files in found.items()},
        [[*places] for places in dict.fromkeys(names)],
        frozenset(known),
        arrivals,
    )


def added_files(data: Data, extend: Sequence[str]) -> list[DataFile]:
    """Files to extend a run by. Raises ValueError as `find` does."""
    return list(find(extend, data.root, "--extend", "Parquet").files)


def _listed_again(data: Data, begun: Begun) -> list[tuple[tuple[str, ...], list[DataFile]]]:
    """Places that were given for spans that wait, and the files that are there now."""
    found = []
    for places in begun.waiting.given if begun.waiting else ():
        files: list[DataFile] = []
        for place in places:
            # All files of a place may be gone, which `chosen` reports by span.
            with suppress(ValueError):
                files += find([place], data.root, "data.train", "Parquet").files
        found.append((places, files))
    return found


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


class Listed(NamedTuple):
    identity: FileIdentity
    groups: list[RowGroup]
    """Non-empty row groups."""
    empty: frozenset[str]
    """Names of the columns without values."""


def list_split(
    files: Iterable[DataFile], check: SchemaCheck, data: Data, was: SplitIdentity | None, begun: Begun,
    arrivals: Arrivals | None = None,
) -> ListedSplit:  # fmt: skip
    """Inspect all files of a split. `was`: the split so far, if it has spans, which are then continued by the other
    files, in the order of their times; otherwise None. A file in `was` may be gone, since data already trained on is
    not read again; if the run is done with all its rows, it is not opened. A copy of another file is left out, and,
    with `arrivals`, a new file that cannot be read. Raises ValueError if a file does not fit."""
    known = {file.path: file for file in was.files} if was else {}
    times = RowTimes(data, check.described) if was else None
    listed: dict[DataFile, Listed] = {}
    added: dict[DataFile, list[Run]] = {}
    of_run = begun.trains_on if was else set()
    for file in files:
        name = name_of(file, data.root)
        check.known |= {str(file)} if name in of_run else set()
        before = known.get(name)
        is_done = before and before.spans and all((span or 0) < begun.done for span, _ in before.spans)
        if was and before and (is_done or before.replaced or not stores.is_file(file.place)):
            sizes = [rows for count, rows in before.row_groups for _ in range(count)]
            groups = [RowGroup(file, number, rows, 0, 0) for number, rows in enumerate(sizes) if rows]
            listed[file] = Listed(before.model_copy(update={"types": was.types_of(before)}), groups, frozenset())
            continue
        try:
            identity, groups, empty = list_groups(file, check, name)
            if times and not before:
                with open_file(file) as opened:
                    added[file] = times.runs(file, name, opened)
        except (ValueError, OSError, pa.ArrowException) as error:
            if before or was is None or arrivals is None:
                raise
            arrivals.leave_damaged(file, name, error)
            continue
        if before and before.row_groups != identity.row_groups:
            # The spans of the run do not divide other rows.
            said, way = file_difference(before, identity, {}, {}), "restore the file, or, once all its rows"
            changed = [span for span, _ in before.spans or ()]
            raise FileChanged(f"data.train: {said}; {way} were trained on, remove it", changed)
        if before:
            kept = {name: getattr(before, name) for name in ("spans", "moved", "out_of_place")}
            identity = identity.model_copy(update=kept)
        listed[file] = Listed(identity, [group for group in groups if group.num_rows], empty)
    copies = _copies({f: of for f, of in listed.items() if not of.identity.replaced}, added, begun, data)
    for file, other in copies.items():
        assert arrivals, "copies are among the new files of a run"
        arrivals.leave_copy(file, name_of(file, data.root), other)
    listed = {file: of for file, of in listed.items() if file not in copies}
    aside = begun.waiting.held if begun.waiting else ()
    maker = None
    if was:
        is_gone = partial(_is_gone, was, begun, data, {})
        is_open = data.close == "next" or was.num_closed is not None
        maker = CalendarMaker(data, was.spans or (), aside, is_gone, begun.begun if is_open else None)
    new = [(file, runs) for file, runs in added.items() if file in listed]
    for placed in maker.place(new, times.latest) if maker and times else ():
        spans = {
            "spans": placed.cuts, "moved": placed.moved or None, "out_of_place": placed.out_of_place or None,
        }  # fmt: skip
        # Files are read in the order of their spans.
        identity, groups, empty = listed.pop(placed.path)
        listed[placed.path] = Listed(identity.model_copy(update=spans), groups, empty)
    return ListedSplit(
        split_identity([of.identity for of in listed.values()], maker.labels if maker else None, was),
        [group for of in listed.values() for group in of.groups],
        {file: of.identity for file, of in listed.items()},
        {file: of.empty for file, of in listed.items()},
        maker.notes if maker else [],
    )


def _is_gone(was: SplitIdentity, begun: Begun, data: Data, tables: dict[str, Collection[str]], label: str) -> bool:
    """True if a file with rows of the span, also rows out of place, is gone, has another size or, in a store, another
    ETag, or is not in the newest version of its Delta table. Rows that come for the span may be rewritten ones.
    `tables`: cache of the files of tables, by folder."""
    spans = was.spans or []
    number = spans.index(label) if label in spans else None
    for file in (*(of.model_dump() for of in was.files), *begun.final_files()):
        out_of_place = [rows for rows in file.get("out_of_place") or () if rows["span"] == label]
        if number is None:
            has_rows = any(rows.get("trained_with") for rows in out_of_place)
        else:
            has_rows = bool(out_of_place) or number in {span for span, _ in file["spans"] or ()}
        if not has_rows:
            continue
        if not _is_there(file, data, tables):
            return True
    return False


def _is_there(file: Mapping[str, Any], data: Data, tables: dict[str, Collection[str]]) -> bool:
    """False if a file, given by its identity as JSON, is gone from its place or has changed (see `_is_gone`)."""
    place = place_of(file["path"], data.root)
    try:
        stamp = None if file.get("replaced") else stores.stamp_of(place)
    except (FileNotFoundError, NotADirectoryError):
        return False
    there = stamp is not None and stamp.size == file["size"]
    if there and stamp and is_remote(place):
        there = file["sample"] == checksum(stamp.version.encode())
    if there and file.get("version") is not None and (table := table_of(place)):
        folder, _ = table
        if folder not in tables:
            found = table_files(folder)
            tables[folder] = found.files if found else ()
        there = place in tables[folder]
    return there


def with_changes(data: Data, begun: Begun, described: Description, check: SchemaCheck) -> Begun:
    """The data of a run. If a file that spans with which training has not begun share with others has changed or is
    gone, these spans wait again, and what is found in the places of their files counts (see `begun_part`). But while
    one of these files has rows of the span that is being trained on, none of them may change."""
    shared, waiting = {file.path: file for file in begun.shared}, begun.waiting or Waiting(())
    paths = with_derived([one for one in _of_spans(data, begun) if name_of(one, data.root) in shared], data, described)
    spans = {span for file in shared.values() for span, _ in file.spans or ()}
    is_same = (_is_same(path, shared[name_of(path, data.root)], data, check) for path in paths)
    if spans & {*range(begun.done, begun.begun)} or all(is_same):
        return begun
    final = begun_part(begun.splits["train"], begun.begun)
    more, given = waiting_in(begun.splits["train"], final), (*waiting.given, *((name,) for name in shared))
    waits = replace(waiting, given=given, rows={**more.rows, **waiting.rows}, files=waiting.files | more.files)
    return replace(begun, splits={**begun.splits, "train": final}, waiting=waits)


def _is_same(path: DataFile, was: FileIdentity, data: Data, check: SchemaCheck) -> bool:
    """True if a file is as it was."""
    with suppress(ValueError, OSError, pa.ArrowException), open_file(path) as file:
        found = look_at(path, was.path, file, check.trained, check.targets)
        return _is_there(was.model_dump(), data, {}) and not file_difference(was, found, {}, {})
    return False


def _copies(
    listed: Mapping[DataFile, Listed], new: Collection[DataFile], begun: Begun, data: Data
) -> dict[DataFile, DataFile]:
    """Copies among the new files, each with the file whose bytes it has: one before it, or a final one."""
    with_rows = {file: of for file, (of, _, _) in listed.items() if any(rows for _, rows in of.row_groups)}
    content = {file: (of.size, of.footer, of.sample, file.partitions) for file, of in with_rows.items()}
    same: dict[object, list[DataFile]] = {content[file]: [] for file in new if file in content}
    for was in begun.final_files() if same else ():
        found = same.get((was["size"], was["footer"], was["sample"], partitions_of(was["path"])))
        if found is not None and not was.get("replaced"):
            found.append(named(place_of(was["path"], data.root), data.root))
    copies: dict[DataFile, DataFile] = {}
    for file, key in content.items():
        for other in same.get(key, ()) if file in new else ():
            gone = is_remote(file.place) or not Path(other.place).exists()
            if gone or filecmp.cmp(file.place, other.place, shallow=False):
                copies[file] = other
                break
        else:
            same.get(key, []).append(file)
    return copies


def chosen_files(listed: ListedSplit, begun: Begun, found: SplitFiles, data: Data) -> tuple[ListedSplit, list[str]]:
    """The part of the training split that this command may train on, and a line for each span or file that is newly set
    aside (see `chosen`)."""
    if begun.splits and begun.waiting is None:
        as_listed = {name: getattr(begun.splits["train"], name) for name in ("num_closed", "num_begun")}
        return replace(listed, identity=listed.identity.model_copy(update=as_listed)), []
    arrivals, identity, lines = found.arrivals, listed.identity, list[str]()
    num_final = len(begun.splits["train"].spans or ()) if begun.splits else 0
    # A run has a span, even if it waits.
    arrivals.holds_all |= not num_final and arrivals.held.issuperset(identity.spans or ())
    lacking = () if arrivals.holds_all else arrivals.held
    if begun.waiting or lacking:
        known = found.known if begun.waiting else {file.path for file in identity.files}
        identity, lines = chosen(identity, begun.waiting or Waiting(()), known, num_final, lacking)
    closed, said = arrivals.num_closed(identity)
    identity = identity.model_copy(update={"unread": arrivals.unread or None, "num_closed": closed})
    if identity.calendar and sum(map(len, identity.calendar.arrivals(data))) < begun.begun:
        identity = identity.model_copy(update={"num_begun": begun.begun})
    of_path = {was.path: (file, was.types) for file, was in listed.files.items()}
    files = {of_path[one.path][0]: one.model_copy(update={"types": of_path[one.path][1]}) for one in identity.files}
    turn = {file: number for number, file in enumerate(files)}
    groups = sorted((group for group in listed.groups if group.file in turn), key=lambda group: turn[group.file])
    notes = [*listed.notes, *arrivals.copies, *said]
    return replace(listed, identity=identity, groups=groups, files=files, notes=notes), [*arrivals.lines, *lines]


def check_signs(columns: Iterable[InputColumn], data: Data, files: Mapping[DataFile, FileIdentity]) -> None:
    """Raises ValueError, with both files, if a column whose values are hashed has negative integers, and others from
    2^63 on, which may have the keys of these."""
    hashed = [name for feature in data.features if isinstance(feature, Cross | Lookup) for name in feature.reads]
    for name in [*(column.name for column in columns if column.has_keys), *hashed]:
        kinds = " ".join({identity.types.get(name, "").partition(", indices")[0] for identity in files.values()})
        if "uint64" in kinds and re.search(r"\bint[0-9]", kinds):
            there = [file for file in files if stores.is_file(file.place)]
            if said := type_with_sign(pa.uint64(), name, there)[1]:
                raise ValueError(said)
