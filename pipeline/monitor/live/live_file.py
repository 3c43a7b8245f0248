"""Writer of live.jsonl. A write that fails ends the file and not the run, and nothing waits until it is on disk."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.monitor.live.lines import LIVE, LiveLine, every_second

MAX_FILE_BYTES = 64 << 20


class LiveFile:
    """Appends lines to the file of a run directory; keeps what an earlier session wrote."""

    def __init__(self, folder: Path, max_bytes: int = MAX_FILE_BYTES) -> None:
        self._path, self._max_bytes, self._works = folder / LIVE, max_bytes, True

    def write(self, line: LiveLine, begins: bool = False) -> None:
        """Append a line. `begins`: first of a session, before which a kill may have left a part of a line."""
        if not self._works:
            return
        text = f"{chr(10) * begins}{line.model_dump_json()}\n".encode()
        try:
            descriptor = os.open(
                self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644
            )
            try:
                os.write(descriptor, text)
                num_bytes = os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
            if num_bytes > self._max_bytes:
                self._thin()
        except OSError:
            self._works = False

    def _thin(self) -> None:
        """Leave out every second line of those whose counts are totals, or samples: the older a line, the more of its
        neighbours have gone."""
        partial = self._path.with_name(f"{LIVE}.partial")
        with self._path.open("rb") as old, partial.open("wb") as new:
            new.writelines(every_second(old))
        partial.replace(self._path)
