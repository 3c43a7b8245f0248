"""Losses of a batch. Every loss is a mean over the examples, weighted if there are weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, huber_loss, mse_loss

from pipeline.workflow import Task

TINY = 1e-30
Output = Tensor | tuple[Tensor, ...]
"""Output of a model: logits [B] or [B, T], in training possibly followed by other tensors for its loss."""
Loss = Callable[[Output, Tensor, Tensor | None], Tensor]
"""Loss of an output, labels [B, T] and weights [B], [B, T] or None."""


def logits_of(output: Output) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def weighted_mean(losses: Tensor, weights: Tensor | None) -> Tensor:
    """sum(weight * loss) / sum(weight) over the examples: a scalar for losses [B], one value per label [T] for losses
    [B, T]. The plain mean without weights; 0 if all weights are 0."""
    return losses.mean(0) if weights is None else (losses * weights).sum(0) / weights.sum(0).clamp_min(TINY)


def binary_cross_entropy(output: Output, labels_BT: Tensor, weights: Tensor | None) -> Tensor:
    """Mean binary cross-entropy of the examples, from logits [B] of a single label or [B, T]; for the latter, an
    example's loss is the sum over its labels. With weights [B, T] (with `data.tasks`), the mean of each label [T]."""
    logits = logits_of(output)
    if weights is not None and weights.ndim == 2:
        losses_BT = binary_cross_entropy_with_logits(logits.reshape(labels_BT.shape), labels_BT, reduction="none")
        return weighted_mean(losses_BT, weights)
    labels = labels_BT[:, 0] if logits.ndim == 1 else labels_BT
    losses = binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return weighted_mean(losses if losses.ndim == 1 else losses.sum(1), weights)


def loss_of(tasks: Sequence[Task]) -> Loss:
    """Loss for a model without `loss`. `tasks`: tasks of all labels; empty without `data.tasks`."""
    if all(task.is_binary for task in tasks):
        return binary_cross_entropy

    def mixed(output: Output, labels_BT: Tensor, weights_BT: Tensor | None) -> Tensor:
        outputs_BT = logits_of(output).reshape(labels_BT.shape)
        columns = zip(tasks, outputs_BT.unbind(1), labels_BT.unbind(1), strict=True)
        return weighted_mean(torch.stack([_losses(*column) for column in columns], 1), weights_BT)

    return mixed


def _losses(task: Task, outputs_B: Tensor, labels_B: Tensor) -> Tensor:
    """Loss of each example, [B]."""
    if task.loss == "squared":
        return mse_loss(outputs_B, labels_B, reduction="none")
    if task.loss == "huber":
        return huber_loss(outputs_B, labels_B, reduction="none", delta=task.delta)
    return binary_cross_entropy_with_logits(outputs_B, labels_B, reduction="none")
