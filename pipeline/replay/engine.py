"""Simulation of a run on keys alone: `plan` and the metadata of commits, as the driver takes them.

    trace = BatchTrace({"train": [keys of batch 0, keys of batch 1, ...]})
    totals = simulate(trace, Capacities(device_rows=1000, host_rows=4000), ("lru", "lfu"), look_ahead=2)
    totals.tiers.report(...)        # hits and traffic of each tier, as in result.json
    totals.series                   # block by block

No row, model or disk log is needed. Commits come at the ends of epochs, every `every_blocks` blocks and where a block
is refused; none by time or signal. So the sums equal those of a run with one worker in which these and readers' locks
on commits play no part, no decision hangs on a metric and no block is too long for its read buffer. With several
workers they do as long as no block is refused: how far the others planned ahead of a refusal depends on time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence

from pipeline.data.agenda import START, Position
from pipeline.driver.coming import as_far_as_known
from pipeline.driver.loop import DueCommit, stretches
from pipeline.driver.pace import Pace
from pipeline.records import U64, Block, Moves, Plan, Refusal, Unique
from pipeline.replay.capacities import Capacities
from pipeline.replay.key_tiers import KeyLog, KeyTiers
from pipeline.replay.totals import Totals
from pipeline.replay.trace import Trace
from pipeline.stages.plan import RingRows
from pipeline.stages.scan import Scanner, scan
from pipeline.storage.places import Places

CLOCKS = ("clock", "clock")


class Simulation:
    """A run that is being simulated: the tiers of its workers, and their log."""

    def __init__(
        self, trace: Trace, capacities: Capacities, policies: tuple[str, str] = CLOCKS, look_ahead: int = 2,
        block_batches: int = 16, every_blocks: int | None = None, keep: int = 2,
    ) -> None:  # fmt: skip
        """`capacities`: of each worker; `policies`: names of those of device and host. The others: as the workflow's
        settings."""
        self._trace, self._capacities, self._begin = trace, capacities, START
        self._every_blocks, self._keep = every_blocks, keep
        self.pace, self.totals = Pace(look_ahead, block_batches), Totals()
        self._log = KeyLog(capacities.chunk_rows)
        self._tiers = [KeyTiers(capacities, policies, self._log, shards) for shards in trace.shards]
        self._kept: list[set[int]] = []
        """Chunks of the log that each kept commit names."""
        self._scanners = [self._scanner(rank) for rank in range(len(self._tiers)) if "foresight" in policies]

    def _scanner(self, rank: int) -> Scanner:
        c = self._capacities
        return Scanner(lambda block: self._trace.keys(block)[rank], c.known_examples, c.known_bytes)

    @property
    def places(self) -> list[Places]:
        """Places of each worker, as they are now."""
        return [tiers.places for tiers in self._tiers]

    def begin_at(self, position: Position, keys_U: U64) -> None:
        """Begin at this position, with rows of these distinct keys in the log."""
        self._begin = position
        for tiers in self._tiers:
            tiers.fill(keys_U)

    def steps(self) -> Iterator[Block]:
        """Run to the end; yields each block before it is planned, again if it was refused."""
        agenda, pace = self._trace.agenda, self.pace
        begin = agenda.block_at(self._begin, pace.block_batches)
        stopped: Refusal | None = None
        for stretch in stretches(agenda, begin, pace, self._every_blocks, pace.reduce, self._commit):
            following = stretch.following
            self._look_ahead(stretch.blocks, agenda.blocks(pace.block_batches, following) if following else ())
            stopped = stretch.refusal = yield from self._stretch(stretch.blocks)
        self.totals.stopped = stopped

    def _look_ahead(self, blocks: Sequence[Block], coming: Iterable[Block]) -> None:
        """Begin a stretch of these blocks, which `coming` follow."""
        known = as_far_as_known(coming, self._capacities.known_examples) if self._scanners else []
        for scanner, tiers in zip(self._scanners, self._tiers, strict=False):
            scanner.begin([*blocks, *known], tiers.places.next_uses)

    def _stretch(self, blocks: Sequence[Block]) -> Generator[Block, None, Refusal | None]:
        for n, block in enumerate(blocks):
            yield block
            if refusal := self._plan(blocks[n : n + self.pace.look_ahead + 1]):
                return refusal
        return None

    def _plan(self, window: Sequence[Block]) -> Refusal | None:
        """Plan the first block of the window on all workers. Returns the first worker's refusal, if any."""
        block, buffers, capacities = window[0], self.pace.look_ahead + 1, self._capacities
        room = RingRows(capacities.staging_rows // buffers, capacities.outgoing_rows // buffers)
        moves: list[Moves | None] = [None] * len(self._tiers)
        refusals = []
        for rank, tiers in enumerate(self._tiers):
            if self._scanners:
                scan(block, self._scanners[rank], tiers.places)
            planned = tiers.plan([Unique(one, self._trace.keys(one)[rank], ()) for one in window], room)
            if isinstance(planned, Plan):
                moves[rank] = planned.moves
            else:
                refusals.append(planned)
        if any(moves):
            self.totals.add(block, moves)
        return refusals[0] if refusals else None

    def _commit(self, due: DueCommit) -> None:
        """Write all changed rows to the log, and delete the chunks that no kept commit names."""
        disk = self.totals.disk
        for flushed in [tiers.flush() for tiers in self._tiers]:
            disk.rows_changed += flushed.changed
            disk.rows_merged += flushed.merged
        disk.commits += 1
        newest = {chunk for places in self.places for chunk in places.chunks.live().tolist()}
        self._kept = [*self._kept, newest][-1 if due.give_up else -self._keep :]
        named = set[int]().union(*self._kept)
        self._log.keep(named)
        for tiers in self._tiers:
            tiers.settle(named, due.at_least)
        self.totals.chunks = sum(places.chunks.present for places in self.places)


def simulate(
    trace: Trace, capacities: Capacities, policies: tuple[str, str] = CLOCKS, look_ahead: int = 2,
    block_batches: int = 16, every_blocks: int | None = None, keep: int = 2,
) -> Totals:  # fmt: skip
    """Simulate a run to its end; arguments as those of `Simulation`."""
    simulation = Simulation(trace, capacities, policies, look_ahead, block_batches, every_blocks, keep)
    for _ in simulation.steps():
        pass
    return simulation.totals
