"""Errors that end a run, or a stretch of it."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

ADVICE = {
    errno.ENOSPC: "the disk is full; make room there, or name another place",
    errno.EDQUOT: "the quota of this user is used up; make room there, or name another place",
    errno.ENOENT: "there is no such file or folder; correct the path, or name another place",
    errno.ENOTDIR: "a part of the path is a file, not a folder; name another place",
    errno.EACCES: "this user may not read or write there; name another place, or change its permissions",
    errno.EPERM: "this user may not read or write there; name another place, or change its permissions",
    errno.EROFS: "the file system can only be read; name another place",
    errno.EMFILE: "this process may open no more files; raise its limit (ulimit -n)",
    errno.ENFILE: "this machine may open no more files; close other programs",
    errno.EEXIST: "a part of the path is a file, not a folder; name another place",
    errno.ENAMETOOLONG: "the name is too long; name another place",
    errno.EFBIG: "the file would be larger than this process or the file system allows; raise the limit (ulimit -f)",
}
"""Meaning of operating system errors, and what to do, by error number."""

REMOTE = re.compile(r"(s3a?|gs|gcs|abfss?|az|hdfs|https?|ftp):/")
"""Prefix of a place that is not a folder. A `Path` of `s3://bucket` keeps only one slash."""


COPY_IT = "name a folder here, and copy it with `aws s3 sync` or `rclone copy`"
"""Way to write to an object store."""


def error_text(error: Exception, lower: str = "storage's caps") -> str:
    """User-facing text of an error. `lower`: what takes memory and can be set lower."""
    if isinstance(error, MemoryError):
        return f"out of memory ({error or type(error).__name__}): lower {lower}, or free memory for this process"
    return system_text(error) or str(error)


def system_text(error: BaseException) -> str:
    """Text of an operating system error: the path, the reason, the free disk space if the disk is full, and what to do.
    Empty for any other error."""
    if not isinstance(error, OSError) or error.errno not in ADVICE:
        return ""
    where = " and ".join(_printed(name) for name in (error.filename, error.filename2) if name is not None)
    free = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT) and isinstance(error.filename, str | Path):
        with suppress(OSError):
            free = f" ({shutil.disk_usage(Path(error.filename).parent).free >> 20:,} MiB are free)"
    return f"{where + ': ' if where else ''}{error.strerror}{free}: {ADVICE[error.errno]}"


def _printed(name: object) -> str:
    """A path on one line, with unprintable characters escaped."""
    text = str(name)
    return text if text.isprintable() else repr(text)


def did_you_mean(name: str, known: Iterable[str], has: str = "it has") -> tuple[str | None, str]:
    """Return the known name closest to a misspelt one, or None, and the end of a message about it: the closest name, or
    else, after `has`, all known names."""
    names = [other for other in known if not other.startswith("_")]
    folded = {other.casefold(): other for other in reversed(names)}
    close = get_close_matches(name.casefold(), folded, n=1)
    if close:
        return folded[close[0]], f"; did you mean {folded[close[0]]!r}?"
    return None, f"; {has} {', '.join(names)}"


def refuse_remote(name: str, *places: str | Path | None, way: str = "name one there") -> None:
    """Raises ValueError, with the name of the argument or setting and the way out, if a place is an address: one in an
    object store, such as s3://bucket/log, or a path written as file:///path."""
    for place in places:
        if path := re.match("file:/+", text := str(place)):
            raise ValueError(f"{name} {text}: write the path without file://, as /{text[path.end() :]}")
        if found := REMOTE.match(str(place)):
            raise ValueError(
                f"{name} is an address of {found[1]}, but it must be on a disk of this machine; {way}, or mount the "
                "bucket as a folder"
            )


def shortened(value: object, limit: int = 60) -> str:
    """Text of a value for a message, truncated to `limit` characters."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]} ..."


class PipelineError(RuntimeError):
    """A failure that ends the run. The error of a failed stage names the stage and the block, and keeps the cause."""

    resumes = True
    """False if the same command would not find what it needs."""


class OutOfTurn(PipelineError):
    """A stage was called for a block that is not its next one, or in a process where its run is not open.

    Stages have state, so such a call only raises. It happens when Dask reruns a task whose result was lost.
    """


class LostTouch(PipelineError):
    """A stage failed because another worker did not take part in a collective or is gone."""


class FileChanged(PipelineError, ValueError):
    """A file is not as it was when the files of the run were listed."""

    def __init__(self, text: str, spans: Collection[int | None] = ()) -> None:
        """`spans`: numbers of the spans of its rows, if they have spans; None is not known, or no span."""
        super().__init__(text)
        self.spans = spans
