"""Replacements for the `os` module in `Files.system`: one keeps a journal, one fails at a chosen call, one is fast."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.worker import timed_tier

SHORT, SHORT_THEN_FULL = "short write", "short write, then ENOSPC"
Fault = int | str
"""An errno, or the name of a fault of a write."""


@dataclass(frozen=True, slots=True)
class Call:
    """One system call; paths are relative to the run directory."""

    kind: str
    path: str
    site: str
    """Functions of the pipeline that led to the call, innermost first."""
    target: str = ""
    """New name, if the call is a rename."""
    content: bytes = b""
    """Bytes written, or the zeros of an allocation."""

    def __str__(self) -> str:
        return f"{self.kind} {self.path}" + (f" to {self.target}" if self.target else "")


class Unsynced:
    """The `os` module with an fsync that does nothing, for runs whose disk is not disturbed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, descriptor: int) -> None:
        """Do nothing."""


class Journal(Unsynced):
    """Recorder of all calls in order. It makes every call except fsync, which it only records."""

    def __init__(self, root: Path) -> None:
        self.calls: list[Call] = []
        self._root = root
        self._open: dict[int, str] = {}

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        kind = "create" if flags & os.O_CREAT and not path.exists() else "open"
        descriptor = int(self._do(kind, self._name(path), lambda: os.open(path, flags, mode)))
        self._open[descriptor] = self._name(path)
        return descriptor

    def write(self, descriptor: int, content: memoryview) -> int:
        what = bytes(content)
        return int(self._do("write", self._open[descriptor], lambda: os.write(descriptor, what), content=what))

    def fsync(self, descriptor: int) -> None:
        self._do("fsync", self._open[descriptor], lambda: None)

    def close(self, descriptor: int) -> None:
        self._do("close", self._open.pop(descriptor), lambda: os.close(descriptor))

    def rename(self, path: Path, target: Path) -> None:
        self._do("rename", self._name(path), lambda: os.rename(path, target), target=self._name(target))

    def unlink(self, path: Path) -> None:
        self._do("unlink", self._name(path), lambda: os.unlink(path))

    def mkdir(self, path: Path) -> None:
        self._do("mkdir", self._name(path), lambda: os.mkdir(path))

    def posix_fallocate(self, descriptor: int, offset: int, num_bytes: int) -> None:
        really = lambda: os.posix_fallocate(descriptor, offset, num_bytes)  # noqa: E731
        self._do("allocate", self._open[descriptor], really, content=bytes(num_bytes))

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def _do(self, kind: str, path: str, really: Callable[[], Any], **details: Any) -> Any:
        # Recorded before the call is made, so that failed calls also have numbers.
        self.calls.append(Call(kind, path, _site(), **details))
        return really()


def _site() -> str:
    names, frame = [], sys._getframe(3)
    while frame:
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        # A timed tier only passes calls on.
        if module.startswith("pipeline.") and module != timed_tier.__name__:
            names.append(f"{module.rsplit('.', 1)[1]}.{name}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(names[:5])


class Faulty(Journal):
    """Journal that fails at one call. A failed close has still closed the file; a failed fsync loses the data that it
    should have made durable."""

    def __init__(self, root: Path, fail_at: int, fault: Fault) -> None:
        """`fail_at`: number of the call, counted from 0."""
        super().__init__(root)
        self._fail_at, self._fault = fail_at, fault
        self.later_syncs: list[str] = []
        """Paths that were synced after the fault."""

    def write(self, descriptor: int, content: memoryview) -> int:
        if len(self.calls) == self._fail_at and isinstance(self._fault, str):
            content = content[: max(1, len(content) // 2)]
        return super().write(descriptor, content)

    def _do(self, kind: str, path: str, really: Callable[[], Any], **details: Any) -> Any:
        number = len(self.calls)
        if kind == "fsync" and number > self._fail_at:
            self.later_syncs.append(path)
        code = self._code(kind, number)
        if code == 0:
            return super()._do(kind, path, really, **details)
        super()._do(kind, path, really if kind == "close" else lambda: None, **details)
        named = kind in ("create", "open", "rename", "unlink", "mkdir")
        if kind == "fsync" and (self._root / path).is_file():
            _lose(self._root / path)
        raise OSError(code, os.strerror(code), *([str(self._root / path)] if named else []))

    def _code(self, kind: str, number: int) -> int:
        """Errno with which the call fails; 0 if it does not fail."""
        if isinstance(self._fault, int):
            return self._fault if number == self._fail_at else 0
        full = self._fault == SHORT_THEN_FULL and number == self._fail_at + 1 and kind == "write"
        return errno.ENOSPC if full else 0


def _lose(path: Path) -> None:
    size = path.stat().st_size
    os.truncate(path, 0)
    os.truncate(path, size)
