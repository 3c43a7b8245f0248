"""Numbered sequence of a run's blocks: its passes over the data (`pipeline.spans.passes`), cut into blocks. Without
spans, these are training epochs, a validation after each, and a final test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline.records import Block
from pipeline.spans.passes import ARRIVAL, SPAN, Leg, SpanPasses, epoch_legs


@dataclass(frozen=True, slots=True)
class Position:
    """The batch at which a run resumes; the commit covers everything before it."""

    epoch: int
    split: str
    batch: int
    span: int | None = None
    """Number of the span; None if the training data has no spans."""


START = Position(0, "train", 0)
"""Where every run starts."""


class Agenda:
    """All blocks of a run: a pure function of the number of examples per split, the batch size and the number of
    epochs.

    A block never spans two legs. The number of batches per block affects only where a leg is cut into blocks, never the
    batches themselves.
    """

    def __init__(
        self, num_examples: Mapping[str, int], batch_size: int, epochs: int, test_apart: bool = False,
        min_last_batch: int = 1, steps_before: int = 0, passes: SpanPasses | None = None,
    ) -> None:  # fmt: skip
        """`test_apart`: omit the test leg, since the epoch to test is chosen after training (see `test`).
        `min_last_batch`: if the last training batch has fewer examples, it is merged into the one before.
        `steps_before`: number of steps taken before the agenda starts. `passes`: passes over spans of the training
        split, instead of epochs."""
        self.passes = passes
        self._min_last_batch, self._steps_before = min_last_batch, steps_before
        self.num_examples = num_examples
        self._test_apart = test_apart
        self._batch_size = batch_size
        self.legs = passes.legs(num_examples) if passes else epoch_legs(num_examples, epochs, test_apart)
        self._places = {leg: place for place, leg in enumerate(self.legs)}
        self._first_batches: dict[Leg, int] = {}
        """Number of batches in all legs before each leg."""
        self._first_steps: dict[Leg, int] = {}
        """Number of steps in all legs before each leg."""
        self._total_batches = steps = 0
        for leg in [*self.legs, *(passes.waiting if passes else ())]:
            self._first_batches[leg], self._first_steps[leg] = self._total_batches, steps
            self._total_batches += self._num_batches(leg)
            steps += self._num_batches(leg) if leg.split == "train" else 0

    @property
    def steps_of_epoch(self) -> int:
        """Number of steps in an epoch, or in a pass over the first span."""
        return self._num_batches(Leg("train", 0, 0 if self.passes else None))

    @property
    def largest_batch(self) -> int:
        """Maximum number of examples per batch: a full batch plus a short last one merged into it."""
        return self._batch_size + self._min_last_batch - 1

    @property
    def total_examples(self) -> int:
        tested = self.num_examples.get("test", 0) if self._test_apart else 0
        return sum(map(self.size, self.legs)) + tested

    @property
    def end(self) -> Position:
        """Position after the last epoch or span, where another one would start."""
        if self.passes:
            return Position(0, SPAN, 0, self.passes.num_due)
        return Position(len([leg for leg in self.legs if leg.split == "train"]), "train", 0)

    def position(self, block: Block | None) -> Position:
        """Position whose next block is this one (None: the end of the run). In an evaluation, it is the first batch of
        the split: an evaluation changes nothing, so it is repeated in full."""
        if block is None:
            return self.end
        return Position(block.epoch, block.split, block.first_batch if block.trains else 0, block.span)

    def block_at(self, position: Position, block_batches: int) -> Block | None:
        """First block of the run from this position on, with number 0; None if there is none."""
        place, first_batch = self._find(position)
        if place == len(self.legs):
            return None
        leg = self.legs[place]
        if first_batch and first_batch == self._num_batches(leg):
            # The commit is from a run with another number of workers, and the last batch is too small for this number
            # of workers, so it is merged into the batch before it.
            following = self.legs[place + 1 :]
            return self._block(0, following[0], 0, block_batches) if following else None
        return self._block(0, leg, first_batch, block_batches)

    def _find(self, position: Position) -> tuple[int, int]:
        """Index in `legs` of the leg at a position, and the batch; the number of legs if none is left."""
        if position == START:
            return 0, 0
        place = self._places.get(Leg(position.split, position.epoch, position.span))
        if place is not None:
            return place, position.batch
        if position.span is not None:
            # A score or an evaluation that this session omits, or the end of what was due.
            first = position.span + (position.split != SPAN)
            return next((n for n, leg in enumerate(self.legs) if (leg.span or 0) >= first), len(self.legs)), 0
        # The commit's last epoch was followed by the test; this run has more epochs.
        following = Leg("train", position.epoch + (position.split != "train"))
        return self._places.get(following, len(self.legs)), 0

    def trained_before(self, position: Position) -> int:
        """Number of training examples before this position, over all passes. Raises ValueError if the run never reaches
        the position."""
        trains = position.split == "train"
        leg = Leg(position.split, position.epoch, position.span)
        if self.passes is None:
            num_batches, ends = self._num_batches(Leg("train", 0)), f"{self.end.epoch} epochs"
            late = position.epoch > self.end.epoch or (position.epoch == self.end.epoch and position != self.end)
        else:
            num_batches, ends = self._num_batches(leg) if leg in self._places else 0, f"{self.end.span} spans"
            late = (position.span or 0) > (self.end.span or 0) or (position.batch > 0 and leg not in self._places)
        if position == START:
            return 0
        if late or (position.span is None) != (self.passes is None) or position.batch > (num_batches if trains else 0):
            span = f"span {position.span + 1}, " if position.span is not None else ""
            raise ValueError(
                f"position: {span}epoch {position.epoch + 1}, {position.split}, batch {position.batch}; there are "
                f"{ends} of {num_batches} training batches"
            )
        place, batch = self._find(position)
        trained = sum(self.size(before) for before in self.legs[:place] if before.split == "train")
        return trained + (min(self.size(leg), batch * self._batch_size) if trains and batch else 0)

    def steps_before(self, position: Position) -> int:
        """Number of steps before this position."""
        place, batch = self._find(position)
        return sum(self._num_batches(leg) for leg in self.legs[:place] if leg.split == "train") + batch

    def examples_before(self, position: Position) -> int:
        """Number of examples before this position, over all passes."""
        block = self.block_at(position, 1)
        if block is None:
            return self.total_examples
        return sum(map(self.size, self.legs[: self._places[Leg.of(block)]])) + block.first_example

    def stretch(
        self, block_batches: int, begin: Block, train_blocks: int | None = None
    ) -> tuple[list[Block], Block | None]:
        """Return the blocks from `begin` to the next commit, and the block after them (None at the end of the run). A
        commit is due after `train_blocks` training blocks, and at the end of an epoch, after its evaluation."""
        blocks: list[Block] = []
        trained = 0
        for block in self.blocks(block_batches, begin):
            if block.trains and blocks:
                enough = train_blocks is not None and trained >= train_blocks
                if enough or Leg.of(blocks[-1]) != Leg.of(block):
                    return blocks, block
            blocks.append(block)
            trained += block.trains
        return blocks, None

    def test(self, epoch: int, block_batches: int, first_batch: int = 0) -> list[Block]:
        """Blocks that test the weights after this epoch, from batch `first_batch` on."""
        leg = Leg("test", epoch, max(0, self.passes.num_due - 1) if self.passes else None)
        return self.blocks_of(leg, block_batches, first_batch)

    def blocks_of(self, leg: Leg, block_batches: int, first_batch: int = 0) -> list[Block]:
        """Blocks of one pass from batch `first_batch` on."""
        firsts = range(first_batch, self._num_batches(leg), block_batches)
        return [self._block(number, leg, first, block_batches) for number, first in enumerate(firsts)]

    def blocks(self, block_batches: int, begin: Block | None = None) -> Iterator[Block]:
        """Blocks of at most `block_batches` batches, starting at the first batch of `begin` and numbered from its
        number."""
        number = begin.number if begin else 0
        first_leg = self._places[Leg.of(begin)] if begin else 0
        for leg in self.legs[first_leg:]:
            first_batch = begin.first_batch if begin and leg is self.legs[first_leg] else 0
            for first in range(first_batch, self._num_batches(leg), block_batches):
                yield self._block(number, leg, first, block_batches)
                number += 1

    def _end(self, leg: Leg, batch: int) -> int:
        """First example of a batch; past the last batch, the number of examples in the leg."""
        return self.size(leg) if batch == self._num_batches(leg) else batch * self._batch_size

    def size(self, leg: Leg) -> int:
        """Number of examples in a leg."""
        if self.passes and leg.split in (SPAN, ARRIVAL, "train"):
            return (self.passes.num_rows if leg.split == "train" else self.passes.num_scored)[leg.span or 0]
        return self.num_examples[leg.split]

    def _num_batches(self, leg: Leg) -> int:
        whole, rest = divmod(self.size(leg), self._batch_size)
        minimum = self._min_last_batch if leg.split == "train" and whole else 1
        return whole + (rest >= minimum)

    def _block(self, number: int, leg: Leg, first_batch: int, block_batches: int) -> Block:
        batches = self._num_batches(leg)
        num_batches = min(block_batches, batches - first_batch)
        first_example = first_batch * self._batch_size
        steps = self._first_steps.get(leg)
        if steps is None:
            # The test is not one of the legs: it uses the weights after some epoch.
            steps = (leg.epoch + 1) * self.steps_of_epoch
        steps += self._steps_before
        return Block(
            number=number,
            split=leg.split,
            epoch=leg.epoch,
            first_batch=first_batch,
            num_batches=num_batches,
            first_example=first_example,
            num_examples=self._end(leg, first_batch + num_batches) - first_example,
            batch_size=self._batch_size,
            first_step=steps + (first_batch if leg.split == "train" else 0),
            closes_split=first_batch + num_batches == batches,
            agenda_batch=self._first_batches.get(leg, self._total_batches) + first_batch,
            span=leg.span,
        )
