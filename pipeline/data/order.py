"""The order of examples: pure functions of (seed, epoch, span), so that any block of any pass can be read again.

The order of an epoch: the row groups are permuted and their examples concatenated; the sequence is cut into windows of
`shuffle_window` examples, and each window is permuted. Only the training split is shuffled. A pass over a span has the
same order of the span's rows: its row groups are those of the files, cut at the span's bounds.
"""

from __future__ import annotations

import numpy as np

from pipeline.records import I64


def is_shuffled(split: str, shuffle_window: int) -> bool:
    """True if the split is shuffled; otherwise examples are read in the order of the files."""
    return split == "train" and shuffle_window > 0


def group_order(num_groups: int, seed: int, epoch: int, span: int | None = None) -> I64:
    """[num_groups] numbers of the row groups in the order of this epoch, or of this pass over a span."""
    return _permutation(num_groups, seed, epoch, span, 0)


def window_order(num_examples: int, seed: int, epoch: int, window: int, span: int | None = None) -> I64:
    """[num_examples] examples of the window in their shuffled order; `window` is its number within the pass."""
    return _permutation(num_examples, seed, epoch, span, 1 + window)


def _permutation(size: int, seed: int, epoch: int, span: int | None, stream: int) -> I64:
    # Philox is counter-based: every (seed, epoch, span, stream) has its own stream, which starts at no cost. A number
    # of a span counts from 1 here, since zeros at the end of a seed sequence do not count.
    of_span = [] if span is None else [1 + span]
    bits = np.random.Philox(np.random.SeedSequence([seed, epoch, stream, *of_span]))
    return np.random.Generator(bits).permutation(size)
