"""The order of examples: pure functions of (seed, epoch), so that any block of any epoch can be found again.

An epoch's order: the row groups are permuted and their examples laid one after another, this is cut into windows
of `shuffle_window` examples, and each window is permuted. Only the training split is shuffled.
"""

from __future__ import annotations

import numpy as np

from pipeline.records import I64


def is_shuffled(split: str, shuffle_window: int) -> bool:
    """Return whether a split is shuffled at all; else its order is that of its files."""
    return split == "train" and shuffle_window > 0


def group_order(num_groups: int, seed: int, epoch: int) -> I64:
    """[num_groups] which row group comes first, second, ... in this epoch."""
    return _permutation(num_groups, seed, epoch, 0)


def window_order(num_examples: int, seed: int, epoch: int, window: int) -> I64:
    """[num_examples] which example of the window comes first, second, ...; `window` counts within the epoch."""
    return _permutation(num_examples, seed, epoch, 1 + window)


def _permutation(size: int, seed: int, epoch: int, stream: int) -> I64:
    # Philox: every (seed, epoch, stream) starts a stream of its own at no cost, none has to be drawn before it.
    bits = np.random.Philox(np.random.SeedSequence([seed, epoch, stream]))
    return np.random.Generator(bits).permutation(size)
