"""Contents of a disk after the process is killed or the power fails, after any call of a journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from benchmarks.crash.faults import Call
from pipeline.arguments import REPORT
from pipeline.monitor.live.lines import LIVE

PAGE_BYTES = 4096
State = dict[str, bytes | None]
"""Contents of a directory: the bytes of each file by relative path, None for a folder."""


def lay_out(state: State, folder: Path) -> None:
    """Write the state into an empty folder."""
    for path in sorted(state):
        content = state[path]
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)


def take_in(folder: Path) -> State:
    """Read the state of a folder, except files that only the report reads, and the report."""
    paths = [path for path in folder.rglob("*") if path.name != LIVE and not path.name.startswith(REPORT)]
    return {path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None for path in paths}


@dataclass(eq=False)
class _File:
    content: bytes = b""
    durable: bytes = b""

    def torn(self, rng: np.random.Generator, share: float) -> bytes:
        """Content after a power failure: this share of the pages that were not yet durable survives; the others are
        zeros. The file may be shorter than the data written."""
        if len(self.durable) == len(self.content):
            return self.content
        end = len(self.content)
        found = bytearray(self.durable.ljust(end, b"\0"))
        for begin in range(len(self.durable) // PAGE_BYTES * PAGE_BYTES, end, PAGE_BYTES):
            if rng.random() < share:
                found[begin : begin + PAGE_BYTES] = self.content[begin : begin + PAGE_BYTES]
        return bytes(found[: end if rng.random() < 0.75 else int(rng.integers(len(self.durable), end + 1))])


Names = dict[str, _File | None]


@dataclass(frozen=True, slots=True)
class _Change:
    """Change of names in a folder: a name is removed, added, or both."""

    gone: str | None
    come: str | None = None
    file: _File | None = None

    @property
    def folder(self) -> str:
        return _folder(self.come or self.gone or "")

    def make(self, names: Names) -> None:
        if self.gone:
            names.pop(self.gone, None)
        if self.come:
            names[self.come] = self.file


def _folder(path: str) -> str:
    return str(PurePosixPath(path).parent)


class Volume:
    """A disk that tracks what is durable. It starts with a directory in which everything is durable."""

    def __init__(self, state: Mapping[str, bytes | None] | None = None) -> None:
        files = {path: None if c is None else _File(c, c) for path, c in (state or {}).items()}
        self._durable: Names = {".": None, **files}
        self._now = dict(self._durable)
        self._pending: list[_Change] = []

    def apply(self, call: Call) -> None:
        match call.kind:
            case "create" | "mkdir":
                self._change(_Change(None, call.path, _File() if call.kind == "create" else None))
            case "unlink":
                self._change(_Change(call.path))
            case "rename":
                assert _folder(call.path) == _folder(call.target)
                self._change(_Change(call.path, call.target, self._now[call.path]))
            case "write" | "allocate":
                self._file(call.path).content += call.content
            case "fsync" if self._now[call.path] is None:
                self._sync_folder(call.path)
            case "fsync":
                file = self._file(call.path)
                file.durable = file.content

    def _file(self, path: str) -> _File:
        file = self._now[path]
        assert file is not None
        return file

    def _change(self, change: _Change) -> None:
        change.make(self._now)
        self._pending.append(change)

    def _sync_folder(self, folder: str) -> None:
        for change in self._pending:
            if change.folder == folder:
                change.make(self._durable)
        self._pending = [change for change in self._pending if change.folder != folder]

    def as_is(self, half: Call | None = None) -> State:
        """State that the next process finds if this one is killed. `half`: it is killed in the middle of this write."""
        state = {path: None if file is None else file.content for path, file in self._now.items() if path != "."}
        if half:
            state[half.path] = (state[half.path] or b"") + half.content[: len(half.content) // 2]
        return state

    def power_loss(self, rng: np.random.Generator) -> State:
        """One of the possible states after a power failure, drawn at random."""
        changes, pages = rng.choice((0.0, 0.5, 0.9, 1.0), 2)
        names = dict(self._durable)
        for change in self._pending:
            if rng.random() < changes:
                change.make(names)
        state: State = {}
        for path in sorted(names.keys() - {"."}):
            if _folder(path) == "." or _folder(path) in state:
                file = names[path]
                state[path] = None if file is None else file.torn(rng, pages)
        return state
