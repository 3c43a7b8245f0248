"""The dense model, its optimizer, and the steps of a block. torch sees the embeddings' memory without a copy."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from pipeline.memory import aligned_empty
from pipeline.models.embed import Embed
from pipeline.monitor.metrics import Evaluation
from pipeline.optim.row_adam import RowAdam
from pipeline.records import F32, I32, BatchIndex, Examples, Layout, Plan, Staged
from pipeline.storage.layout import RowLayout
from pipeline.storage.slab import Slab
from pipeline.threads import Threads
from pipeline.workflow import Adam, Workflow

TINY = 1e-30
Loss = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def build_model(workflow: Workflow) -> torch.nn.Module:
    """The workflow's model with initial weights that its seed alone fixes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(workflow.seed)
        model: torch.nn.Module = workflow.model.kind(
            num_fields=len(workflow.data.categories),
            num_numbers=len(workflow.data.numbers),
            embedding_dim=workflow.model.embedding_dim,
            **workflow.model.args,
        )
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"it makes a {type(model).__name__}, not a torch.nn.Module")
    return model


def build_optimizer(model: torch.nn.Module, adam: Adam) -> torch.optim.Optimizer:
    """Adam on the dense part; a model that is nothing but its rows has one that does nothing."""
    parameters = list(model.parameters()) or [torch.nn.Parameter(torch.empty(0))]
    return torch.optim.Adam(parameters, lr=adam.lr, betas=(adam.beta1, adam.beta2), eps=adam.eps, fused=True)


def seed_of_step(seed: int, step: int) -> int:
    """What random numbers of a step (dropout) start from; torch looks at the low 32 bits, so all are mixed."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {step}".encode(), digest_size=4).digest(), "little")


def row_layout(workflow: Workflow) -> RowLayout:
    """A model class with `first_order = True` has one more weight in every row."""
    return RowLayout(workflow.model.embedding_dim, bool(getattr(workflow.model.kind, "first_order", False)))


def binary_cross_entropy(output_B: Tensor, labels_BT: Tensor, weights_B: Tensor | None) -> Tensor:
    """sum(weight * loss) / sum(weight) of the batch, on the one label; 0 where all weights are 0."""
    losses_B = binary_cross_entropy_with_logits(output_B, labels_BT[:, 0], reduction="none")
    return losses_B.mean() if weights_B is None else (losses_B * weights_B).sum() / weights_B.sum().clamp_min(TINY)


class Learner:
    """Belongs to `train`. One block at a time: `begin`, a `step` or `score` for each batch, `end`."""

    def __init__(
        self, workflow: Workflow, layout: Layout, device: Slab, evaluation: Evaluation, threads: Threads
    ) -> None:
        row = row_layout(workflow)
        self.model = build_model(workflow)
        self._loss: Loss = getattr(self.model, "loss", binary_cross_entropy)
        self.optimizer = build_optimizer(self.model, workflow.optimizer.dense)
        self._rows = RowAdam(workflow.optimizer.rows, device, threads)
        self._device = device
        self._embed = Embed(layout, row, workflow.schedule.batch_size, threads)
        self._evaluation = evaluation
        self._threads = workflow.schedule.threads
        self._seed = workflow.seed
        columns = (len(workflow.data.numbers), len(workflow.data.labels), 1)
        self._columns = [aligned_empty((workflow.schedule.batch_size, width), np.float32) for width in columns]

    def begin(self, plan: Plan, staged: Staged) -> None:
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        self._plan = plan
        self._staged_AW: F32 = staged.rows_AW.view(np.float32)
        self._loss_sum = self._weight_sum = 0.0
        self.model.train(plan.block.trains)

    def step(self, examples: Examples, batch: int, index: BatchIndex) -> None:
        """Forward, backward, and one update of the dense model and of the batch's rows."""
        step = self._plan.block.first_step + batch + 1
        torch.random.default_generator.manual_seed(seed_of_step(self._seed, step))
        rows_P, embeddings, first = self._look_up(examples, batch, index)
        embeddings.requires_grad_()
        first.requires_grad_()
        loss = self._batch_loss(examples, batch, embeddings, first)[1]
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        sums_PC = self._embed.sum_gradients(_gradient(embeddings), _gradient(first), index, examples.bags[batch])
        self._rows.update(rows_P, sums_PC, index.starts_P, step)

    def score(self, examples: Examples, batch: int, index: BatchIndex) -> None:
        """Forward only; outputs and labels go into the metrics."""
        _, embeddings, first = self._look_up(examples, batch, index)
        with torch.inference_mode():
            output, _ = self._batch_loss(examples, batch, embeddings, first)
        begin, past = examples.block.batch_bounds(batch)
        weights_B = None if examples.weights_N is None else examples.weights_N[begin:past]
        scores_BT = output.numpy().reshape(past - begin, -1)
        self._evaluation.add(scores_BT, examples.labels_NT[begin:past], weights_B)

    def end(self) -> tuple[float, dict[str, float]]:
        """The block's mean loss, and the split's metrics if the block closes an evaluated split."""
        block = self._plan.block
        metrics = self._evaluation.result() if block.closes_split and not block.trains else {}
        return self._loss_sum / max(self._weight_sum, 1e-300), metrics

    def _look_up(self, examples: Examples, batch: int, index: BatchIndex) -> tuple[I32, Tensor, Tensor]:
        rows_P = self._plan.rows_U[index.unique_P]
        embeddings_BFD, first_BF = self._embed.look_up(
            self._device.floats_SW, self._staged_AW, rows_P, index, examples.bags[batch]
        )
        return rows_P, torch.from_numpy(embeddings_BFD), torch.from_numpy(first_BF)

    def _batch_loss(self, examples: Examples, batch: int, embeddings: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        begin, past = examples.block.batch_bounds(batch)
        numbers, labels, weights = self._aligned(examples, begin, past)
        output = self.model(numbers, embeddings, first)
        loss = self._loss(output, labels, weights)
        self._add_loss(float(loss.detach()), float(past - begin) if weights is None else float(weights.sum()), batch)
        return output, loss

    def _aligned(self, examples: Examples, begin: int, past: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Numbers [B, X], labels [B, T] and weights [B] of a batch, each where a multiple of 64 bytes begins: where in
        its block a batch lies must not show in the bits."""
        numbers_BX, labels_BT, weights_B1 = (column[: past - begin] for column in self._columns)
        numbers_BX[:] = examples.numbers_NX[begin:past]
        labels_BT[:] = examples.labels_NT[begin:past]
        if examples.weights_N is None:
            return torch.from_numpy(numbers_BX), torch.from_numpy(labels_BT), None
        weights_B1[:, 0] = examples.weights_N[begin:past]
        return torch.from_numpy(numbers_BX), torch.from_numpy(labels_BT), torch.from_numpy(weights_B1[:, 0])

    def _add_loss(self, loss: float, weight: float, batch: int) -> None:
        block = self._plan.block
        where = f"batch {block.first_batch + batch} of epoch {block.epoch}"
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss of {where} is {loss}: lower optimizer.dense.lr or optimizer.rows.lr")
        self._loss_sum += loss * weight
        self._weight_sum += weight


def _gradient(leaf: Tensor) -> F32:
    """The gradient of a leaf; zeros if the model made no use of it."""
    gradient: F32 = (torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.contiguous()).numpy()
    return gradient
