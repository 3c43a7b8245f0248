"""Decision which Parquet files of a folder are complete while a producer writes others. A file is complete, by rule

rename         once it has its name, which begins with neither "_" nor ".", and, on a disk, is the same in two looks;
success        once its folder, or one above it within the given one, has a file `_SUCCESS`;
manifest:NAME  once a line of the text file NAME, ended by a newline, is its path, relative to the folder.

It must also begin and end like a Parquet file. An incomplete file holds back those after it: no day is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field

from pipeline.files import stores
from pipeline.files.find import MARK, DataFile, form_of, is_hidden, natural_order
from pipeline.messages.uris import is_remote, join, name_below


@dataclass(slots=True)
class Arrivals:
    """Files of a folder, on a disk or in an object store, which may not exist yet."""

    folder: str
    rule: str
    _stamps: dict[str, stores.Stamp] = field(default_factory=dict)
    """Stamp of each file in the last look."""

    def __post_init__(self) -> None:
        if self.rule not in ("rename", "success") and not self.rule.partition("manifest:")[2]:
            raise ValueError(f"{self.rule!r}: expected rename, success, or manifest:NAME with a file's name")

    def look(self, known: Collection[str] = ()) -> tuple[list[str], list[tuple[str, str]]]:
        """Return, by name, the places of complete files that are not `known`, and (name, reason) of the others."""
        name_of = name_below if is_remote(self.folder) else os.path.relpath
        places = {name_of(place, self.folder) or "": place for place in stores.files_below(self.folder)}
        done = {name.rpartition("/")[0] for name in places if name.rpartition("/")[2] == "_SUCCESS"}
        # Spark and Hive write files without a suffix.
        files = {name: DataFile(name) for name in places if not is_hidden(name)}
        data = [name for name, file in files.items() if form_of(file) == "Parquet" or not file.suffix]
        complete, waits_for = list[str](), list[tuple[str, str]]()
        for name in sorted(self._listed() if ":" in self.rule else data, key=natural_order):
            place = places.get(name, "")
            if place not in known and (why := self._why_incomplete(place, name, done)):
                waits_for.append((name, why))
            elif place not in known and not waits_for:
                complete.append(place)
        return complete, waits_for

    def _listed(self) -> set[str]:
        manifest = (join if is_remote(self.folder) else os.path.join)(self.folder, self.rule.partition(":")[2])
        lines = (stores.read_small(manifest) or b"").decode().split("\n")[:-1]
        return {line.strip().removeprefix("./") for line in lines} - {""}

    def _why_incomplete(self, place: str, name: str, done: Collection[str]) -> str:
        """Reason why a file is incomplete; "" if it is complete."""
        folders = name.split("/")[:-1]
        if self.rule == "success" and not any("/".join(folders[:n]) in done for n in range(len(folders) + 1)):
            return "there is no _SUCCESS in its folder"
        try:
            stamp = stores.stamp_of(place)
        except FileNotFoundError:
            return "does not exist"
        before, self._stamps[place] = self._stamps.get(place), stamp
        if self.rule == "rename" and not is_remote(place) and before != stamp:
            return "is new, or has changed since the last look"
        with stores.open_to_read(place) as file:
            ends = {bytes(file.read_at(4, at)) for at in (0, stamp.size - 4) if stamp.size >= 12}
        return "" if ends == {MARK} else "has no end of a Parquet file"
