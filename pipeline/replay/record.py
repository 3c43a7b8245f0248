"""Replay of a run from its record: the same stretches, commits and openings, at the same blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from pipeline.data.agenda import Agenda, Position
from pipeline.driver.stretches import Committed, Committing, Opened, RunEvent, Stretched
from pipeline.records import Block
from pipeline.replay.capacities import Capacities
from pipeline.replay.engine import ReplayedCrew
from pipeline.replay.key_tiers import KeyCommit
from pipeline.replay.totals import Snapshot, Totals
from pipeline.replay.trace import Trace
from pipeline.spans.passes import Leg

MakeTrace = Callable[[Opened], Trace]
"""Makes the trace of a session from its opening event."""

OTHER_DATA = "name the data that the run read, with --set data.root=FOLDER"


class RecordedRun:
    """A run replayed event by event."""

    def __init__(self, trace_of: MakeTrace) -> None:
        self._trace_of = trace_of
        self._crew = ReplayedCrew()
        self._commits: dict[int, tuple[KeyCommit, Snapshot]] = {}
        """Kept commits, and the one being written, by number, each with the totals up to it."""
        self._at_least = 0

    @property
    def totals(self) -> Totals:
        return self._crew.totals

    def follow(self, events: Iterable[RunEvent]) -> None:
        """Repeat what the run did. Raises ValueError if an event cannot follow from these data and the earlier
        events."""
        for event in events:
            match event:
                case Opened():
                    self._open(event)
                case Stretched():
                    self._stretch(event)
                case Committing():
                    self._commits[event.commit] = self._crew.flush(event.commit, event.name), self.totals.snapshot()
                    self._at_least = event.at_least
                case Committed():
                    self._crew.settle(self._kept(event.kept), self._at_least)

    def _open(self, opened: Opened) -> None:
        # The test of the best epoch opens that epoch's commit; the others stay.
        kept = self._kept(opened.kept, forgets=opened.resets)
        if opened.resets:
            self.totals.restore(self._commits[opened.commit][1] if kept else None)
        self._trace = self._trace_of(opened)
        capacities = [
            Capacities(
                worker.device_rows, worker.host_rows, chunk_rows=worker.chunk_rows, disk_chunks=worker.disk_chunks,
                map_bytes=worker.map_bytes, log_multiple=opened.log_multiple, log_growth=opened.log_growth,
                known_examples=opened.known_examples, known_bytes=opened.known,
            )
            for worker in opened.workers
        ]  # fmt: skip
        others = [commit for commit, _ in self._commits.values()]
        self._crew.open(self._trace, capacities, opened.policies, kept, others)

    def _kept(self, numbers: Sequence[int], forgets: bool = True) -> list[KeyCommit]:
        """Commits with these numbers. `forgets`: drop the others. Raises ValueError if one is not in the record."""
        for number in numbers:
            if number not in self._commits:
                raise ValueError(f"the record of the run has no commit {number}: it began before there were records")
        if forgets:
            self._commits = {number: self._commits[number] for number in numbers}
        return [self._commits[number][0] for number in numbers]

    def _stretch(self, stretched: Stretched) -> None:
        blocks, coming = blocks_of(stretched, self._trace.agenda)
        self._crew.start(blocks, coming)
        for n, block in enumerate(blocks):
            ranks = [rank for rank, until in enumerate(stretched.until) if block.number < until]
            for rank, until in enumerate(stretched.until) if stretched.why else ():
                if block.number == until:
                    # Its keys were scanned before its plan was refused.
                    self._crew.scan(block, rank)
            if ranks and (refusal := self._crew.plan(blocks[n:], stretched.look_ahead, ranks)):
                raise ValueError(
                    f"the record does not fit these data: the run planned block {block.number} (epoch "
                    f"{block.epoch + 1}, batch {block.first_batch}), and here {refusal.message}; {OTHER_DATA}"
                )


def blocks_of(stretched: Stretched, agenda: Agenda) -> tuple[list[Block], Iterator[Block]]:
    """Blocks of a recorded stretch, and the blocks that follow it. Raises ValueError if the run has no such blocks."""
    s, leg = stretched, Leg(stretched.split, stretched.epoch, stretched.span)
    coming: Iterator[Block] = iter(())
    if leg in agenda.legs:
        begin = agenda.block_at(Position(s.epoch, s.split, s.first_batch, s.span), s.block_batches)
        if begin:
            coming = agenda.blocks(s.block_batches, begin)
        blocks = list(islice(coming, s.num_blocks))
    else:
        blocks = agenda.test(s.epoch, s.block_batches, s.first_batch)
    if len(blocks) != s.num_blocks:
        raise ValueError(
            f"the record does not fit these data: it has {s.num_blocks:,} blocks of {s.block_batches} batches from "
            f"epoch {s.epoch + 1}, {s.split}, batch {s.first_batch} on, and there are {len(blocks):,}; {OTHER_DATA}"
        )
    return [replace(block, number=s.number + n) for n, block in enumerate(blocks)], coming
