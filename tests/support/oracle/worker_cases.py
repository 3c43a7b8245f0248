"""Cases for tests of several workers: models, losses and every row optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from conftest import make_workflow
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from pipeline.records import StageResult
from pipeline.settings.optimizer import Adagrad, Adam, CowClip, DenseAdam, Ftrl, Optimizer, RowWiseAdagrad, Sgd
from pipeline.workflow import Workflow


class Squared(nn.Module):
    """Model with a user-defined loss: a weighted mean, as each part of a batch requires."""

    def __init__(self, num_fields: int, num_numbers: int, embedding_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_fields * embedding_dim + num_numbers, 1)

    def forward(self, numbers: Tensor, embeddings: Tensor, first_order: Tensor) -> Tensor:
        return self.linear(torch.cat([embeddings.flatten(1), numbers], 1)).squeeze(1)

    def loss(self, output: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        losses = binary_cross_entropy_with_logits(output, labels[:, 0], reduction="none") ** 2
        return losses.mean() if weights is None else (losses * weights).sum() / weights.sum()


class FirstOrder(Squared):
    """Model that uses only the rows' first-order weights, which FTRL initializes to zero."""

    first_order = True

    def forward(self, numbers: Tensor, embeddings: Tensor, first_order: Tensor) -> Tensor:
        return self.linear(numbers).squeeze(1) + first_order.sum(1)


class Normed(Squared):
    def __init__(self, num_fields: int, num_numbers: int, embedding_dim: int) -> None:
        super().__init__(num_fields, num_numbers, embedding_dim)
        self.norm = nn.BatchNorm1d(num_numbers)

    def forward(self, numbers: Tensor, embeddings: Tensor, first_order: Tensor) -> Tensor:
        return super().forward(self.norm(numbers), embeddings, first_order)


DENSE = DenseAdam(lr=0.01, l2=1e-3)
RULES = {
    "sgd": Optimizer(rows=Sgd(lr=0.05, l2=0.01), dense=DENSE),
    "adagrad": Optimizer(rows=Adagrad(lr=0.05), dense=DENSE),
    "rowwise_adagrad": Optimizer(rows=RowWiseAdagrad(lr=0.05, l2=0.01), dense=DENSE),
    "adam": Optimizer(rows=Adam(lr=0.05), dense=DENSE),
    "dense adam": Optimizer(rows=Adam(lr=0.05, l2=0.01, semantics="dense"), dense=DENSE),
    "dense sgd": Optimizer(rows=Sgd(lr=0.05, l2=0.01, semantics="dense"), dense=DENSE),
    "CowClip": Optimizer(rows=Adam(lr=0.05, clip=CowClip(r=0.1, floor="paper")), dense=DENSE),
    "dense CowClip": Optimizer(rows=Adam(lr=0.05, semantics="dense", l2=0.01, clip=CowClip(zeta=1e-3)), dense=DENSE),
    "clipped norm": Optimizer(rows=Adam(lr=0.05, l2=0.01), dense=DENSE, max_grad_norm=0.1),
    "clipped norm, dense sgd": Optimizer(rows=Sgd(lr=0.05, l2=0.01, semantics="dense"), dense=DENSE, max_grad_norm=0.1),
    "ftrl": Optimizer(rows=Ftrl(lr=0.1, l1=0.01, l2=0.01), dense=DENSE),
}


def workflow_of(root: Path, optimizer: Optimizer, **changes: Any) -> Workflow:
    if optimizer.rows.kind == "ftrl":
        changes |= {"embedding_dim": 0, "kind": FirstOrder, "args": {}}
    workflow = make_workflow(root, **({"epochs": 1} | changes))
    return workflow.model_copy(update={"optimizer": optimizer})


def ignore(done: StageResult) -> None:
    """Ignore a stage's result: the workers are inspected at the end."""
