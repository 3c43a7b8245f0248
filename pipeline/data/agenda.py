"""The numbered sequence of blocks of a run: training epochs, validation after each, the test at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline.records import Block


@dataclass(frozen=True, slots=True)
class Position:
    """The batch at which a run resumes: everything before it is in the commit."""

    epoch: int
    split: str
    batch: int


START = Position(0, "train", 0)


@dataclass(frozen=True, slots=True)
class Leg:
    """One pass over one split."""

    split: str
    epoch: int


class Agenda:
    """All blocks of a run: a pure function of the number of examples of each split, batch size and number of epochs.

    A block never spans two legs. The number of batches per block changes only where a leg is cut into blocks, never
    the batches themselves.
    """

    def __init__(
        self, num_examples: Mapping[str, int], batch_size: int, epochs: int, test_apart: bool = False,
        min_last_batch: int = 1, steps_before: int = 0,
    ) -> None:  # fmt: skip
        """`test_apart`: the agenda has no test leg, since the epoch to test is chosen after training (see `test`).
        `min_last_batch`: if the training split's last batch has fewer examples, it is merged into the one before.
        `steps_before`: number of steps that were taken before the agenda begins."""
        self._min_last_batch, self._steps_before = min_last_batch, steps_before
        self.num_examples = num_examples
        self._test_apart = test_apart
        self._batch_size = batch_size
        self.legs: list[Leg] = []
        for epoch in range(epochs):
            self.legs.append(Leg("train", epoch))
            if num_examples.get("validation"):
                self.legs.append(Leg("validation", epoch))
        if num_examples.get("test") and not test_apart:
            self.legs.append(Leg("test", epochs - 1))
        self._first_batches: dict[Leg, int] = {}
        """Number of batches of all legs before each."""
        self._total_batches = 0
        for leg in self.legs:
            self._first_batches[leg] = self._total_batches
            self._total_batches += self._num_batches(leg.split)

    @property
    def steps_of_epoch(self) -> int:
        return self._num_batches("train")

    @property
    def largest_batch(self) -> int:
        """Maximum number of examples of a batch: those of a whole one, and of a last one that is merged into it."""
        return self._batch_size + self._min_last_batch - 1

    @property
    def total_examples(self) -> int:
        apart = self.num_examples.get("test", 0) if self._test_apart else 0
        return sum(self.num_examples[leg.split] for leg in self.legs) + apart

    @property
    def end(self) -> Position:
        """Position after the last epoch: one epoch more would begin there."""
        return Position(len([leg for leg in self.legs if leg.split == "train"]), "train", 0)

    def position(self, block: Block | None) -> Position:
        """Position from which this block comes next (None: the end of the run). In an evaluation it is the first batch
        of the split: an evaluation changes nothing, so it is repeated as a whole."""
        if block is None:
            return self.end
        return Position(block.epoch, block.split, block.first_batch if block.trains else 0)

    def block_at(self, position: Position, block_batches: int) -> Block | None:
        """First block of the run from this position on, with number 0; None if no block is left."""
        leg = Leg(position.split, position.epoch)
        if leg not in self.legs:
            # The commit's last epoch was followed by the test; this run has more epochs.
            leg, first_batch = Leg("train", position.epoch + (position.split != "train")), 0
        else:
            first_batch = position.batch
        if leg not in self.legs:
            return None
        if first_batch and first_batch == self._num_batches(leg.split):
            # A commit of another number of workers, before a last batch that is too small for this number of workers
            # and so part of the batch before it.
            following = self.legs[self.legs.index(leg) + 1 :]
            return self._block(0, following[0], 0, block_batches) if following else None
        return self._block(0, leg, first_batch, block_batches)

    def trained_before(self, position: Position) -> int:
        """Number of training examples before this position, all epochs counted. Raises ValueError if the run never
        reaches the position."""
        trains, num_batches = position.split == "train", self._num_batches("train")
        end_of_leg = position.epoch > self.end.epoch or (position.epoch == self.end.epoch and position != self.end)
        if end_of_leg or position.batch > (num_batches if trains else 0):
            raise ValueError(
                f"position: epoch {position.epoch + 1}, {position.split}, batch {position.batch}; there are "
                f"{self.end.epoch} epochs of {num_batches} training batches"
            )
        num_examples = self.num_examples["train"]
        epochs = position.epoch + (not trains)
        return epochs * num_examples + min(num_examples, position.batch * self._batch_size)

    def examples_before(self, position: Position) -> int:
        """Number of examples before this position, all splits and epochs counted."""
        block = self.block_at(position, 1)
        if block is None:
            return self.total_examples
        legs = self.legs[: self.legs.index(Leg(block.split, block.epoch))]
        return sum(self.num_examples[leg.split] for leg in legs) + block.first_example

    def stretch(
        self, block_batches: int, begin: Block, train_blocks: int | None = None
    ) -> tuple[list[Block], Block | None]:
        """Return the blocks from `begin` to the next commit that is due, and the block after them (None at the end of
        the run). A commit is due after `train_blocks` training blocks and at the end of an epoch, after its
        evaluation."""
        blocks: list[Block] = []
        trained = 0
        for block in self.blocks(block_batches, begin):
            if block.trains and blocks:
                enough = train_blocks is not None and trained >= train_blocks
                if enough or not blocks[-1].trains or blocks[-1].epoch != block.epoch:
                    return blocks, block
            blocks.append(block)
            trained += block.trains
        return blocks, None

    def test(self, epoch: int, block_batches: int, first_batch: int = 0) -> list[Block]:
        """The blocks of a test of the weights after this epoch, from batch `first_batch` on."""
        firsts = range(first_batch, self._num_batches("test"), block_batches)
        leg = Leg("test", epoch)
        return [self._block(number, leg, first, block_batches) for number, first in enumerate(firsts)]

    def blocks(self, block_batches: int, begin: Block | None = None) -> Iterator[Block]:
        """Blocks of at most `block_batches` batches, from the first batch of `begin` on and numbered from its
        number."""
        number = begin.number if begin else 0
        first_leg = self.legs.index(Leg(begin.split, begin.epoch)) if begin else 0
        for leg in self.legs[first_leg:]:
            first_batch = begin.first_batch if begin and leg is self.legs[first_leg] else 0
            for first in range(first_batch, self._num_batches(leg.split), block_batches):
                yield self._block(number, leg, first, block_batches)
                number += 1

    def _end(self, leg: Leg, batch: int) -> int:
        """First example of a batch; after the last batch, the number of examples of the leg."""
        return self.num_examples[leg.split] if batch == self._num_batches(leg.split) else batch * self._batch_size

    def _num_batches(self, split: str) -> int:
        whole, rest = divmod(self.num_examples[split], self._batch_size)
        minimum = self._min_last_batch if split == "train" and whole else 1
        return whole + (rest >= minimum)

    def _block(self, number: int, leg: Leg, first_batch: int, block_batches: int) -> Block:
        batches = self._num_batches(leg.split)
        num_batches = min(block_batches, batches - first_batch)
        first_example = first_batch * self._batch_size
        steps = self._steps_before + (leg.epoch + (leg.split != "train")) * self._num_batches("train")
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
            # A separate test comes after all legs.
            agenda_batch=self._first_batches.get(leg, self._total_batches) + first_batch,
        )
