"""Simulated kills at every system call that makes something durable."""

import io
import os
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from pipeline.storage import durable
from pipeline.storage.files import Files


class Killed(BaseException):
    """Simulated kill. A BaseException, so that code that catches Exception does not continue after it."""


class Dying:
    """System calls of a process that is killed at call `dies_at`: from then on, no call has any effect."""

    def __init__(self, dies_at):
        self.num_calls, self._dies_at = 0, dies_at

    def live(self):
        self.num_calls += 1
        if self.num_calls >= self._dies_at:
            raise Killed

    def open_file(self, path, mode):
        self.live()
        return DyingFile(path, mode, self)

    def __getattr__(self, name):
        def call(*args):
            self.live()
            return getattr(os, name)(*args)

        return call


class DyingFile(io.FileIO):
    def __init__(self, path, mode, system):
        super().__init__(path, mode.replace("b", ""))
        self._system = system

    def write(self, content):
        self._system.live()
        return super().write(content)


def dying(dies_at: int, work: Callable[[], Any]) -> bool:
    """Call `work` in a process that is killed at one of its durable system calls. Returns False if it ends before."""
    system = Dying(dies_at)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Files, "system", system)
        patch.setattr(durable, "open", system.open_file, raising=False)
        try:
            work()
        except Killed:
            return True
    return False


def killed_anywhere(tmp_path, work, step=1):
    """Call work(folder) repeatedly, each time in a new folder and killed `step` system calls later than before, then
    again in the same folder without a kill. Yields the folders; ends with the first call that finishes unkilled."""
    for dies_at in count(1, step):
        folder = tmp_path / f"killed-{dies_at}"
        folder.mkdir()
        if not dying(dies_at, lambda folder=folder: work(folder)):
            return
        work(folder)
        yield folder
