"""Copies of the files that features read, kept by runs and servables so that a feature's output never changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipeline.features.side_files import side_file
from pipeline.files.find import place_of
from pipeline.files.stores import open_to_read
from pipeline.records import Block
from pipeline.spans.passes import SPAN
from pipeline.spans.waiting import spans_done
from pipeline.storage.files import Files, checksum
from pipeline.workflow import Data

FOLDER = "features"
"""Folder in a run directory for the copies, each named by its checksum."""
BY_SPAN = "side_files_by_span"
"""Entry of a commit's state: see `SideFiles.entry`."""


def side_digests(data: Data) -> dict[str, str]:
    """Checksum of each file, by the name that features use. Raises ValueError if one cannot be read."""
    names = dict.fromkeys(f.side_file for f in data.features if f.side_file is not None)
    return {name: checksum(_content(data, name)) for name in names}


@dataclass(frozen=True, slots=True)
class SideFiles:
    """The files that features read, by checksum. A span uses those that were newest when it began to be trained."""

    folder: Path | None = None
    """The run's folder of copies; None: there are none."""
    newest: Mapping[str, str] = field(default_factory=dict)
    """Checksum of each file; empty: not yet known, so that files are read where the features name them."""
    before: tuple[tuple[int, dict[str, str]], ...] = ()
    """Checksums of the spans that have begun, each with the number of the first span that used these."""
    begun: int = 0
    """Number of these spans."""
    done: int = 0
    """Number of spans that training is done with: no reader opens their files."""

    def entry(self, newest: Mapping[str, str]) -> dict[str, list[tuple[int, dict[str, str]]]]:
        """Entry of a commit's state: the checksums of all spans, as `before`, if later spans use the newest; none
        unless they differ."""
        same = bool(self.before) and self.before[-1][1] == newest
        by_span = [*self.before] if same else [*self.before, (self.begun, dict(newest))]
        return {BY_SPAN: by_span} if len(by_span) > 1 else {}

    def used_by(self, block: Block, newest: Mapping[str, str]) -> Mapping[str, str]:
        """Checksums of the files that a block uses: of those with which its span began, or the newest."""
        has_begun = block.split in ("train", SPAN) and block.span is not None and block.span < self.begun
        former = [digests for first, digests in self.before if has_begun and first <= (block.span or 0)]
        return former[-1] if former else newest


def sides_in(state: Mapping[str, Any], begun: int, done: int, folder: Path) -> SideFiles:
    """Side files of a run that goes on from a commit with this state. `begun`, `done`, `folder`: see `SideFiles`."""
    by_span = state.get(BY_SPAN) or [(0, state["side_files"])]
    return SideFiles(folder, {}, tuple((first, digests) for first, digests in by_span if first < begun), begun, done)


def keep_side_files(data: Data, digests: Mapping[str, str], folder: Path, files: Files) -> None:
    """Copy the files to a folder, unless it already contains them. Raises ValueError if one has changed."""
    for name, digest in digests.items():
        if (path := folder / copy_name(digest)).exists():
            continue
        if checksum(content := _content(data, name)) != digest:
            raise ValueError(f"{place_of(name, data.root)} was changed while the run began; start it again")
        files.make_folder(folder)
        # Another worker of this machine may be writing the same copy.
        with suppress(FileNotFoundError):
            files.replace(path, [content])


def keep_former(sides: SideFiles, folder: Path, files: Files) -> None:
    """Copy the files with which spans began to a folder, if `sides` names that of another run."""
    names = {copy_name(digest) for _, digests in sides.before for digest in digests.values()}
    for name in names if sides.folder and sides.folder != folder else ():
        files.replace(folder / name, [(sides.folder / name).read_bytes()])  # type: ignore[operator]


def check_changes(data: Data, sides: SideFiles, now: Mapping[str, str]) -> Iterator[str]:
    """Compare files that have changed since the last span began with the run's copies of that time. Yields a remark for
    the user on each. Raises ValueError if a type has changed, or a value of a known key whose feature refuses that."""
    if sides.folder is None or not sides.before:
        return
    before = sides.before[-1][1]
    for n, feature in enumerate(data.features):
        name = feature.side_file
        if name is None or before.get(name, now[name]) == now[name]:
            continue
        copy, place = sides.folder / copy_name(before[name]), place_of(name, data.root)
        kind = import_module(f"pipeline.features.{feature.kind}")
        changed = kind.changed_keys(feature, side_file(str(copy)), side_file(place))
        said = (
            f"data.features[{n}] ({feature.kind}): {place} has changed, {len(changed):,} known keys have other values"
        )
        if len(changed) and feature.changes == "refuse":
            raise ValueError(
                f"{said}, the first {changed[0].as_py()!r}, and its changes is 'refuse'; restore these values, or "
                "set it to 'take'"
            )
        yield f"{said}; spans that have not begun use it from here on"


def remove_copies(folder: Path, states: Iterable[Mapping[str, Any]], files: Files) -> None:
    """Delete the copies that no commit with one of these states needs: the newest, and those of later spans."""
    needed = []
    for state in states:
        by_span = state.get(BY_SPAN, ())
        done = spans_done(state)[0] if by_span else 0
        needed += [state["side_files"], *(digests for (_, digests), (end, _) in pairwise(by_span) if end > done)]
    kept = {copy_name(digest) for digests in needed for digest in digests.values()}
    for path in [path for path in folder.glob(copy_name("*")) if path.name not in kept]:
        files.remove(path)


def copy_name(digest: str) -> str:
    return f"{digest}.parquet"


def with_copies(data: Data, digests: Mapping[str, str], folder: Path) -> Data:
    """The data, with features that read the copies in a folder. Raises ValueError if a copy is damaged or missing."""
    if not digests:
        return data
    for name, digest in digests.items():
        path = folder / copy_name(digest)
        try:
            found = checksum(path.read_bytes())
        except FileNotFoundError:
            found = "none"
        if found != digest:
            raise ValueError(f"{path}, the copy of {name} that data.features names, is damaged or missing")
    places = {name: str((folder / copy_name(digest)).absolute()) for name, digest in digests.items()}
    features = tuple(
        f.model_copy(update={f.side_field: places[f.side_file]}) if f.side_file in places else f for f in data.features
    )
    return data.model_copy(update={"features": features})


def _content(data: Data, name: str) -> bytes:
    place = place_of(name, data.root)
    try:
        with open_to_read(place) as opened:
            return bytes(opened.read())
    except OSError as error:
        raise ValueError(f"{place}, which data.features names, cannot be read ({error})") from error
