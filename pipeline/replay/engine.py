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

from collections.abc import Generator, Iterator, Sequence
from typing import Protocol

from pipeline.data.agenda import START
from pipeline.driver.driver import ATTEMPTS
from pipeline.preflight.first_window import reductions
from pipeline.records import Block, Moves, Plan, Refusal, Unique
from pipeline.replay.capacities import Capacities
from pipeline.replay.key_tiers import KeyCommit, KeyLog, KeyTiers, named_by
from pipeline.replay.totals import Totals
from pipeline.replay.trace import Trace
from pipeline.stages.plan import RingRows
from pipeline.storage.places import Places

CLOCKS = ("clock", "clock")


class Foresee(Protocol):
    """Function that makes the keys of coming blocks known to a worker's policies."""

    def __call__(self, trace: Trace, rank: int, places: Places, block: Block) -> None:
        """Called before each plan of a block, for each worker."""


def know_nothing(trace: Trace, rank: int, places: Places, block: Block) -> None:
    """Do nothing: policies know no more than the blocks that were planned."""


class ReplayedCrew:
    """The workers of a replay, and their log: plans blocks, takes and opens commits."""

    def __init__(
        self, trace: Trace, capacities: Sequence[Capacities], policies: tuple[str, str], keep: int,
        foresee: Foresee = know_nothing,
    ) -> None:  # fmt: skip
        """`capacities`: of each worker; `keep`: number of most recent commits to keep."""
        self._trace, self._capacities, self._policies, self._keep = trace, capacities, policies, keep
        self._foresee = foresee
        self._log = KeyLog(capacities[0].chunk_rows)
        self.kept: list[KeyCommit] = []
        self.totals = Totals()
        self._open_empty()

    def _open_empty(self) -> None:
        self.tiers = [
            KeyTiers(capacities, self._policies, self._log, shards)
            for capacities, shards in zip(self._capacities, self._trace.shards, strict=True)
        ]

    def plan(self, blocks: Sequence[Block], look_ahead: int, ranks: Sequence[int]) -> Refusal | None:
        """Plan the first of `blocks` on these workers; the other blocks are those that follow in its stretch. Returns
        the first worker's refusal, if any."""
        window, block = blocks[: look_ahead + 1], blocks[0]
        moves: list[Moves | None] = [None] * len(self.tiers)
        refusals = []
        for rank in ranks:
            tiers, capacities = self.tiers[rank], self._capacities[rank]
            room = RingRows(capacities.staging_rows // (look_ahead + 1), capacities.outgoing_rows // (look_ahead + 1))
            self._foresee(self._trace, rank, tiers.places, block)
            planned = tiers.plan([Unique(one, self._trace.keys(one)[rank], ()) for one in window], room)
            if isinstance(planned, Plan):
                moves[rank] = planned.moves
            else:
                refusals.append(planned)
        if any(moves):
            self.totals.add(block, moves)
        return refusals[0] if refusals else None

    def commit(self, name: str | None = None, at_least: int = 0, give_up: bool = False) -> KeyCommit:
        """Take a commit. Arguments as those of `Committer.commit`. Returns the commit."""
        disk = self.totals.disk
        for flushed in [tiers.flush() for tiers in self.tiers]:
            disk.rows_changed += flushed.changed
            disk.rows_merged += flushed.merged
        disk.commits += 1
        number = self.kept[-1].number + 1 if self.kept else 1
        tails = tuple(map(max, zip(*(tiers.places.chunks.tails for tiers in self.tiers), strict=True)))
        stale = {chunk: count for tiers in self.tiers for chunk, count in tiers.stale().items()}
        commit = KeyCommit(number, name, tails, dict(sorted(stale.items())))
        self.settle(self._to_keep([*self.kept, commit], give_up), at_least)
        return commit

    def _to_keep(self, commits: list[KeyCommit], give_up: bool) -> list[KeyCommit]:
        """Commits that `Commits.kept` keeps if no reader holds any."""
        named = {commit.name: commit for commit in commits if commit.name}
        last = commits[-1 if give_up else -self._keep :]
        return [commit for commit in commits if commit in last or commit in named.values()]

    def settle(self, kept: list[KeyCommit], at_least: int) -> None:
        """Delete the chunks that no kept commit names."""
        self.kept = kept
        self._log.keep(named_by(kept))
        for tiers in self.tiers:
            tiers.settle(kept, at_least)


class Simulation:
    """A run that is being simulated."""

    def __init__(
        self, trace: Trace, capacities: Capacities, policies: tuple[str, str] = CLOCKS, look_ahead: int = 2,
        block_batches: int = 16, every_blocks: int | None = None, keep: int = 2, foresee: Foresee = know_nothing,
    ) -> None:  # fmt: skip
        """`capacities`: of each worker; `policies`: names of those of device and host. The others: as the workflow's
        settings."""
        self._crew = ReplayedCrew(trace, [capacities] * len(trace.shards), policies, keep, foresee)
        self._agenda, self._every_blocks = trace.agenda, every_blocks
        self.look_ahead, self.block_batches = look_ahead, block_batches
        self.totals = self._crew.totals

    @property
    def places(self) -> list[Places]:
        """Places of each worker, as they are now."""
        return [tiers.places for tiers in self._crew.tiers]

    def steps(self) -> Iterator[Block]:
        """Run to the end; yields each block before it is planned, again if it was refused. The loop is that of
        `Driver._train`."""
        begin = self._agenda.block_at(START, self.block_batches)
        refused: list[Refusal] = []
        while begin:
            blocks, following = self._agenda.stretch(self.block_batches, begin, self._every_blocks)
            refusal = yield from self._stretch(blocks)
            begin = refusal.block if refusal else following
            if refusal and refusal.what == "window" and self._reduce(refusal):
                continue
            refused = [r for r in refused if begin and r.block.number == begin.number]
            refused += [refusal] if refusal else []
            self._crew.commit(
                at_least=max((r.needed + 1 for r in refused if r.what == "commit"), default=0),
                give_up=any(r.what == "disk" for r in refused),
            )
            if refusal and [r.what for r in refused].count(refusal.what) >= ATTEMPTS[refusal.what]:
                self.totals.stopped = refusal
                return

    def _stretch(self, blocks: Sequence[Block]) -> Generator[Block, None, Refusal | None]:
        everyone = range(len(self._crew.tiers))
        for n, block in enumerate(blocks):
            yield block
            if refusal := self._crew.plan(blocks[n : n + self.look_ahead + 1], self.look_ahead, everyone):
                return refusal
        return None

    def _reduce(self, refusal: Refusal) -> bool:
        """Take a smaller pace, as `Pace.reduce` does; returns False if it is already at its minimum."""
        batches = self.block_batches if self.look_ahead else min(self.block_batches, refusal.block.num_batches)
        smaller = reductions(self.look_ahead, batches)[1:]
        if smaller:
            self.look_ahead, self.block_batches = smaller[0]
        return bool(smaller)


def simulate(
    trace: Trace, capacities: Capacities, policies: tuple[str, str] = CLOCKS, look_ahead: int = 2,
    block_batches: int = 16, every_blocks: int | None = None, keep: int = 2, foresee: Foresee = know_nothing,
) -> Totals:  # fmt: skip
    """Simulate a run to its end; arguments as those of `Simulation`."""
    simulation = Simulation(trace, capacities, policies, look_ahead, block_batches, every_blocks, keep, foresee)
    for _ in simulation.steps():
        pass
    return simulation.totals
