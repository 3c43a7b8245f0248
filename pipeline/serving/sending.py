"""Publication in an object store. Objects appear atomically, one by one; the object that names the others is sent last.
A reader that starts with it therefore sees either the old state or the complete new one."""

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
"""Object that marks a complete folder of scores and lists its files; dataset readers skip it."""


def publish_in_store(out: Path, folder: str) -> None:
    """Copy a servable to a folder of servables in a store, and name it in the folder's object `current`. After a kill,
    the same call resumes. Raises ValueError if the folder contains another servable of this name, which may be in
    use."""
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
    """Folder of scores in a store. Files are written locally, and sent when all are complete."""

    def __init__(self, place: str, fresh: bool) -> None:
        """Raises ValueError if the address is invalid, or if `fresh` is set, since objects are not moved."""
        parse(place)
        if fresh:
            raise ValueError(f"--fresh moves folders of this machine aside, not {place}; name another --out")
        self._place = place
        self._content = b""
        self.folder = cache_folder() / f"scores-{checksum(place.encode())}"
        """Local folder of the files until they are sent."""

    def claim(self, record: ScoringRecord, names: Sequence[str]) -> None:
        """Raises ValueError if the folder in the store contains another scoring, or files other than `names`."""
        self._content = json.dumps({"files": sorted(names), "scoring": record.model_dump()}, indent=1).encode()
        there = read_small(join(self._place, SUCCESS))
        found = {name_below(file, self._place) for file in files_below(self._place)} - {SUCCESS}
        if there not in (None, self._content) or not found <= set(names):
            raise ValueError(f"{self._place} holds other files than those of this scoring; name another --out")

    def send(self) -> None:
        """Send the files, then the object that marks them complete, and delete the local files."""
        if read_small(join(self._place, SUCCESS)) is None:
            for name in json.loads(self._content)["files"]:
                send(self.folder / name, join(self._place, name))
            send(self._content, join(self._place, SUCCESS))
        shutil.rmtree(self.folder, ignore_errors=True)
