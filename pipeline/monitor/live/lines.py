"""Lines of live.jsonl. Each is a JSON object whose `event` names its kind.

`at` is the time of a line, in seconds since 1970. Counts and seconds in a `Tick` are totals, so lines may be omitted:
the difference between two ticks is what happened in between. Totals of `seconds`, `stages` and `waits` cover a session,
which starts with a `Begin`; totals of examples and moves cover the whole run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Literal

from pipeline.settings import Amount, Count, Strict, read_json

LIVE = "live.jsonl"

CAUSES = (
    "read", "dedup", "plan", "disk", "host copy", "device copy", "other workers", "hand-over", "commit", "evaluation",
    "compile", "start", "end",
)  # fmt: skip
"""Causes of waits in training. "hand-over": a task was ready but had not started; "start": the workers took up the
blocks of a stretch; "end": the last results were fetched, or the result of the run was written."""

OFTEN = (b'{"event":"tick"', b'{"event":"fields"')
"""Prefixes of the lines that are written every few seconds."""
LINES_AT_ONCE = 1000


class Begin(Strict):
    """A session started, or its workers were restarted from the last commit."""

    event: Literal["begin"] = "begin"
    at: Amount
    name: str
    """Name of the workflow."""
    fields: tuple[str, ...]
    """Names of the categorical fields, in the order of `Fields`."""
    labels: tuple[str, ...]
    examples: Count
    """Examples of the agenda (training and evaluation) before the position at which the session started."""
    total: Count
    """Number of examples in the whole agenda."""
    epochs: Count
    batch_size: Count
    workers: Count
    threads: Count
    device: str
    row_bytes: Count
    device_rows: Count
    host_rows: Count
    """Capacity of each tier in rows, over all workers."""
    disk_cap_bytes: Count
    versions: dict[str, str]


class BlockSpans(Strict):
    """Times of one block."""

    number: Count
    split: str
    spans: tuple[tuple[str, float, float, str, float], ...]
    """(stage, start, stop, stage that it waited for last, time when that stage finished). Times are in seconds since
    the session started; an empty name and 0.0 if it waited for none. With several workers, those of the first
    worker."""


class Tick(Strict):
    """State of a run, written at most once a second."""

    event: Literal["tick"] = "tick"
    at: Amount
    seconds: Amount
    """Wall seconds of this session."""
    examples: Count
    """Number of examples of the agenda that are done."""
    trained: Count
    """Number of training examples, over all sessions."""
    epoch: Count
    """Number of the epoch, from 0."""
    split: str
    block: Count
    block_batches: Count
    look_ahead: Count
    loss: float | None
    """Mean loss of the training blocks since the last tick; None if there were none."""
    lr_rows: Amount
    lr_dense: Amount
    ready: Count
    """Number of blocks that were staged and waiting when the last `train` started."""
    stages: dict[str, float]
    """Wall seconds of each stage."""
    waits: dict[str, float]
    """Seconds that training waited, by cause (`CAUSES`); under "train", the seconds that it did not wait."""
    moves: dict[str, Count]
    """Counts of `Moves`, summed over training and evaluation."""
    device_rows: Count
    host_rows: Count
    """Current number of rows in each tier."""
    disk_bytes: Count
    """Size of the log: the bytes of the last commit plus those written since."""
    free_bytes: Count
    """Free bytes on the disk that holds the run directory."""
    rss_bytes: Count
    """Resident memory of the driver process."""
    observer_seconds: Amount
    """CPU seconds spent on this file so far."""
    blocks: tuple[BlockSpans, ...] = ()
    """A sample of consecutive blocks that finished since the last tick."""


class Fields(Strict):
    """Counts of one block, by field. A key that several fields of a table share counts for the first such field in the
    block."""

    event: Literal["fields"] = "fields"
    at: Amount
    block: Count
    values: tuple[Count, ...]
    keys: tuple[Count, ...]
    """Unique keys."""
    host: tuple[Count, ...]
    disk: tuple[Count, ...]
    new: tuple[Count, ...]
    """Unique keys that were not on the device, by where they were found; `new`: nowhere."""


class Curve(Strict):
    """Sums over the examples of a split, binned by predicted probability. Bins have equal width in the logit, from -8
    to 8; the first and last bins include everything beyond."""

    label: str
    weight: tuple[Amount, ...]
    predicted: tuple[Amount, ...]
    clicked: tuple[Amount, ...]


class Evaluated(Strict):
    """A split was evaluated, or an epoch's progressive metrics are complete."""

    event: Literal["evaluated"] = "evaluated"
    at: Amount
    epoch: Count
    """Number of the epoch, from 1."""
    split: str
    seconds: Amount
    trained: Count
    metrics: dict[str, float | None]
    from_example: Count | None = None
    """Number, from 1, of the first example of a resumed epoch that its metrics count; None: all count."""
    curves: tuple[Curve, ...] = ()


class CommitDone(Strict):
    """A commit was published."""

    event: Literal["commit"] = "commit"
    at: Amount
    number: Count
    name: str | None
    seconds: Amount
    """Wall seconds of the session when the commit started."""
    took: Amount
    live_rows: Count
    log_bytes: Count
    """Bytes of the log after the commit."""
    written_bytes: Count
    """Bytes written to the log over the whole run."""


class Said(Strict):
    """A message to the user."""

    event: Literal["said"] = "said"
    at: Amount
    text: str


class Ended(Strict):
    """The session ended."""

    event: Literal["end"] = "end"
    at: Amount
    how: Literal["finished", "interrupted", "failed"]
    seconds: Amount
    waits: dict[str, float]
    """As in `Tick`, for the whole session; "unattributed" is the rest of its wall seconds."""
    parts: dict[str, float]
    """Seconds of parts of the stages, such as "disk", whether or not training waited for them."""
    text: str
    """Cause that limited the speed of the run, and its remedy; after a failure, its message."""


LiveLine = Begin | Tick | Fields | Evaluated | CommitDone | Said | Ended
LINE_KINDS: dict[str, type[LiveLine]] = {kind.model_fields["event"].default: kind for kind in (
    Begin, Tick, Fields, Evaluated, CommitDone, Said, Ended,
)}  # fmt: skip


def parse_line(line: str) -> LiveLine | None:
    """Parse a line; None if it is not a complete line of this version, for example after a kill during a write."""
    kind = LINE_KINDS.get(line.removeprefix('{"event":"').partition('"')[0])
    try:
        return read_json(kind, line) if kind else None
    except ValueError:
        return None


def read_live(folder: Path) -> Iterator[LiveLine]:
    """Yield the lines of a run directory, oldest first. Raises OSError if it has no live.jsonl."""
    with (folder / LIVE).open("rb") as file:
        yield from _parsed(file)


def follow_live(folder: Path) -> Iterator[list[LiveLine] | None]:
    """Yield the lines of a run directory endlessly, up to `LINES_AT_ONCE` at a time: first the existing lines, then new
    ones. Yields an empty list while nothing is new or there is no file. Yields None when the file was replaced, because
    it was thinned or the run restarted from scratch; the new file is then read from the start."""
    path = folder / LIVE
    while True:
        try:
            with path.open("rb") as file:
                yield from _lines_of(file, path)
            yield None
        except OSError:
            yield []


def _lines_of(file: BinaryIO, path: Path) -> Iterator[list[LiveLine]]:
    """Yield new lines of an open file until another file replaces it."""
    inode, rest = os.fstat(file.fileno()).st_ino, b""
    while True:
        whole: list[bytes] = []
        for text in islice(file, LINES_AT_ONCE):
            if text.endswith(b"\n"):
                whole.append(rest + text)
                rest = b""
            else:
                rest += text
        lines = list(_parsed(whole))
        # An empty list means that nothing is new. Lines of another version parse to nothing, but they are new.
        if lines or not whole:
            yield lines
        there = path.stat() if path.exists() else None
        if there is None or there.st_ino != inode or there.st_size < file.tell():
            return


def _parsed(lines: Iterable[bytes]) -> Iterator[LiveLine]:
    yield from filter(None, (parse_line(text.decode(errors="replace")) for text in lines))


def every_second(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield all lines except every second one of those that are written often."""
    dropped = False
    for text in lines:
        dropped = not dropped if text.startswith(OFTEN) else dropped
        if not dropped or not text.startswith(OFTEN):
            yield text
