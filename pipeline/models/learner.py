"""The dense model, its optimizer, and the steps of a block. torch sees the embeddings' memory without a copy.

On a GPU nothing here waits: a block's losses and scores are copied to the host when its last step is done, and looked
at when somebody knows that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from pipeline.device import Device
from pipeline.models.embed import Embed
from pipeline.models.tensors import make_deterministic, tensor_of, torch_device
from pipeline.monitor.metrics import Evaluation
from pipeline.optim.row_adam import RowAdam
from pipeline.optimizer import Adam, DenseAdam
from pipeline.records import F32, I32, U64, BatchIndex, Block, Examples, Layout, Plan, Progressed, Staged, Unique
from pipeline.storage.layout import RowLayout
from pipeline.storage.slab import Slab
from pipeline.threads import Threads, Whole
from pipeline.workflow import Workflow

TINY = 1e-30
Loss = Callable[[Tensor, Tensor, Tensor | None], Tensor]
Truth = tuple[F32, F32 | None, U64 | None]
"""Labels [N, T], weights [N] and groups [N] of a block."""


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


def build_optimizer(model: torch.nn.Module, adam: DenseAdam) -> torch.optim.Optimizer:
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
    """Belongs to `train`; one block at a time."""

    def __init__(
        self,
        workflow: Workflow,
        layout: Layout,
        slab: Slab,
        evaluation: Evaluation,
        threads: Threads | Whole,
        device: Device,
    ) -> None:
        row = row_layout(workflow)
        self._device, self._where = device, torch_device(device)
        self._stream: torch.cuda.Stream | None = None
        self._generator = torch.random.default_generator
        if self._where.type == "cuda":
            make_deterministic()
            self._stream = torch.cuda.ExternalStream(device.train.pointer)
            self._generator = torch.cuda.default_generators[torch.cuda.current_device()]
        self.model = build_model(workflow).to(self._where)
        self._loss: Loss = getattr(self.model, "loss", binary_cross_entropy)
        self.optimizer = build_optimizer(self.model, workflow.optimizer.dense)
        assert isinstance(workflow.optimizer.rows, Adam)
        self._rows = RowAdam(workflow.optimizer.rows, slab, threads)
        self._slab = slab
        self._embed = Embed(layout, row, workflow.schedule.batch_size, threads, device)
        self._evaluation = evaluation
        self._progressive = workflow.metrics.progressive
        self._threads = workflow.schedule.threads
        self._seed = workflow.seed
        self._precision = getattr(torch, workflow.model.precision)
        self._num_labels = len(workflow.data.labels)
        columns = (len(workflow.data.numbers), self._num_labels, 1)
        self._columns = [device.empty((workflow.schedule.batch_size, width), np.float32) for width in columns]
        self._tensors = [tensor_of(column) for column in self._columns]

    def learn(self, plan: Plan, examples: Examples, unique: Unique, staged: Staged) -> Callable[[], Progressed]:
        """Give the device every step of a block, or its scoring. What came of it may be asked for once that is done.

        `examples` are those on the host; `plan` and `staged` hold what lies on the device.
        """
        block = plan.block
        self._run(self._set_up, block.trains)
        work: Callable[..., object] = self._step if block.trains else self._score
        results = [self._empty(block.num_batches, 2)]
        evaluated = self._progressive or not block.trains
        if evaluated:
            results.append(self._empty(block.num_examples, self._num_labels))
        for batch, index in enumerate(unique.batches):
            self._run(work, plan, staged, unique.examples or examples, index, batch, *results)
        on_host = [torch.empty(result.shape, pin_memory=self._stream is not None) for result in results]
        for result, here in zip(results, on_host, strict=True):
            self._run(here.copy_, result, True)
        found = [here.numpy() for here in on_host]
        truth = self._truth(examples) if evaluated else None
        # Holds `staged`, whose memory the steps use until they are done.
        return lambda: self._found(staged.block, found, truth)

    def _run(self, work: Callable[..., object], *args: object) -> None:
        self._device.train.run(self._with_torch, work, *args)

    def _with_torch(self, work: Callable[..., object], *args: object) -> None:
        with self._torch_stream():
            work(*args)

    def _torch_stream(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream) if self._stream else nullcontext()

    def _empty(self, *shape: int) -> Tensor:
        with self._torch_stream():
            return torch.empty(shape, device=self._where)

    def _set_up(self, trains: bool) -> None:
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        self.model.train(trains)

    def _step(
        self, plan: Plan, staged: Staged, examples: Examples, index: BatchIndex, batch: int, losses_K2: Tensor,
        scores_NT: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Forward, backward, and one update of the dense model and of the batch's rows."""
        step = plan.block.first_step + batch + 1
        self._generator.manual_seed(seed_of_step(self._seed, step))
        rows_P = plan.rows_U[index.unique_P]
        embeddings, first = self._look_up(rows_P, staged, examples, index, batch)
        embeddings.requires_grad_()
        first.requires_grad_()
        output, loss = self._batch_loss(examples, batch, embeddings, first, losses_K2)
        if scores_NT is not None:
            _keep(output, plan.block, batch, scores_NT)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        grads = [self._device.array(_gradient(leaf)) for leaf in (embeddings, first)]
        sums_PC = self._embed.sum_gradients(grads[0], grads[1], index, examples.bags[batch])
        self._rows.update(rows_P, sums_PC, index.starts_P, step)

    def _score(
        self, plan: Plan, staged: Staged, examples: Examples, index: BatchIndex, batch: int, losses_K2: Tensor,
        scores_NT: Tensor,
    ) -> None:  # fmt: skip
        """Forward only."""
        embeddings, first = self._look_up(plan.rows_U[index.unique_P], staged, examples, index, batch)
        with torch.inference_mode():
            output, _ = self._batch_loss(examples, batch, embeddings, first, losses_K2)
            _keep(output, plan.block, batch, scores_NT)

    def _look_up(
        self, rows_P: I32, staged: Staged, examples: Examples, index: BatchIndex, batch: int
    ) -> tuple[Tensor, Tensor]:
        staged_AW: F32 = staged.rows_AW.view(np.float32)
        return self._embed.look_up(self._slab.floats_SW, staged_AW, rows_P, index, examples.bags[batch])

    def _batch_loss(
        self, examples: Examples, batch: int, embeddings: Tensor, first: Tensor, losses_K2: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Outputs and loss; the loss and what it weighs go into `losses_K2`."""
        begin, past = examples.block.batch_bounds(batch)
        numbers, labels, weights = self._aligned(examples, begin, past)
        output = self._forward(numbers, embeddings, first)
        loss = self._loss(output, labels, weights)
        losses_K2[batch, 0] = loss.detach()
        losses_K2[batch, 1] = past - begin if weights is None else weights.sum()
        return output, loss

    def _forward(self, numbers: Tensor, embeddings: Tensor, first: Tensor) -> Tensor:
        if self._precision is torch.float32:
            return self.model(numbers, embeddings, first)
        with torch.autocast(self._where.type, self._precision):
            output = self.model(numbers, embeddings, first)
        return output.float()

    def _aligned(self, examples: Examples, begin: int, past: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Numbers [B, X], labels [B, T] and weights [B] of a batch, each where a multiple of 64 bytes begins: where in
        its block a batch lies must not show in the bits."""
        numbers, labels, weights = (tensor[: past - begin] for tensor in self._tensors)
        numbers_BX, labels_BT, weights_B1 = (column[: past - begin] for column in self._columns)
        numbers_BX[:] = examples.numbers_NX[begin:past]
        labels_BT[:] = examples.labels_NT[begin:past]
        if examples.weights_N is None:
            return numbers, labels, None
        weights_B1[:, 0] = examples.weights_N[begin:past]
        return numbers, labels, weights[:, 0]

    def _truth(self, examples: Examples) -> Truth:
        """What a block's scores are held against; on a GPU its buffer may be read into before it is done."""
        labels_NT, weights_N, groups_N = examples.labels_NT, examples.weights_N, examples.groups_N
        if not self._device.on_gpu:
            return labels_NT, weights_N, groups_N
        return (
            labels_NT.copy(),
            None if weights_N is None else weights_N.copy(),
            None if groups_N is None else groups_N.copy(),
        )

    def _found(self, block: Block, found: Sequence[F32], truth: Truth | None) -> Progressed:
        """The block's mean loss, and the split's metrics if the block closes one of which there are metrics: of the
        training split those of the examples that this session trained on."""
        losses_K2 = found[0].astype(np.float64)
        for batch in np.flatnonzero(~np.isfinite(losses_K2[:, 0])).tolist():
            where = f"batch {block.first_batch + batch} of epoch {block.epoch}"
            loss = losses_K2[batch, 0]
            raise FloatingPointError(f"the loss of {where} is {loss}: lower optimizer.dense.lr or optimizer.rows.lr")
        if truth:
            self._evaluate(block, found[1], *truth)
        metrics = self._evaluation.result() if block.closes_split and truth else {}
        return Progressed(block, float(losses_K2.prod(1).sum()) / max(float(losses_K2[:, 1].sum()), 1e-300), metrics)

    def _evaluate(
        self, block: Block, scores_NT: F32, labels_NT: F32, weights_N: F32 | None, groups_N: U64 | None
    ) -> None:
        for batch in range(block.num_batches):
            of = slice(*block.batch_bounds(batch))
            weights_B = None if weights_N is None else weights_N[of]
            groups_B = None if groups_N is None else groups_N[of]
            self._evaluation.add(scores_NT[of], labels_NT[of], weights_B, groups_B)


def _keep(output: Tensor, block: Block, batch: int, scores_NT: Tensor) -> None:
    """Copy a batch's outputs, [B] or [B, T], to its place among the block's."""
    begin, past = block.batch_bounds(batch)
    scores_NT[begin:past] = output.detach().reshape(past - begin, -1)


def _gradient(leaf: Tensor) -> Tensor:
    """The gradient of a leaf; zeros if the model made no use of it."""
    return torch.zeros_like(leaf).detach() if leaf.grad is None else leaf.grad.contiguous()
