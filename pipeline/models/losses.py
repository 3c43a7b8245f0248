"""Losses of a batch. Every loss is a mean over the examples, weighted if there are weights."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

TINY = 1e-30
Output = Tensor | tuple[Tensor, ...]
"""Output of a model: logits [B] or [B, T], in training possibly with other tensors after them, for its loss."""


def logits_of(output: Output) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def weighted_mean(losses: Tensor, weights: Tensor | None) -> Tensor:
    """sum(weight * loss) / sum(weight) over the examples, of losses [B] a scalar, of [B, T] one for each label [T]; the
    plain mean without weights; 0 if all weights are 0."""
    return losses.mean(0) if weights is None else (losses * weights).sum(0) / weights.sum(0).clamp_min(TINY)


def binary_cross_entropy(output: Output, labels_BT: Tensor, weights: Tensor | None) -> Tensor:
    """Mean binary cross-entropy of the examples: of logits [B] of a single label, or of [B, T]; an example's loss is
    then the sum over its labels. With weights [B, T], those of `data.tasks`, the mean of each label [T]."""
    logits = logits_of(output)
    if weights is not None and weights.ndim == 2:
        losses_BT = binary_cross_entropy_with_logits(logits.reshape(labels_BT.shape), labels_BT, reduction="none")
        return weighted_mean(losses_BT, weights)
    labels = labels_BT[:, 0] if logits.ndim == 1 else labels_BT
    losses = binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return weighted_mean(losses if losses.ndim == 1 else losses.sum(1), weights)
