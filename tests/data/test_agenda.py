"""The numbered sequence of blocks: which batches, in which order, whatever the size of a block."""

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.data.agenda import Agenda, Position

SPLITS = st.fixed_dictionaries(
    {"train": st.integers(1, 40)}, optional={"validation": st.integers(0, 20), "test": st.integers(0, 20)}
)
AGENDAS = st.builds(Agenda, SPLITS, st.integers(1, 9), st.integers(1, 3))


JOINED = st.builds(
    lambda splits, batch_size, epochs, minimum: Agenda(splits, batch_size, epochs, False, min(minimum, batch_size)),
    SPLITS, st.integers(1, 9), st.integers(1, 3), st.integers(2, 9),
)  # fmt: skip
"""With a last batch that is joined to the one before, as batch norm on several workers needs it."""


def batches_of(blocks):
    """Every batch as (split, epoch, its number, its first and end (exclusive) example, steps taken before it)."""
    batches = []
    for b in blocks:
        for n in range(b.num_batches):
            bounds = [b.first_example + e for e in b.batch_bounds(n)]
            batches.append((b.split, b.epoch, b.first_batch + n, *bounds, b.first_step + n * b.trains))
    return batches


def plain_batches(num_examples, batch_size, epochs, min_last_batch=1):
    """The same from the words: train, then validation, each epoch; the test at the end. A last batch of the training
    split that is too short is part of the one before it, if there is one."""
    legs = [(split, epoch) for epoch in range(epochs) for split in ("train", "validation")] + [("test", epochs - 1)]
    step, batches = 0, []
    for split, epoch in legs:
        total = num_examples.get(split, 0)
        begins = [*range(0, total, batch_size)]
        if split == "train" and len(begins) > 1 and total - begins[-1] < min_last_batch:
            begins.pop()
        for number, (begin, end) in enumerate(pairwise([*begins, total])):
            batches.append((split, epoch, number, begin, end, step))
            step += split == "train"
    return batches


@settings(deadline=None, max_examples=100)
@given(SPLITS, st.integers(1, 9), st.integers(1, 3), st.integers(1, 12), st.integers(1, 12))
def test_blocks_of_any_size_hold_every_batch_in_order(num_examples, batch_size, epochs, block_batches, min_last_batch):
    min_last_batch = min(min_last_batch, batch_size)
    agenda = Agenda(num_examples, batch_size, epochs, min_last_batch=min_last_batch)
    blocks = list(agenda.blocks(block_batches))
    assert batches_of(blocks) == plain_batches(num_examples, batch_size, epochs, min_last_batch)
    assert [b.number for b in blocks] == list(range(len(blocks)))
    assert all(1 <= b.num_batches <= block_batches for b in blocks)
    assert sum(b.num_examples for b in blocks) == agenda.total_examples
    bounds = [block.batch_bounds(batch) for block in blocks for batch in range(block.num_batches)]
    assert max(end - begin for begin, end in bounds) <= agenda.largest_batch < 2 * batch_size
    for b in blocks:
        bounds = [b.batch_bounds(n) for n in range(b.num_batches)]
        assert (bounds[0][0], bounds[-1][1]) == (0, b.num_examples)
        assert b.batch_size == batch_size


@settings(deadline=None, max_examples=100)
@given(AGENDAS | JOINED, st.integers(1, 12))
def test_only_the_last_block_of_a_split_closes_it(agenda, block_batches):
    blocks = list(agenda.blocks(block_batches))
    closing = [(b.split, b.epoch) for b in blocks if b.closes_split]
    assert closing == [(leg.split, leg.epoch) for leg in agenda.legs]
    for one, following in zip(blocks, [*blocks[1:], None], strict=True):
        last = following is None or (following.split, following.epoch) != (one.split, one.epoch)
        assert one.closes_split == last


@settings(deadline=None, max_examples=100)
@given(AGENDAS | JOINED, st.integers(1, 12), st.integers(1, 12), st.data())
def test_a_run_resumed_with_other_blocks_has_every_batch_once(agenda, before, after, data):
    blocks = list(agenda.blocks(before))
    cut = data.draw(st.integers(0, len(blocks) - 1))
    resumed = list(agenda.blocks(after, blocks[cut]))
    assert batches_of(blocks[:cut] + resumed) == batches_of(blocks)
    assert [b.number for b in resumed] == list(range(cut, cut + len(resumed)))
    assert list(agenda.blocks(before, blocks[cut])) == blocks[cut:]


@settings(deadline=None, max_examples=100)
@given(AGENDAS | JOINED, st.integers(1, 12), st.integers(1, 12), st.data())
def test_the_position_of_a_commit_leaves_the_batches_after_it(agenda, before, after, data):
    """From the position of any block, with blocks of any size: all batches that train and come after; an evaluation
    from its beginning."""
    blocks = list(agenda.blocks(before))
    cut = data.draw(st.integers(0, len(blocks)))
    position = agenda.position(blocks[cut] if cut < len(blocks) else None)
    begin = agenda.block_at(position, after)
    resumed = list(agenda.blocks(after, begin)) if begin else []
    first = cut
    while 0 < first < len(blocks) and not blocks[first].trains and blocks[first].first_batch:
        first -= 1
    assert batches_of(resumed) == batches_of(blocks[first:])
    assert begin is None or (begin.number == 0 and begin == resumed[0])
    assert agenda.examples_before(position) == sum(b.num_examples for b in blocks[:first])
    assert (position == agenda.end) == (begin is None)


@settings(deadline=None, max_examples=60)
@given(SPLITS, st.integers(1, 9), st.integers(1, 3), st.integers(1, 3), st.data())
def test_a_run_resumed_with_more_epochs_trains_every_batch_once(num_examples, batch_size, epochs, more, data):
    """What was done of fewer epochs, and what is left of more, is all of more, but for a test that came in between."""
    fewer, all_of_them = Agenda(num_examples, batch_size, epochs), Agenda(num_examples, batch_size, epochs + more)
    blocks = list(fewer.blocks(2))
    cut = data.draw(st.integers(0, len(blocks)))
    position = fewer.position(blocks[cut] if cut < len(blocks) else None)
    rest = list(all_of_them.blocks(2, all_of_them.block_at(position, 2)))
    trained = [b for b in [*blocks[:cut], *rest] if b.trains]
    assert batches_of(trained) == batches_of([b for b in all_of_them.blocks(2) if b.trains])
    assert [b.epoch for b in rest if b.split == "test" and b.closes_split] in ([], [epochs + more - 1])


@settings(deadline=None, max_examples=100)
@given(AGENDAS | JOINED, st.integers(1, 5), st.one_of(st.none(), st.integers(1, 5)))
def test_stretches_have_every_block_once_and_end_only_at_commits(agenda, block_batches, train_blocks):
    begin, blocks = agenda.block_at(Position(0, "train", 0), block_batches), []
    while begin:
        stretch, following = agenda.stretch(block_batches, begin, train_blocks)
        trained = [b for b in stretch if b.trains]
        assert stretch[0] == begin
        assert len(trained) <= (train_blocks or len(trained))
        assert len({b.epoch for b in trained}) <= 1, "an epoch ended without a commit"
        if following:
            assert following.trains
            ended = following.first_batch == 0
            assert ended or len(trained) == train_blocks, "a commit that nobody asked for"
        blocks += stretch
        begin = following
    assert blocks == list(agenda.blocks(block_batches))


def test_a_joined_last_batch_is_counted_once():
    agenda = Agenda({"train": 13, "validation": 13}, 6, 2, min_last_batch=2)
    blocks = list(agenda.blocks(1))
    assert [b.num_examples for b in blocks] == [6, 7, 6, 6, 1] * 2
    assert agenda.steps_of_epoch == 2
    assert agenda.total_examples == 52
    assert [agenda.examples_before(agenda.position(b)) for b in blocks] == [0, 6, 13, 13, 13, 26, 32, 39, 39, 39]
    assert [b.first_step for b in blocks if b.trains] == [0, 1, 2, 3]


@pytest.mark.parametrize("splits", [{"train": 13}, {"train": 13, "validation": 4}])
def test_a_commit_before_a_joined_last_batch_skips_that_batch(splits):
    """One worker's batches are of 6, 6 and 1 examples, those of several of 6 and 7: the one example is given up."""
    fewer, more = Agenda(splits, 6, 2), Agenda(splits, 6, 2, min_last_batch=2)
    following = next(b for b in more.blocks(1) if (b.split, b.epoch) not in (("train", 0),))
    begin = more.block_at(fewer.position(list(fewer.blocks(1))[2]), 1)
    assert begin == dataclasses.replace(following, number=0)
    last = more.block_at(Position(1, "train", 2), 1)
    assert last is None if "validation" not in splits else last.split == "validation"


def test_only_a_short_last_batch_after_another_one_is_joined():
    for num_train, expected in ((1, [1]), (6, [6]), (8, [6, 2]), (7, [7])):
        blocks = list(Agenda({"train": num_train}, 6, 1, min_last_batch=2).blocks(1))
        assert [b.num_examples for b in blocks] == expected


def test_only_training_takes_steps():
    blocks = list(Agenda({"train": 5, "validation": 3, "test": 2}, 2, 2).blocks(2))
    shown = [(b.split, b.epoch, b.first_step, b.num_batches) for b in blocks]
    assert shown == [
        ("train", 0, 0, 2), ("train", 0, 2, 1), ("validation", 0, 3, 2),
        ("train", 1, 3, 2), ("train", 1, 5, 1), ("validation", 1, 6, 2), ("test", 1, 6, 1),
    ]  # fmt: skip
    assert dataclasses.replace(blocks[0], split="test").trains is False
