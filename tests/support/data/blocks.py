"""Made-up blocks in the form that `read` produces, whole or divided among several workers."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from pipeline.records import Block, Examples, FieldLayout
from pipeline.stages.dedup import KeyOwners, Workspace, dedup

LAYOUTS = st.sampled_from(
    [FieldLayout((0,), (), ()), FieldLayout((0, 2), (1,), (True,)), FieldLayout((), (0, 1), (False, True))]
)


def make_block(batch_size, num_examples):
    return Block(
        number=3, split="train", epoch=0, first_batch=0, num_batches=-(-num_examples // batch_size), first_example=0,
        num_examples=num_examples, batch_size=batch_size, first_step=0, closes_split=False,
    )  # fmt: skip


def make_examples(seed, batch_size, num_examples, layout, num_keys, longest_bag=3):
    """Make examples in the form that `read` produces: the values of a batch are contiguous, field by field, lists after
    the single values."""
    rng = np.random.default_rng(seed)
    block = make_block(batch_size, num_examples)
    bags, starts = [], [0]
    for batch in range(block.num_batches):
        begin, end = block.batch_bounds(batch)
        at = (end - begin) * len(layout.single_S)
        bags_MB = np.zeros((len(layout.multi_M), end - begin + 1), np.int32)
        for m in range(len(layout.multi_M)):
            bags_MB[m] = at + np.cumsum([0, *rng.integers(0, longest_bag + 1, end - begin)])
            at = int(bags_MB[m, -1])
        bags.append(bags_MB)
        starts.append(starts[-1] + at)
    # Spread the keys over all 64 bits, excluding the reserved key.
    keys_V = rng.integers(0, num_keys, starts[-1]).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return Examples(
        block=block, labels_NT=np.zeros((num_examples, 1), np.float32), weights_N=None,
        numbers_NX=np.zeros((num_examples, 0), np.float32), keys_V=keys_V, batch_starts=np.array(starts),
        bags=tuple(bags), nbytes=0,
    )  # fmt: skip


class Part:
    """One worker's part of a block, and for each batch the (key, example) pairs of its values, in order."""

    def __init__(self, examples, layout, owners):
        self.pairs = [plain_pairs(examples, layout, batch) for batch in range(examples.block.num_batches)]
        self.unique = dedup(examples, Workspace(layout, owners=owners))


def plain_pairs(examples, layout, batch):
    begin, end = examples.block.batch_bounds(batch)
    keys = examples.keys_V[examples.batch_starts[batch] : examples.batch_starts[batch + 1]].tolist()
    examples_with_key = [example for _ in layout.single_S for example in range(end - begin)]
    for bag in examples.bags[batch].tolist():
        examples_with_key += [e for e in range(end - begin) for _ in range(bag[e], bag[e + 1])]
    return list(zip(keys, examples_with_key, strict=True))


@st.composite
def crews(draw):
    """Parts of one block, for up to five workers, some of which have no examples of a batch, or none at all."""
    world, layout = draw(st.integers(1, 5)), draw(LAYOUTS)
    owner_of_shard = draw(st.lists(st.integers(0, world - 1), min_size=1, max_size=7))
    owners = KeyOwners(owner_of_shard, world)
    num_batches, num_keys = draw(st.integers(1, 3)), draw(st.sampled_from([1, 4, 40]))
    parts = []
    for _ in range(world):
        batch_size = draw(st.integers(0, 5))
        seed, last = draw(st.integers(0, 2**16)), draw(st.integers(0, batch_size))
        block = replace(
            make_block(max(1, batch_size), batch_size * num_batches), num_batches=num_batches, batch_size=batch_size,
            num_examples=batch_size * (num_batches - 1) + last,
        )  # fmt: skip
        parts.append(Part(examples_of(block, seed, layout, num_keys), layout, owners))
    return owners, layout, parts


def examples_of(block, seed, layout, num_keys):
    """Examples of a block, made by `make_examples` batch by batch, since parts of a batch may be empty."""
    sizes = [end - begin for begin, end in map(block.batch_bounds, range(block.num_batches))]
    each = [make_examples(seed + n, max(1, size), size, layout, num_keys) for n, size in enumerate(sizes)]
    no_bags = np.zeros((len(layout.multi_M), 1), np.int32)
    return replace(
        each[0], block=block, keys_V=np.concatenate([one.keys_V for one in each]),
        batch_starts=np.cumsum([0, *(len(one.keys_V) for one in each)]),
        bags=tuple(one.bags[0] if one.bags else no_bags for one in each),
    )  # fmt: skip
