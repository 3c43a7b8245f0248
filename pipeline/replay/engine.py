"""Simulation of a run on keys alone: plans, and the metadata of commits, in the driver's order.

No rows, model or disk log are needed. Commits are taken at the end of each epoch, every `every_blocks` blocks, and when
a block is refused, but never by time or signal. The sums therefore equal those of a run with one worker, provided that
the run has no commits by time or signal, no readers lock its commits, no decision depends on a metric, and no block is
too long for its read buffer. With several workers, equality also requires that no block is refused: how far the other
workers have planned at a refusal depends on timing.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence

from pipeline.data.agenda import START, Position
from pipeline.driver.coming import as_far_as_known
from pipeline.driver.loop import DueCommit, Pace, stretches
from pipeline.records import U64, Block, Moves, Plan, Refusal, Unique
from pipeline.replay.capacities import Capacities
from pipeline.replay.key_tiers import KeyCommit, KeyLog, KeyTiers, named_by
from pipeline.replay.totals import BlockMoves, Totals
from pipeline.replay.trace import Trace
from pipeline.stages.plan import RingRows
from pipeline.stages.scan import Scanner, scan
from pipeline.storage.places import Places

CLOCKS = ("clock", "clock")


class ReplayedCrew:
    """The workers of a replay and their log. Plans blocks; takes and opens commits."""

    def __init__(self) -> None:
        self._log: KeyLog | None = None
        self.tiers: Sequence[KeyTiers] = ()
        self.kept: list[KeyCommit] = []
        self.totals = Totals()

    def open(
        self, trace: Trace, capacities: Sequence[Capacities], policies: tuple[str, str], kept: Sequence[KeyCommit] = (),
        others: Sequence[KeyCommit] = (),
    ) -> None:  # fmt: skip
        """Open the last of the `kept` commits, or an empty table, with empty slabs. `trace`: keys by owner;
        `capacities`: those of each worker; `others`: further commits whose chunks are kept. The number of rows per
        chunk must be the same in every call."""
        log = self._log = self._log or KeyLog(capacities[0].chunk_rows)
        log.keep(named_by([*kept, *others]))
        self._trace, self._capacities, self.kept = trace, capacities, list(kept)
        self.tiers = [
            KeyTiers(of_worker, policies, log, shards)
            for of_worker, shards in zip(capacities, trace.shards, strict=True)
        ]
        for tiers in self.tiers if kept else ():
            tiers.open(kept[-1], kept)
        self._scanners = [self._scanner(rank) for rank in range(len(self.tiers)) if "foresight" in policies]
        self.totals.chunks = sum(tiers.places.chunks.present for tiers in self.tiers)

    def _scanner(self, rank: int) -> Scanner:
        of_worker, trace = self._capacities[rank], self._trace
        return Scanner(lambda block: trace.keys(block)[rank], of_worker.known_examples, of_worker.known_bytes)

    def start(self, blocks: Sequence[Block], coming: Iterable[Block]) -> None:
        """Start a stretch of these blocks. `coming`: the blocks that follow the stretch."""
        known = as_far_as_known(coming, self._capacities[0].known_examples) if self._scanners else []
        for scanner, tiers in zip(self._scanners, self.tiers, strict=False):
            scanner.begin([*blocks, *known], tiers.places.next_uses)

    def scan(self, block: Block, rank: int) -> None:
        """Scan ahead of a block. The block need not be planned afterwards."""
        if self._scanners:
            scan(block, self._scanners[rank], self.tiers[rank].places)

    def plan(self, blocks: Sequence[Block], look_ahead: int, ranks: Sequence[int]) -> Refusal | None:
        """Plan the first of `blocks` on these workers; the others are the blocks that follow it in its stretch. Returns
        the first refusal in the order of workers, or None."""
        window, block = blocks[: look_ahead + 1], blocks[0]
        moves: list[Moves | None] = [None] * len(self.tiers)
        refusals = []
        for rank in ranks:
            tiers, capacities = self.tiers[rank], self._capacities[rank]
            room = RingRows(capacities.staging_rows // (look_ahead + 1), capacities.outgoing_rows // (look_ahead + 1))
            self.scan(block, rank)
            planned = tiers.plan([Unique(one, self._trace.keys(one)[rank], ()) for one in window], room)
            if isinstance(planned, Plan):
                moves[rank] = planned.moves
            else:
                refusals.append(planned)
        if any(moves):
            self.totals.series.append(BlockMoves(block, tuple(moves)))
        return refusals[0] if refusals else None

    def flush(self, number: int, name: str | None = None) -> KeyCommit:
        """Write all changed rows to the log, and return the commit that names the log's chunks."""
        disk = self.totals.disk
        for flushed in [tiers.flush() for tiers in self.tiers]:
            disk.rows_changed += flushed.changed
            disk.rows_merged += flushed.merged
        disk.commits += 1
        tails = tuple(map(max, zip(*(tiers.places.chunks.tails for tiers in self.tiers), strict=True)))
        stale = {chunk: count for tiers in self.tiers for chunk, count in tiers.stale().items()}
        return KeyCommit(number, name, tails, dict(sorted(stale.items())))

    def settle(self, kept: Sequence[KeyCommit], at_least: int) -> None:
        """Delete all chunks that none of these commits names. `at_least`: see `Committer.commit`."""
        assert self._log
        self.kept = list(kept)
        self._log.keep(named_by(kept))
        for tiers in self.tiers:
            tiers.settle(kept, at_least)
        self.totals.chunks = sum(tiers.places.chunks.present for tiers in self.tiers)


class Simulation:
    """A simulated run."""

    def __init__(
        self, trace: Trace, capacities: Capacities, policies: tuple[str, str] = CLOCKS, look_ahead: int = 2,
        block_batches: int = 16, every_blocks: int | None = None, keep: int = 2,
    ) -> None:  # fmt: skip
        """`capacities`: those of each worker; `policies`: names of the policies of device and host. The other arguments
        correspond to settings of the workflow."""
        self._crew, self._begin = ReplayedCrew(), START
        self._crew.open(trace, [capacities] * len(trace.shards), policies)
        self._agenda, self._every_blocks, self._keep = trace.agenda, every_blocks, keep
        self.pace = Pace(look_ahead, block_batches)
        self.totals = self._crew.totals

    @property
    def places(self) -> list[Places]:
        """Current places of each worker."""
        return [tiers.places for tiers in self._crew.tiers]

    def begin_at(self, position: Position, keys_U: U64) -> None:
        """Start at this position, with rows of these distinct keys in the log."""
        self._begin = position
        for tiers in self._crew.tiers:
            tiers.fill(keys_U)

    def steps(self) -> Iterator[Block]:
        """Run to the end. Yields each block before it is planned, and again after a refusal."""
        begin, pace = self._agenda.block_at(self._begin, self.pace.block_batches), self.pace
        stopped: Refusal | None = None
        for stretch in stretches(self._agenda, begin, pace, self._every_blocks, pace.reduce, self._commit):
            following = stretch.following
            self._crew.start(stretch.blocks, self._agenda.blocks(pace.block_batches, following) if following else ())
            stopped = stretch.refusal = yield from self._stretch(stretch.blocks)
        self.totals.stopped = stopped

    def _stretch(self, blocks: Sequence[Block]) -> Generator[Block, None, Refusal | None]:
        everyone, look_ahead = range(len(self._crew.tiers)), self.pace.look_ahead
        for n, block in enumerate(blocks):
            yield block
            if refusal := self._crew.plan(blocks[n : n + look_ahead + 1], look_ahead, everyone):
                return refusal
        return None

    def _commit(self, due: DueCommit) -> None:
        kept = self._crew.kept
        kept = [*kept, self._crew.flush(kept[-1].number + 1 if kept else 1)]
        self._crew.settle(kept[-1 if due.give_up else -self._keep :], due.at_least)
