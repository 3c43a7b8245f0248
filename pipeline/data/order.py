"""The order of examples: pure functions of (seed, epoch), so that any block of any epoch can be read again.

The order of an epoch: the row groups are permuted and their examples concatenated; the sequence is cut into windows of
`shuffle_window` examples, and each window is permuted. Only the training split is shuffled.
"""

from __future__ import annotations

import numpy as np

from pipeline.records import I64


def is_shuffled(split: str, shuffle_window: int) -> bool:
    """True if the split is shuffled; otherwise examples are read in the order of the files."""
    return split == "train" and shuffle_window > 0


def group_order(num_groups: int, seed: int, epoch: int) -> I64:
    """[num_groups] numbers of the row groups in the order of this epoch."""
    return _permutation(num_groups, seed, epoch, 0)


def window_order(num_examples: int, seed: int, epoch: int, window: int) -> I64:
    """[num_examples] examples of the window in their shuffled order; `window` is its number within the epoch."""
    return _permutation(num_examples, seed, epoch, 1 + window)


def _permutation(size: int, seed: int, epoch: int, stream: int) -> I64:
    # Philox is counter-based: every (seed, epoch, stream) has its own stream, which starts at no cost.
    bits = np.random.Philox(np.random.SeedSequence([seed, epoch, stream]))
    return np.random.Generator(bits).permutation(size)
