"""The newest state that live.jsonl tells, read from where the last look ended."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from pathlib import Path

from pipeline.monitor.live.lines import LIVE, Begin, CommitDone, Evaluated, LiveLine, Tick, parse_line


class Newest:
    """The newest lines of a run. A look parses few lines, however many were written since the last one."""

    def __init__(self, run_dir: Path) -> None:
        self.begin: Begin | None = None
        self.ticks: tuple[Tick, ...] = ()
        """The last two of the session, the older one first; fewer at its beginning."""
        self.commit: CommitDone | None = None
        self.evaluated: dict[str, Evaluated] = {}
        """Last evaluation of each split."""
        self._path, self._inode, self._offset = run_dir / LIVE, -1, 0
        self._ticks: deque[bytes] = deque(maxlen=2)

    def look(self) -> None:
        """Read the lines that are new. Does nothing if there is no file that can be read."""
        with suppress(OSError), self._path.open("rb") as file:
            self._begin_at(os.fstat(file.fileno()))
            file.seek(self._offset)
            for text in file:
                # The rest of a line that is being written comes with the next look.
                if not text.endswith(b"\n"):
                    break
                self._offset += len(text)
                if text.startswith(b'{"event":"tick"'):
                    self._ticks.append(text)
                elif text.startswith((b'{"event":"begin"', b'{"event":"commit"', b'{"event":"evaluated"')):
                    self._take(parse_line(text.decode(errors="replace")))
        lines = (parse_line(text.decode(errors="replace")) for text in self._ticks)
        self.ticks = tuple(line for line in lines if isinstance(line, Tick))

    def _begin_at(self, status: os.stat_result) -> None:
        """Begin anew if the file was made shorter, or is another one."""
        if status.st_ino != self._inode or status.st_size < self._offset:
            self._inode, self._offset = status.st_ino, 0
            self.begin, self.commit, self.evaluated = None, None, {}
            self._ticks.clear()

    def _take(self, line: LiveLine | None) -> None:
        match line:
            case Begin():
                self.begin = line
                self._ticks.clear()
            case CommitDone():
                self.commit = line
            case Evaluated():
                self.evaluated[line.split] = line
