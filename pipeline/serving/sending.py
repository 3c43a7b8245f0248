"""Publication in an object store. Objects appear whole, one at a time: files first, the one that names them last, so
that a reader who begins with it sees what was there before, or all that is new."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from pipeline.files.stores import files_below, read_small, send
from pipeline.machine.cache import cache_folder
from pipeline.messages.uris import join, name_below, parse
from pipeline.serving.scoring_record import ScoringRecord
from pipeline.serving.servable import CURRENT_FILE, SERVABLE_MANIFEST
from pipeline.storage.files import checksum

SUCCESS = "_SUCCESS"
"""Object that a folder of scores has when it is complete, with the names of its files; readers of datasets skip it."""


def publish_in_store(out: Path, folder: str) -> None:
    """Copy a servable to a folder of servables in a store, and name it in the object `current` there. The same call
    after a kill does the rest. Raises ValueError if another servable of this name is there, which may be in use."""
    place = join(folder, out.name)
    manifest = out / SERVABLE_MANIFEST
    if (there := read_small(join(place, SERVABLE_MANIFEST))) is None:
        files = sorted(file for file in out.rglob("*") if file.is_file() and file != manifest)
        for file in (*files, manifest):
            send(file, join(place, file.relative_to(out).as_posix()))
    elif there != manifest.read_bytes():
        raise ValueError(f"{place} holds another servable, which stays as it is; name another --out than {out}")
    send(f"{out.name}\n".encode(), join(folder, CURRENT_FILE))


class ScoresInStore:
    """Folder of scores in a store. Files are written on this machine, and sent when all are there."""

    def __init__(self, place: str, fresh: bool) -> None:
        """Raises ValueError if the address cannot be used, or with `fresh`: objects are not moved."""
        parse(place)
        if fresh:
            raise ValueError(f"--fresh moves folders of this machine aside, not {place}; name another --out")
        self._place = place
        self._content = b""
        self.folder = cache_folder() / f"scores-{checksum(place.encode())}"
        """Folder of the files until they are sent."""

    def claim(self, record: ScoringRecord, names: Sequence[str]) -> None:
        """Raises ValueError if the folder in the store holds another scoring, or other files than `names`."""
        self._content = json.dumps({"files": sorted(names), "scoring": record.model_dump()}, indent=1).encode()
        there = read_small(join(self._place, SUCCESS))
        found = {name_below(file, self._place) for file in files_below(self._place)} - {SUCCESS}
        if there not in (None, self._content) or not found <= set(names):
            raise ValueError(f"{self._place} holds other files than those of this scoring; name another --out")

    def send(self) -> None:
        """Send the files, then the object that says that they are complete, and delete the files here."""
        if read_small(join(self._place, SUCCESS)) is None:
            for name in json.loads(self._content)["files"]:
                send(self.folder / name, join(self._place, name))
            send(self._content, join(self._place, SUCCESS))
        shutil.rmtree(self.folder, ignore_errors=True)
