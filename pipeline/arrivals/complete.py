"""Detection of complete Parquet files in a folder, on disk or in an object store."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.files import stores
from pipeline.files.find import MARK, PACKED, DataFile, form_of, is_hidden, natural_order
from pipeline.messages.uris import is_remote, join, name_below, uri_of

SUCCESS = "_SUCCESS"
TABLE_LOG = "_delta_log"
RENAME, BY_SUCCESS = "rename", "success"
ENDS = (MARK, b"PARE")
"""Magic bytes of a Parquet file, with a plain and an encrypted footer."""
TAIL_BYTES = 8
"""Size of the footer length and the magic bytes at the end."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule by which a producer marks files as complete (see the package)."""

    kind: str
    """ "rename", "success" or "manifest"."""
    manifest: str = ""
    """Name of the manifest in the watched folder."""

    @classmethod
    def of(cls, text: str) -> Rule:
        """Parse "rename", "success" or "manifest:NAME". Raises ValueError if `text` is none of them."""
        kind, colon, name = text.partition(":")
        if kind in (RENAME, BY_SUCCESS) and not colon:
            return cls(kind)
        if kind == "manifest" and name:
            return cls(kind, name)
        raise ValueError(f"--complete {text}: expected rename, success, or manifest:NAME with the manifest's file name")


@dataclass(frozen=True, slots=True)
class Look:
    """State of a folder at one point in time."""

    complete: tuple[str, ...]
    """Places of the complete files before the first incomplete one, ordered by name."""
    waits_for: tuple[tuple[str, str], ...]
    """Name of each incomplete file, and the reason."""


@dataclass(slots=True)
class Arrivals:
    """Repeated scans of a folder. A file found to be whole is not opened again unless it changes."""

    folder: str
    """Path or address of the folder, which may not exist yet."""
    rule: Rule
    _stamps: dict[str, stores.Stamp] = field(default_factory=dict)
    """Stamp of each file in the last scan."""
    _whole: dict[str, stores.Stamp] = field(default_factory=dict)
    """Stamp of each file found to be whole."""

    def __post_init__(self) -> None:
        self.folder = uri_of(self.folder) if is_remote(self.folder) else str(Path(self.folder).expanduser().absolute())

    def look(self, known: Collection[str] = ()) -> Look:
        """Scan for complete files that are not `known`. Raises ValueError if the folder contains a Delta table, or its
        manifest names a file outside the folder."""
        names = {place: self._name(place) for place in stores.files_below(self.folder)}
        if log := next((name for name in names.values() if TABLE_LOG in name.split("/")[:-1]), None):
            raise ValueError(
                f"{self.folder} has a Delta table ({log}), whose log says which files belong to it; name the table "
                "with --extend, or watch a folder of plain Parquet files"
            )
        done = {name.rpartition("/")[0] for name in names.values() if name.rpartition("/")[2] == SUCCESS}
        place_of = {name: place for place, name in names.items() if _may_be_data(name)}
        if self.rule.kind == "manifest":
            place_of = {name: place_of.get(name, "") for name in self._listed()}
        complete: list[str] = []
        waits_for: list[tuple[str, str]] = []
        for name in sorted(place_of, key=natural_order):
            if (place := place_of[name]) in known:
                continue
            why = self._why_incomplete(place, name, done) if place else "is named by the manifest, but does not exist"
            if why:
                waits_for.append((name, why))
            elif not waits_for:
                complete.append(place)
        return Look(tuple(complete), tuple(waits_for))

    def _name(self, place: str) -> str:
        """Path of a file relative to the folder."""
        return (name_below(place, self.folder) if is_remote(place) else os.path.relpath(place, self.folder)) or ""

    def _listed(self) -> list[str]:
        """Names in the manifest, relative to the folder; empty if there is no manifest yet. Raises ValueError if a name
        lies outside the folder."""
        place = (
            join(self.folder, self.rule.manifest) if is_remote(self.folder) else f"{self.folder}/{self.rule.manifest}"
        )
        content = (stores.read_small(place) or b"").decode()
        whole_lines = content[: content.rfind("\n") + 1].splitlines()
        names = [line.strip().removeprefix("./") for line in whole_lines if line.strip()]
        if outside := next((name for name in names if name.startswith("/") or ".." in name.split("/")), None):
            raise ValueError(f"{place} names {outside!r}; names are relative to {self.folder}, and lie in it")
        return list(dict.fromkeys(names))

    def _why_incomplete(self, place: str, name: str, done: Collection[str]) -> str:
        """Reason why a file is incomplete; "" if it is complete."""
        if self.rule.kind == BY_SUCCESS:
            parts = name.split("/")[:-1]
            if not any("/".join(parts[:n]) in done for n in range(len(parts) + 1)):
                return f"there is no {SUCCESS} in its folder"
        try:
            stamp = stores.stamp_of(place)
        except FileNotFoundError:
            return "has gone again"
        before, self._stamps[place] = self._stamps.get(place), stamp
        if self._whole.get(place) == stamp:
            return ""
        # Objects in a store appear atomically.
        if self.rule.kind == RENAME and not is_remote(place) and before != stamp:
            return "is new, or has changed since the last check"
        if not _is_whole(place, stamp.size):
            return "has no end of a Parquet file"
        self._whole[place] = stamp
        return ""


def _may_be_data(name: str) -> bool:
    """True for names of Parquet files, and for names without a suffix, as used by Spark and Hive."""
    file = DataFile(name)
    return not is_hidden(name) and (form_of(file) == "Parquet" or not file.suffix) and file.suffix not in PACKED


def _is_whole(place: str, size: int) -> bool:
    """True if the file starts and ends with Parquet's magic bytes, and the footer length at its end is plausible."""
    if size < len(MARK) + TAIL_BYTES:
        return False
    with stores.open_to_read(place) as file:
        begin = bytes(file.read_at(len(MARK), 0))
        end = bytes(file.read_at(TAIL_BYTES, size - TAIL_BYTES))
    length = int.from_bytes(end[:4], "little")
    return begin in ENDS and end[4:] in ENDS and len(MARK) + length + TAIL_BYTES <= size
