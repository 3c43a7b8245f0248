"""Lines of live.jsonl. Each is a JSON object whose `event` names its kind.

`at` is the time of a line, in seconds since 1970. Counts and seconds in a `Tick` are totals, so lines may be omitted:
the difference between two ticks is what happened in between. Totals of `seconds`, `stages` and `waits` cover a session,
which starts with a `Begin`; totals of examples and moves cover the whole run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from pipeline.settings import STRICT, Amount, Count, Strict, read_json

LIVE = "live.jsonl"

CAUSES = (
    "read", "dedup", "plan", "disk", "host copy", "device copy", "other workers", "hand-over", "commit", "evaluation",
    "compile", "start", "end",
)  # fmt: skip
"""Causes of waits in training. "hand-over": a task was ready but had not started; "start": the workers took up the
blocks of a stretch; "end": the last results were fetched, or the result of the run was written."""

OFTEN = b'{"event":"tick"'
"""Prefix of the lines that are written once a second."""


class Line(Strict):
    """A line; values with other names in it are ignored."""

    model_config = STRICT | {"extra": "ignore"}

    event: str
    at: Amount


class Begin(Line):
    """A session started, or its workers were restarted from the last commit."""

    event: Literal["begin"] = "begin"
    name: str
    """Name of the workflow."""
    examples: Count
    """Examples of the agenda (training and evaluation) before the position at which the session started."""
    total: Count
    """Number of examples in the whole agenda."""
    epochs: Count
    batch_size: Count
    workers: Count
    device: str
    row_bytes: Count
    disk_cap_bytes: Count
    versions: dict[str, str]


class Tick(Line):
    """State of a run, written at most once a second."""

    event: Literal["tick"] = "tick"
    seconds: Amount
    """Wall seconds of this session."""
    examples: Count
    """Number of examples of the agenda that are done."""
    trained: Count
    """Number of training examples, over all sessions."""
    epoch: Count
    """Number of the epoch, from 0."""
    split: str
    loss: float | None
    """Mean loss of the training blocks since the last tick; None if there were none."""
    lr_rows: Amount
    lr_dense: Amount
    stages: dict[str, float]
    """Wall seconds of each stage."""
    waits: dict[str, float]
    """Seconds that training waited, by cause (`CAUSES`); under "train", the seconds that it did not wait."""
    moves: dict[str, Count]
    """Counts of `Moves`, summed over training and evaluation."""
    disk_bytes: Count
    """Size of the log: the bytes of the last commit plus those written since."""
    free_bytes: Count
    """Free bytes on the disk that holds the run directory."""
    rss_bytes: Count
    """Resident memory of the driver process."""
    observer_seconds: Amount
    """CPU seconds spent on this file and the report so far in this session."""


class Evaluated(Line):
    """A split was evaluated, or an epoch's progressive metrics are complete."""

    event: Literal["evaluated"] = "evaluated"
    epoch: Count
    """Number of the epoch, from 1."""
    split: str
    seconds: Amount
    trained: Count
    metrics: dict[str, float | None]
    from_example: Count | None = None
    """Number, from 1, of the first example of a resumed epoch that its metrics count; None: all count."""


class CommitDone(Line):
    """A commit was published."""

    event: Literal["commit"] = "commit"
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


class Said(Line):
    """A message to the user."""

    event: Literal["said"] = "said"
    text: str


class Ended(Line):
    """The session ended."""

    event: Literal["end"] = "end"
    how: Literal["finished", "interrupted", "failed"]
    seconds: Amount
    waits: dict[str, float]
    """As in `Tick`, for the whole session; "unattributed" is the rest of its wall seconds."""
    parts: dict[str, float]
    """Seconds of parts of the stages, such as "disk", whether or not training waited for them."""
    text: str
    """Cause that limited the speed of the run, and its remedy; after a failure, its message."""


LiveLine = Begin | Tick | Evaluated | CommitDone | Said | Ended
LINE_KINDS: dict[str, type[LiveLine]] = {kind.model_fields["event"].default: kind for kind in (
    Begin, Tick, Evaluated, CommitDone, Said, Ended,
)}  # fmt: skip


def parse_line(line: str) -> LiveLine | None:
    """Parse a line; None if it is not a complete line of a known kind, for example after a kill during a write."""
    kind = LINE_KINDS.get(line.removeprefix('{"event":"').partition('"')[0])
    try:
        return read_json(kind, line) if kind else None
    except ValueError:
        return None


def read_live(folder: Path) -> Iterator[LiveLine]:
    """Yield the lines of a run directory, oldest first. Raises OSError if it has no live.jsonl."""
    with (folder / LIVE).open("rb") as file:
        yield from filter(None, (parse_line(text.decode(errors="replace")) for text in file))


def every_second(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield all lines except every second one of those that are written often."""
    dropped = False
    for text in lines:
        dropped = not dropped if text.startswith(OFTEN) else dropped
        if not dropped or not text.startswith(OFTEN):
            yield text
