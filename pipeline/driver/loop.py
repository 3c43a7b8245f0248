"""The loop around the pipeline: stretches of blocks, with a commit after each, unless a stretch ended only because the
pace was too large."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.data.agenda import Agenda
from pipeline.preflight.first_window import reductions
from pipeline.preflight.larger_caps import raise_to
from pipeline.preflight.setup import Setup
from pipeline.records import Block, Refusal

ATTEMPTS = {"commit": 3, "disk": 2, "window": 1, "map": 1}
"""Number of refusals of the same block, by kind, at which the run stops. The commit after a refusal may make room in
the log or on the disk."""


class Pace:
    """The look-ahead and block size of a run: initially the values that fit the caps, reduced when `plan` refuses a
    block."""

    def __init__(self, look_ahead: int, block_batches: int) -> None:
        self.look_ahead, self.block_batches = look_ahead, block_batches

    def reduce(self, refusal: Refusal) -> bool:
        """Reduce the look-ahead or, if it is 0, the block size. Returns False if both are already at their minimum."""
        batches = self.block_batches if self.look_ahead else min(self.block_batches, refusal.block.num_batches)
        smaller = reductions(self.look_ahead, batches)[1:]
        if smaller:
            self.look_ahead, self.block_batches = smaller[0]
        return bool(smaller)


def reduce_pace(pace: Pace, refusal: Refusal, setup: Setup) -> str | None:
    """Reduce the pace. Returns a remark for the user, or None if the pace is already at its minimum."""
    why = f"{refusal.message}{raise_to(refusal, setup, pace.look_ahead)}"
    if not pace.reduce(refusal):
        return None
    return f"look-ahead {pace.look_ahead}, blocks of {pace.block_batches} batches from here: {why}"


@dataclass(slots=True)
class Stretch:
    """Blocks up to the next due commit, and the block after them."""

    blocks: list[Block]
    following: Block | None
    refusal: Refusal | None = None
    """Refusal that ended the stretch early; set by the code that runs it."""


@dataclass(frozen=True, slots=True)
class DueCommit:
    """A commit that must be taken now. See `Committer.commit`."""

    begin: Block | None
    """Next block of the run; None: the run is over."""
    at_least: int = 0
    give_up: bool = False


def due_commit(begin: Block | None, refused: Sequence[Refusal]) -> DueCommit:
    """Return the commit that makes room for block `begin`, which was refused for these reasons."""
    at_least = max((r.needed + 1 for r in refused if r.what == "commit"), default=0)
    return DueCommit(begin, at_least, any(r.what == "disk" for r in refused))


def stretches(
    agenda: Agenda, begin: Block | None, pace: Pace, every_blocks: int | None, reduce: Callable[[Refusal], bool],
    commit: Callable[[DueCommit], None],
) -> Iterator[Stretch]:  # fmt: skip
    """Yield stretches from block `begin` on. The caller must run each before requesting the next.

    `reduce`: reduce the pace, unless it is at its minimum. `commit`: take a commit. The iterator ends after the last
    block, or if neither a smaller pace nor a commit resolved a refusal, which is then in the last stretch.
    """
    refused: list[Refusal] = []
    while begin:
        stretch = Stretch(*agenda.stretch(pace.block_batches, begin, every_blocks))
        yield stretch
        refusal = stretch.refusal
        begin = refusal.block if refusal else stretch.following
        if refusal and refusal.what == "window" and reduce(refusal):
            continue
        refused = [r for r in refused if begin and r.block.number == begin.number]
        if refusal:
            refused.append(refusal)
        commit(due_commit(begin, refused))
        if refusal and [r.what for r in refused].count(refusal.what) >= ATTEMPTS.get(refusal.what, 1 << 30):
            return
