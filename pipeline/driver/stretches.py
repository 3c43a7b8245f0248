"""stretches.jsonl: the events of a run that affect where its rows are, for `pipeline replay`: stretches, commits, and
opened commits. One event per line. After lines torn by a kill or a power failure, the next event is an `Opened`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from pipeline.cluster.crew import Crew
from pipeline.preflight.setup import Setup
from pipeline.records import Block, Refusal
from pipeline.settings import Count, Strict, read_json, tagged
from pipeline.storage.folder import Folder
from pipeline.worker.worker import Worker

STRETCHES = "stretches.jsonl"


class WorkerSizes(Strict):
    """Sizes and shards of one worker; see `Worker.layout`."""

    device_rows: Count
    host_rows: Count
    chunk_rows: Count
    disk_chunks: Count
    map_bytes: Count
    num_shards: Count
    shards: tuple[Count, ...]


class Opened(Strict):
    """All workers started with empty slabs, and with the rows in the log of a commit or with none."""

    event: Literal["open"] = "open"
    commit: Count
    """0: none."""
    kept: tuple[Count, ...]
    """Commits that existed at that time."""
    resets: bool
    """True if block counts also return to those of the commit."""
    policies: tuple[str, str]
    log_multiple: float
    log_growth: float
    known_examples: Count
    known: Count
    epochs: Count
    test_apart: bool
    """True if the epoch to test was chosen after training."""
    examples: dict[str, Count]
    """Number of examples of each split."""
    spans: Count | None = None
    """Number of spans of the training data; None without spans, as is `scored`."""
    scored: bool | None = None
    """True if spans were scored before they were trained on."""
    workers: tuple[WorkerSizes, ...]


class Stretched(Strict):
    """Blocks that were planned without a drain."""

    event: Literal["stretch"] = "stretch"
    split: str
    epoch: Count
    first_batch: Count
    """Position of the first block, with `split` and `epoch`."""
    span: Count | None = None
    number: Count
    """Number of the first block."""
    num_blocks: Count
    """Number of blocks up to the next due commit."""
    block_batches: Count
    look_ahead: Count
    until: tuple[Count, ...]
    """Number of the first block that each worker did not plan."""
    why: str | None
    """Kind of the refusal that ended the stretch; None if all blocks were planned."""


class Committing(Strict):
    """All workers write a commit, unless an `Opened` of an earlier commit follows."""

    event: Literal["commit"] = "commit"
    commit: Count
    name: str | None
    at_least: Count


class Committed(Strict):
    """A commit was published, and all commits not kept were deleted."""

    event: Literal["kept"] = "kept"
    kept: tuple[Count, ...]


RunEvent = Opened | Stretched | Committing | Committed
EVENT = tagged(RunEvent, "event")
OF_SPANS = {"spans", "scored", "span"}
"""Fields omitted from the record of a run without spans."""


class StretchFile:
    """Writes the record of a run, one event at a time."""

    def __init__(self, folder: Folder, setup: Setup) -> None:
        self._path, self._files, self._setup = folder.path / STRETCHES, folder.files, setup

    def opened(self, crew: Crew, kept: Sequence[int], resets: bool) -> None:
        """Record that the workers opened the last of the commits `kept`, or none. `resets`: see `Opened`."""
        s, schedule = self._setup.workflow.storage, self._setup.workflow.schedule
        workers = [WorkerSizes(**layout) for layout in crew.each(Worker.layout)]
        self._write(
            Opened(
                commit=kept[-1] if kept else 0, kept=tuple(kept), resets=resets,
                policies=(s.device_policy, s.host_policy), log_multiple=s.log_multiple, log_growth=s.log_growth,
                known_examples=s.known_examples, known=s.known, epochs=schedule.epochs,
                test_apart=schedule.plateau is not None, examples=dict(self._setup.agenda.num_examples),
                spans=self._setup.agenda.end.span, scored=self._setup.workflow.metrics.score_spans,
                workers=tuple(workers),
            )
        )  # fmt: skip

    def stretched(
        self, crew: Crew, blocks: Sequence[Block], block_batches: int, look_ahead: int, refusal: Refusal | None
    ) -> None:
        """Record a drained stretch of `blocks`; `refusal` ended it early."""
        first = blocks[0]
        self._write(
            Stretched(
                split=first.split, epoch=first.epoch, first_batch=first.first_batch, number=first.number,
                num_blocks=len(blocks), block_batches=block_batches, look_ahead=look_ahead,
                until=tuple(crew.each(Worker.planned_to)), why=refusal.what if refusal else None, span=first.span,
            )
        )  # fmt: skip

    def committing(self, number: int, name: str | None, at_least: int) -> None:
        """Record that a commit is about to be written; arguments as in `Committer.commit`."""
        # Durable before the commit, so that every opened commit has a record.
        self._write(Committing(commit=number, name=name, at_least=at_least), durable=True)

    def committed(self, kept: Sequence[int]) -> None:
        """Record that the commit was published, and which commits remain."""
        self._write(Committed(kept=tuple(kept)))

    def _write(self, event: RunEvent, durable: bool = False) -> None:
        # A kill may have left a partial line.
        before = "\n" if isinstance(event, Opened) else ""
        left_out = OF_SPANS if self._setup.agenda.end.span is None else None
        self._files.append(self._path, f"{before}{event.model_dump_json(exclude=left_out)}\n".encode(), durable)


def read_events(path: Path) -> Iterator[RunEvent]:
    """Read the record of a run. Raises ValueError, with the line number, if a line is neither an event nor the remains
    of a kill or a power failure, and OSError if there is no file."""
    lines = [(n, line) for n, line in enumerate(path.read_bytes().decode(errors="replace").split("\n"), 1) if line]
    wrong: ValueError | None = None
    for n, line in lines:
        try:
            event: RunEvent = read_json(EVENT, line)
        except ValueError as error:
            wrong = wrong or ValueError(f"{path}, line {n}: it is not an event of a run: {error}")
            continue
        # A torn line is newer than the commit that the next session opened: that commit's line became durable first.
        if wrong and isinstance(event, Opened) and event.resets:
            wrong = None
        if not wrong:
            yield event
    if wrong:
        raise wrong
