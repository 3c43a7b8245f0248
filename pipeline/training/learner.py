"""The dense model, its optimizer, and the steps of a block. torch sees the embeddings' memory without a copy.

On a GPU nothing here waits: a block's losses and scores are copied to the host when its last step is done, and looked
at when somebody knows that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from pipeline.comm.collective import ALONE, Collective, finish
from pipeline.comm.exchange import Exchange
from pipeline.comm.group import Group
from pipeline.device.device import Device
from pipeline.device.tensors import make_deterministic, tensor_of, torch_device
from pipeline.kernels.launch import array_library
from pipeline.machine.threads import Threads, Whole
from pipeline.monitor.metrics import Evaluation
from pipeline.optim.dense import clip_factor
from pipeline.optim.kstep import dense_of
from pipeline.optim.row_optimizer import RowOptimizer
from pipeline.records import (
    F32,
    I32,
    Array,
    Asked,
    BatchIndex,
    Block,
    Examples,
    Layout,
    Plan,
    Progressed,
    Staged,
    Unique,
    United,
)
from pipeline.storage.layout import RowLayout
from pipeline.storage.slab import Slab
from pipeline.training.block_metrics import Findings, Truth, truth_of
from pipeline.training.build import build_model
from pipeline.training.dense_state import load_dense, save_dense
from pipeline.training.embed import Embed
from pipeline.workflow import Workflow

TINY = 1e-30
OfAll = tuple[Asked, float]
"""Of a batch of several workers: what all ask of this one, and what all of its examples weigh."""
Loss = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def seed_of_step(seed: int, step: int, rank: int = 0) -> int:
    """What random numbers of a worker's step (dropout) start from; torch looks at the low 32 bits, so all are mixed."""
    of_rank = f" {rank}" if rank else ""
    return int.from_bytes(hashlib.blake2b(f"{seed} {step}{of_rank}".encode(), digest_size=4).digest(), "little")


def repeats_keys(workflow: Workflow, layout: Layout) -> bool:
    """Whether one example may hold a key more than once."""
    tables = [category.table_name for category in workflow.data.categories]
    return bool(layout.multi_M) or len(set(tables)) < len(tables)


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
        row: RowLayout,
        steps_of_epoch: int = 1,
        group: Group | None = None,
        collective: Collective = ALONE,
    ) -> None:
        """`group`: of the workers that train on parts of the same batches; `collective`: theirs for the dense part."""
        self._group = group
        self._exchange = Exchange(group, row.num_weights, threads, device) if group else None
        self._device, self._where = device, torch_device(device)
        self._stream: torch.cuda.Stream | None = None
        self._generator = torch.random.default_generator
        if self._where.type == "cuda":
            make_deterministic()
            self._stream = torch.cuda.ExternalStream(device.train.pointer)
            self._generator = torch.cuda.default_generators[torch.cuda.current_device()]
        # Otherwise nothing orders what fills them and the steps.
        with self._torch_stream():
            self.model = build_model(workflow).to(self._where)
            self.dense = dense_of(self.model, workflow.optimizer, steps_of_epoch, collective)
        self._loss: Loss = getattr(self.model, "loss", binary_cross_entropy)
        self.rows = RowOptimizer(
            workflow.optimizer, row, workflow.model.init_std, slab, threads, device, repeats_keys(workflow, layout)
        )
        self._max_grad_norm = workflow.optimizer.max_grad_norm
        self._num_fields = layout.num_fields
        self._read: tuple[F32, I32] = np.empty((0, 0), np.float32), np.empty(0, np.int32)
        """Of a block that is scored: rows, and where each of its keys is."""
        self._slab = slab
        # Of a batch that another was joined to, each worker has two examples more at most.
        most = workflow.schedule.batch_size if group is None else -(-workflow.schedule.batch_size // group.world) + 2
        self._embed = Embed(layout, row, most, threads, device)
        self.findings = Findings(evaluation, alone=group is None)
        self._progressive = workflow.metrics.progressive
        self._threads = workflow.schedule.threads
        self._seed = workflow.seed
        self._precision = getattr(torch, workflow.model.precision)
        self._num_labels = len(workflow.data.labels)
        columns = (len(workflow.data.numbers), self._num_labels, 1)
        self._columns = [device.empty((most, width), np.float32) for width in columns]
        self._tensors = [tensor_of(column) for column in self._columns]

    def save(self) -> dict[str, Array]:
        """All of it but the rows, for a commit."""
        return save_dense(self.model, self.dense.optimizer) | self.rows.rates.save()

    def load(self, saved: Mapping[str, Array]) -> None:
        """Take back what `save` gave. ValueError: it is that of another model."""
        with self._torch_stream():
            load_dense(self.model, self.dense.optimizer, saved)
        self.rows.rates.load(saved)

    def close(self) -> None:
        """Let go of the slab."""
        self._read = np.empty((0, 0), np.float32), np.empty(0, np.int32)

    def learn(
        self, plan: Plan, examples: Examples, unique: Unique, staged: Staged, united: United | None = None,
        weights_K: Sequence[float] = (),
    ) -> Callable[[], Progressed]:  # fmt: skip
        """Give the device every step of a block, or its scoring. What came of it may be asked for once that is done.

        `examples` are those on the host; `plan` and `staged` hold what lies on the device. Among several workers:
        `examples` and `unique` are of the own part, `united` is what all ask of this one's rows, and `weights_K` what
        the examples of each whole batch weigh.
        """
        block = examples.block
        self._run(self._set_up, block, plan, staged)
        work: Callable[..., object] = self._step if block.trains else self._score
        results = [self._zeros(block.num_batches, 4)]
        evaluated = self._progressive or not block.trains
        if evaluated:
            results.append(self._zeros(block.num_examples, self._num_labels))
        for batch, index in enumerate(unique.batches):
            batch_of_all = (united.asked[batch], weights_K[batch]) if united else None
            self._run(work, plan, staged, unique.examples or examples, index, batch_of_all, batch, *results)
        on_host = [torch.empty(result.shape, pin_memory=self._stream is not None) for result in results]
        for result, here in zip(results, on_host, strict=True):
            self._run(here.copy_, result, True)
        found = [here.numpy() for here in on_host]
        truth = truth_of(examples, self._device.on_gpu) if evaluated else None
        scores_NT = found[1] if evaluated else None
        in_use = plan, unique, staged, united
        # Their memory is the steps' until they are done; what is given back to CuPy, `upload` may take at once.
        return partial(self._found, in_use, block, found[0], scores_NT, truth)

    def _found(
        self, in_use: object, block: Block, results_K4: F32, scores_NT: F32 | None, truth: Truth | None
    ) -> Progressed:
        return self.findings.of(block, results_K4, scores_NT, truth)

    def _run(self, work: Callable[..., object], *args: object) -> None:
        self._device.train.run(self._with_torch, work, *args)

    def _with_torch(self, work: Callable[..., object], *args: object) -> None:
        with self._torch_stream():
            work(*args)

    def _torch_stream(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream) if self._stream else nullcontext()

    def _zeros(self, *shape: int) -> Tensor:
        with self._torch_stream():
            return torch.zeros(shape, device=self._where)

    def _set_up(self, block: Block, plan: Plan, staged: Staged) -> None:
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        self.model.train(block.trains)
        if block.trains:
            self.rows.expect(block.first_step + block.num_batches)
        else:
            self._read = self.rows.caught_up(staged.rows_AW.view(np.float32), plan.rows_U, block.first_step)

    def _step(
        self, plan: Plan, staged: Staged, examples: Examples, index: BatchIndex, of_all: OfAll | None, batch: int,
        results_K4: Tensor, scores_NT: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Forward, backward, and one update of the dense model and of the batch's rows."""
        step = plan.block.first_step + batch + 1
        owned = of_all[0].index if of_all else index
        rows_P = plan.rows_U[owned.unique_P]
        self.rows.catch_up(rows_P, step - 1)
        staged_AW: F32 = staged.rows_AW.view(np.float32)
        weights_PC = self._embed.look_up(self._slab.floats_SW, staged_AW, rows_P)
        sums_PC = self._backward(examples, index, of_all, batch, step, weights_PC, results_K4, scores_NT)
        # Dense gradients travel beside those of rows, and their sums while rows are updated.
        exchange = self.dense.exchanging()
        next(exchange, None)
        sums_PC = self._give_back(sums_PC, index, of_all)
        next(exchange, None)
        starts_P, holders_P = self._counts(index, of_all)
        if self._max_grad_norm:
            finish(exchange)
            self.dense.regularize()
            self._clip(weights_PC, sums_PC, step, self._max_grad_norm)
        clipped_P = self.rows.update(rows_P, sums_PC, weights_PC, starts_P, holders_P, step)
        if not self._max_grad_norm:
            finish(exchange)
            self.dense.regularize()
        self.dense.step(step, batch == plan.block.num_batches - 1 and plan.block.closes_split)
        if self.rows.clips:
            results_K4[batch, 2] = tensor_of(clipped_P).sum()
            results_K4[batch, 3] = len(clipped_P)

    def _backward(
        self, examples: Examples, index: BatchIndex, of_all: OfAll | None, batch: int, step: int, weights_PC: F32,
        results_K4: Tensor, scores_NT: Tensor | None,
    ) -> F32:  # fmt: skip
        """[P, C] gradients of the own part's keys; those of the dense part are left where they belong."""
        bags_MB = examples.bags[batch]
        self.dense.zero_grad()
        wanted_PC = self._fetch(weights_PC, index, of_all)
        if bags_MB.shape[1] > 1:
            self._generator.manual_seed(seed_of_step(self._seed, step, self._group.rank if self._group else 0))
            embeddings, first = self._embed.spread(wanted_PC, index, bags_MB)
            embeddings.requires_grad_()
            first.requires_grad_()
            output, loss = self._batch_loss(examples, batch, embeddings, first, results_K4)
            if scores_NT is not None:
                _keep(output, examples.block, batch, scores_NT)
            self._share_of(loss, of_all, results_K4[batch, 1]).backward()
            grads = [self._device.array(_gradient(leaf)) for leaf in (embeddings, first)]
            return self._embed.sum_gradients(grads[0], grads[1], index, bags_MB)
        return weights_PC[:0]

    def _fetch(self, weights_PC: F32, index: BatchIndex, of_all: OfAll | None) -> F32:
        """Weights of the own part's keys, from those of the rows that are one's own."""
        return self._exchange.fetch(weights_PC, of_all[0], index) if self._exchange and of_all else weights_PC

    def _give_back(self, sums_PC: F32, index: BatchIndex, of_all: OfAll | None) -> F32:
        """Gradients of the rows that are one's own, of the whole batch, from those of the own part's keys."""
        return self._exchange.give_back(sums_PC, of_all[0], index) if self._exchange and of_all else sums_PC

    def _share_of(self, loss: Tensor, of_all: OfAll | None, weight: Tensor) -> Tensor:
        """The part of the whole batch's mean loss that one's own examples are."""
        return loss * (weight / max(of_all[1], TINY)) if of_all else loss

    def _counts(self, index: BatchIndex, of_all: OfAll | None) -> tuple[I32, I32]:
        """How often the whole batch holds each key, as differences, and how many examples do."""
        if of_all is None:
            return index.starts_P, self.rows.holders(index, self._num_fields)
        asked = of_all[0]
        occurrences_P = array_library(asked.starts_P).diff(asked.starts_P)
        return asked.starts_P, asked.holders_P if self.rows.counts_holders else occurrences_P

    def _clip(self, weights_PC: F32, sums_PC: F32, step: int, most: float) -> None:
        """Scale the gradients of the dense part; those of the rows are scaled as they are used."""
        dense = self.dense.gradients()
        rows = tensor_of(sums_PC).add(tensor_of(weights_PC), alpha=self.rows.rates.l2)
        if self._group:
            # One number with the norm of the rows of all workers.
            square = torch.linalg.vector_norm(rows).double().reshape(1) ** 2
            self._group.all_reduce(square, "agreement")
            rows = square.sqrt().float()
        factor = clip_factor([*dense, rows], most)
        for gradient in dense:
            gradient.mul_(factor)
        self.rows.scale(step, factor)

    def _score(
        self, plan: Plan, staged: Staged, examples: Examples, index: BatchIndex, of_all: OfAll | None, batch: int,
        results_K4: Tensor, scores_NT: Tensor,
    ) -> None:  # fmt: skip
        """Forward only."""
        rows_SW, at_U = self._read
        staged_AW: F32 = staged.rows_AW.view(np.float32)
        owned = of_all[0].index if of_all else index
        weights_PC = self._embed.look_up(rows_SW, staged_AW, at_U[owned.unique_P])
        wanted_PC = self._fetch(weights_PC, index, of_all)
        if examples.bags[batch].shape[1] > 1:
            embeddings, first = self._embed.spread(wanted_PC, index, examples.bags[batch])
            with torch.inference_mode():
                output, _ = self._batch_loss(examples, batch, embeddings, first, results_K4)
                _keep(output, examples.block, batch, scores_NT)

    def _batch_loss(
        self, examples: Examples, batch: int, embeddings: Tensor, first: Tensor, results_K4: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Outputs and loss; the loss and what it weighs go into the first columns of `results_K4`."""
        begin, past = examples.block.batch_bounds(batch)
        numbers, labels, weights = self._aligned(examples, begin, past)
        output = self._forward(numbers, embeddings, first)
        loss = self._loss(output, labels, weights)
        results_K4[batch, 0] = loss.detach()
        results_K4[batch, 1] = past - begin if weights is None else weights.sum()
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


def _keep(output: Tensor, block: Block, batch: int, scores_NT: Tensor) -> None:
    """Copy a batch's outputs, [B] or [B, T], to its place among the block's."""
    begin, past = block.batch_bounds(batch)
    scores_NT[begin:past] = output.detach().reshape(past - begin, -1)


def _gradient(leaf: Tensor) -> Tensor:
    """The gradient of a leaf; zeros if the model made no use of it."""
    return torch.zeros_like(leaf).detach() if leaf.grad is None else leaf.grad.contiguous()
