"""The current servable, and its replacement while requests are in flight."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.serving.http.request import parts_of
from pipeline.serving.servable import CURRENT_FILE, SERVABLE_MANIFEST
from pipeline.serving.served_model import ServedModel

OpenFunction = Callable[[Path], ServedModel]
"""Function that opens the servable in a folder. Raises ValueError or OSError if it is damaged or incomplete."""


class Held:
    """A servable and the number of its users. After its replacement, the last user closes it."""

    def __init__(self, served: ServedModel) -> None:
        self.served = served
        self.users = 1
        """The server itself counts as a user until the servable is replaced."""


class Current:
    """The servable in a folder, or the one that the folder's file `current` names.

    `look` must be called from a single thread; the other methods are thread-safe. A request keeps the servable with
    which it started. New requests use the next servable as soon as it passes `probe`, which raises an exception if the
    servable cannot answer.
    """

    def __init__(self, folder: Path, open_servable: OpenFunction, probe: Callable[[ServedModel], None]) -> None:
        """Raises ValueError or OSError if there is no initial servable, or it is damaged."""
        self._folder = folder
        self._open = open_servable
        self._probe = probe
        self._lock = threading.Lock()
        self.swaps = {"done": 0, "refused": 0}
        """Number of servables that replaced another, and of those that were refused."""
        self._fixed = (folder / SERVABLE_MANIFEST).is_file()
        # The file is read after its signature, so the next look detects a replacement in between.
        self._signature = self._look_at_file()
        self._name = "" if self._fixed else self._read_name()
        self._held = Held(self._opened(folder / self._name, None))

    @property
    def served(self) -> ServedModel:
        """The servable for new requests. It may be closed at any time; see `lease`."""
        return self._held.served

    @contextmanager
    def lease(self) -> Iterator[ServedModel]:
        """Context with the servable, which stays open until the context exits."""
        with self._lock:
            held = self._held
            held.users += 1
        try:
            yield held.served
        finally:
            self._release(held)

    def look(self) -> None:
        """Replace the servable if `current` names another. A servable that cannot be opened, or has different features,
        is refused with a message, and tried again only when the file is rewritten."""
        signature = self._look_at_file()
        if self._fixed or signature == self._signature:
            return
        self._signature = signature
        try:
            name = self._read_name()
            if name == self._name:
                return
            served = self._opened(self._folder / name, self.served)
        except Exception as error:  # Whatever is wrong with it, the current servable stays in use.
            self.swaps["refused"] += 1
            print(f"refused: {error}; {self.served.version} is still served", file=sys.stderr, flush=True)
            return
        with self._lock:
            before, self._held = self._held, Held(served)
        self._name = name
        self.swaps["done"] += 1
        print(f"swapped: {name} ({served.version}) is served", file=sys.stderr, flush=True)
        self._release(before)

    def close(self) -> None:
        """Close the servable. No lease may be taken afterwards."""
        self._release(self._held)

    def _release(self, held: Held) -> None:
        with self._lock:
            held.users -= 1
            unused = held.users == 0
        if unused:
            held.served.close()

    def _opened(self, folder: Path, before: ServedModel | None) -> ServedModel:
        served = self._open(folder)
        try:
            parts_of(served.inputs)
            for what in ("name", "features") if before else ():
                if (found := getattr(served, what)) != (used := getattr(before, what)):
                    raise ValueError(
                        f"{folder}: it has the {what} {found}, and the servable in use has {used}; serve it from "
                        "another folder by another server"
                    )
            self._probe(served)
        except BaseException:
            served.close()
            raise
        return served

    def _look_at_file(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._folder / CURRENT_FILE)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _read_name(self) -> str:
        file = self._folder / CURRENT_FILE
        try:
            with open(file, "rb") as opened:
                content = opened.read(1024)
        except OSError as error:
            raise ValueError(
                f"{self._folder} holds no servable: it has no {SERVABLE_MANIFEST}, and no file `{CURRENT_FILE}` that "
                f"can be read ({error.strerror})"
            ) from None
        name = content.decode(errors="replace").removesuffix("\n")
        if not name.isprintable() or "/" in name or name in ("", ".", ".."):
            raise ValueError(f"{file}: expected one line, the name of a folder next to it, got {name!r}")
        return name
