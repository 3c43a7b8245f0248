"""The loop around the pipeline: stretches of blocks, with a commit after each, unless a stretch ended only because the
pace was too large."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.data.agenda import Agenda
from pipeline.messages.sizes import format_size_down, format_size_up
from pipeline.preflight.first_window import reductions
from pipeline.preflight.setup import Setup
from pipeline.records import Block, Refusal

ATTEMPTS = {"commit": 3, "disk": 2, "window": 1, "map": 1}
"""Number of refusals of the same block, by kind, at which the run stops. The commit after a refusal may make room in
the log or on the disk."""
CAPS = {
    "staging_rows": "host", "outgoing_rows": "device", "device_rows": "device", "read_ring_bytes": "read",
    "disk_chunks": "disk", "map_bytes": "map",
}  # fmt: skip
"""Field of `storage` that determines each field of `Sizes` that a refusal may name."""


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
    why = f"{refusal.message}{cap_needed(refusal, setup, pace.look_ahead)}"
    if not pace.reduce(refusal):
        return None
    return f"look-ahead {pace.look_ahead}, blocks of {pace.block_batches} batches from here: {why}"


def cap_needed(refusal: Refusal, setup: Setup, look_ahead: int) -> str:
    """End of a message about a refused block: the cap to raise, by the share that the block lacks of what the cap
    provides. Empty if no cap is too small."""
    if not (name := CAPS.get(refusal.cap)):
        return ""
    sizes = setup.fit.sizes
    there_is: int = getattr(sizes, refusal.cap)
    if refusal.cap == "read_ring_bytes":
        there_is = sizes.read_buffer_bytes(2 * look_ahead + 1)
    elif refusal.cap in ("staging_rows", "outgoing_rows"):
        there_is //= look_ahead + 1
    cap: int = getattr(setup.storage, name)
    needed = -(-cap * refusal.needed // max(1, there_is))
    return f"; raise storage.{name} from {format_size_down(cap)} to at least {format_size_up(needed)}"


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
    agenda: Agenda, begin: Block | None, pace: Pace, every_blocks: int | None, make_room: Callable[[Refusal], bool],
    commit: Callable[[DueCommit], bool],
) -> Iterator[Stretch]:  # fmt: skip
    """Yield stretches from block `begin` on. The caller must run each before requesting the next.

    `make_room`: raise a cap or reduce the pace, if possible. `commit`: take a commit; True if it gave up an older one
    and may give up another. The iterator ends after the last block, or if none of these resolved a refusal, which is
    then in the last stretch.
    """
    refused: list[Refusal] = []
    while begin:
        stretch = Stretch(*agenda.stretch(pace.block_batches, begin, every_blocks))
        yield stretch
        refusal = stretch.refusal
        begin = refusal.block if refusal else stretch.following
        if refusal and make_room(refusal):
            continue
        refused = [r for r in refused if begin and r.block.number == begin.number]
        if refusal:
            refused.append(refusal)
        gave_up = commit(due_commit(begin, refused))
        if (
            refusal
            and not gave_up
            and [r.what for r in refused].count(refusal.what) >= ATTEMPTS.get(refusal.what, 1 << 30)
        ):
            return
