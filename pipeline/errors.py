"""Errors that end a run, or a stretch of it."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from difflib import get_close_matches

ADVICE = {
    errno.ENOSPC: "the disk is full; make room there, or name another folder",
    errno.EDQUOT: "the quota of this user is used up; make room there, or name another folder",
    errno.ENOENT: "there is no such file or folder; correct the path",
    errno.ENOTDIR: "a part of the path is a file, not a folder; name another folder",
    errno.EACCES: "this user may not read or write there; name another folder, or change its permissions",
    errno.EPERM: "this user may not read or write there; name another folder, or change its permissions",
    errno.EROFS: "the file system can only be read; name another folder",
    errno.EMFILE: "this process may open no more files; raise its limit (ulimit -n)",
    errno.ENFILE: "this machine may open no more files; close other programs",
    errno.EFBIG: "the file would be larger than this process or the file system allows; raise the limit (ulimit -f)",
}
"""What an error of the operating system means, and what to do."""


def error_text(error: Exception) -> str:
    """Text of an error for the user."""
    if isinstance(error, MemoryError):
        return f"out of memory ({error or type(error).__name__}): lower storage's caps, or free memory for this process"
    if isinstance(error, OSError) and error.errno in ADVICE:
        where = " and ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
        return f"{where + ': ' if where else ''}{error.strerror}: {ADVICE[error.errno]}"
    return str(error)


def did_you_mean(name: str, known: Iterable[str]) -> tuple[str | None, str]:
    """Return the known name that a misspelt one is closest to, or None, and the end of a message about it: the close
    name, or else all of them."""
    names = [other for other in known if not other.startswith("_")]
    folded = {other.casefold(): other for other in reversed(names)}
    close = get_close_matches(name.casefold(), folded, n=1)
    if close:
        return folded[close[0]], f"; did you mean {folded[close[0]]!r}?"
    return None, f"; it has {', '.join(names)}"


def shortened(value: object, limit: int = 60) -> str:
    """Text of a value in a message, cut if it is long."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]} ..."


class PipelineError(RuntimeError):
    """A failure that ends the run. A failed stage's message names the stage and the block, and keeps the cause."""


class OutOfTurn(PipelineError):
    """A stage was called for a block that is not its next one, or in a process where its run is not open.

    Stages have state, so such a call does nothing but raise. It happens when Dask reruns a task whose result it lost.
    """


class LostTouch(PipelineError):
    """A stage failed because another worker did not take part in a collective, or is gone."""
