"""The dense model, its optimizer, and the steps of a block. torch sees the embeddings' memory without a copy."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from pipeline.models.embed import Embed
from pipeline.monitor.metrics import Evaluation
from pipeline.optim.row_adam import RowAdam
from pipeline.records import F32, I32, BatchIndex, Examples, Layout, Plan, Staged
from pipeline.storage.layout import RowLayout
from pipeline.storage.slab import Slab
from pipeline.threads import Threads
from pipeline.workflow import Workflow

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


def row_layout(workflow: Workflow) -> RowLayout:
    """A model class with `first_order = True` has one more weight in every row."""
    return RowLayout(workflow.model.embedding_dim, bool(getattr(workflow.model.kind, "first_order", False)))


def binary_cross_entropy(output_B: Tensor, labels_BT: Tensor, weights_B: Tensor | None) -> Tensor:
    """sum(weight * loss) / sum(weight) of the batch, on the one label."""
    losses_B = binary_cross_entropy_with_logits(output_B, labels_BT[:, 0], reduction="none")
    return losses_B.mean() if weights_B is None else (losses_B * weights_B).sum() / weights_B.sum()


class Learner:
    """Belongs to `train`. One block at a time: `begin`, a `step` or `score` for each batch, `end`."""

    def __init__(self, workflow: Workflow, layout: Layout, device: Slab, evaluation: Evaluation) -> None:
        row = row_layout(workflow)
        threads = self._workers = Threads(workflow.schedule.threads)
        self.model = build_model(workflow)
        self._loss: Loss = getattr(self.model, "loss", binary_cross_entropy)
        dense = workflow.optimizer.dense
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=dense.lr, betas=(dense.beta1, dense.beta2), eps=dense.eps, fused=True
        )
        self._rows = RowAdam(workflow.optimizer.rows, device, threads)
        self._device = device
        self._embed = Embed(layout, row, workflow.schedule.batch_size, threads)
        self._evaluation = evaluation
        self._threads = workflow.schedule.threads
        self._seed = workflow.seed

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
        # Random numbers of a step (dropout) depend on the seed and the step, never on what ran before.
        torch.random.default_generator.manual_seed((self._seed << 32) ^ step)
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

    def close(self) -> None:
        self._workers.close()

    def _look_up(self, examples: Examples, batch: int, index: BatchIndex) -> tuple[I32, Tensor, Tensor]:
        rows_P = self._plan.rows_U[index.unique_P]
        embeddings_BFD, first_BF = self._embed.look_up(
            self._device.floats_SW, self._staged_AW, rows_P, index, examples.bags[batch]
        )
        return rows_P, torch.from_numpy(embeddings_BFD), torch.from_numpy(first_BF)

    def _batch_loss(self, examples: Examples, batch: int, embeddings: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        begin, past = examples.block.batch_bounds(batch)
        labels = torch.from_numpy(examples.labels_NT[begin:past])
        weights = None if examples.weights_N is None else torch.from_numpy(examples.weights_N[begin:past])
        output = self.model(torch.from_numpy(examples.numbers_NX[begin:past]), embeddings, first)
        loss = self._loss(output, labels, weights)
        weight = float(past - begin) if weights is None else float(weights.sum())
        value = float(loss.detach())
        if not math.isfinite(value):
            raise FloatingPointError(
                f"the loss of batch {batch} is {value}: lower optimizer.dense.lr or optimizer.rows.lr"
            )
        self._loss_sum += value * weight
        self._weight_sum += weight
        return output, loss


def _gradient(leaf: Tensor) -> F32:
    """The gradient of a leaf; zeros if the model made no use of it."""
    gradient: F32 = (torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.contiguous()).numpy()
    return gradient


def dense_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, np.ndarray]]:
    """Names and values of all parameters, buffers and optimizer state, in an order that the model fixes."""
    named = [(name, value.numpy(force=True)) for name, value in model.state_dict().items()]
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})
        named += [(f"{name}.{key}", state[key].numpy(force=True)) for key in sorted(state)]
    return named
