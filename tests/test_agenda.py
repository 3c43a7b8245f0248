"""The numbered sequence of blocks: which batches, in which order, whatever the size of a block."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.agenda import Agenda

SPLITS = st.fixed_dictionaries(
    {"train": st.integers(1, 40)}, optional={"validation": st.integers(0, 20), "test": st.integers(0, 20)}
)
AGENDAS = st.builds(Agenda, SPLITS, st.integers(1, 9), st.integers(1, 3))


def batches_of(blocks):
    """Every batch as (split, epoch, its number, its first and past-the-last example, steps taken before it)."""
    batches = []
    for b in blocks:
        for n in range(b.num_batches):
            bounds = [b.first_example + e for e in b.batch_bounds(n)]
            batches.append((b.split, b.epoch, b.first_batch + n, *bounds, b.first_step + n * b.trains))
    return batches


def plain_batches(num_examples, batch_size, epochs):
    """The same from the words: train, then validation, each epoch; the test at the end."""
    legs = [(split, epoch) for epoch in range(epochs) for split in ("train", "validation")] + [("test", epochs - 1)]
    step, batches = 0, []
    for split, epoch in legs:
        total = num_examples.get(split, 0)
        for number, begin in enumerate(range(0, total, batch_size)):
            batches.append((split, epoch, number, begin, min(begin + batch_size, total), step))
            step += split == "train"
    return batches


@settings(deadline=None, max_examples=100)
@given(SPLITS, st.integers(1, 9), st.integers(1, 3), st.integers(1, 12))
def test_a_batch_is_left_out_or_depends_on_the_size_of_blocks(num_examples, batch_size, epochs, block_batches):
    agenda = Agenda(num_examples, batch_size, epochs)
    blocks = list(agenda.blocks(block_batches))
    assert batches_of(blocks) == plain_batches(num_examples, batch_size, epochs)
    assert [b.number for b in blocks] == list(range(len(blocks)))
    assert all(1 <= b.num_batches <= block_batches for b in blocks)
    assert sum(b.num_examples for b in blocks) == agenda.total_examples
    for b in blocks:
        bounds = [b.batch_bounds(n) for n in range(b.num_batches)]
        assert (bounds[0][0], bounds[-1][1]) == (0, b.num_examples)
        assert b.batch_size == batch_size


@settings(deadline=None, max_examples=100)
@given(AGENDAS, st.integers(1, 12))
def test_a_split_is_closed_too_early_or_never(agenda, block_batches):
    blocks = list(agenda.blocks(block_batches))
    closing = [(b.split, b.epoch) for b in blocks if b.closes_split]
    assert closing == [(leg.split, leg.epoch) for leg in agenda.legs]
    for one, following in zip(blocks, [*blocks[1:], None], strict=True):
        last = following is None or (following.split, following.epoch) != (one.split, one.epoch)
        assert one.closes_split == last


@settings(deadline=None, max_examples=100)
@given(AGENDAS, st.integers(1, 12), st.integers(1, 12), st.data())
def test_a_run_that_goes_on_with_other_blocks_repeats_or_skips_a_batch(agenda, before, after, data):
    blocks = list(agenda.blocks(before))
    cut = data.draw(st.integers(0, len(blocks) - 1))
    resumed = list(agenda.blocks(after, blocks[cut]))
    assert batches_of(blocks[:cut] + resumed) == batches_of(blocks)
    assert [b.number for b in resumed] == list(range(cut, cut + len(resumed)))


@settings(deadline=None, max_examples=50)
@given(AGENDAS, st.integers(1, 12), st.data())
def test_a_run_that_goes_on_with_the_same_blocks_cuts_them_otherwise(agenda, block_batches, data):
    blocks = list(agenda.blocks(block_batches))
    cut = data.draw(st.integers(0, len(blocks) - 1))
    assert list(agenda.blocks(block_batches, blocks[cut])) == blocks[cut:]


def test_only_training_takes_steps():
    blocks = list(Agenda({"train": 5, "validation": 3, "test": 2}, 2, 2).blocks(2))
    shown = [(b.split, b.epoch, b.first_step, b.num_batches) for b in blocks]
    assert shown == [
        ("train", 0, 0, 2), ("train", 0, 2, 1), ("validation", 0, 3, 2),
        ("train", 1, 3, 2), ("train", 1, 5, 1), ("validation", 1, 6, 2), ("test", 1, 6, 1),
    ]  # fmt: skip
    assert dataclasses.replace(blocks[0], split="test").trains is False
