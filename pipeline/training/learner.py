"""The dense model, its optimizer, and the training steps of a block. torch uses the embeddings' memory without a copy.

On a GPU nothing here waits: a block's losses and scores are copied to the host after its last step and read when the
caller knows that the copy is done.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pipeline.comm.collective import take_all_steps
from pipeline.comm.exchange import Exchange
from pipeline.device.device import Device, tensor_of
from pipeline.machine.threads import Threads, Whole
from pipeline.metrics.evaluation import Evaluation
from pipeline.optim.dense import clip_factor
from pipeline.optim.kstep import dense_of
from pipeline.optim.row_optimizer import RowOptimizer, WeightReader
from pipeline.optim.slab_rows import slab_rows
from pipeline.records import (
    F32,
    I32,
    Array,
    Block,
    BlockResult,
    Examples,
    FieldLayout,
    OwnedKeys,
    Plan,
    Rank,
    Staged,
    Unique,
)
from pipeline.settings.problems import defined_at
from pipeline.storage.tier import Slab
from pipeline.training.block_metrics import BlockMetrics, Truth, truth_of
from pipeline.training.build import Shape, build_model, own_model, widths_on
from pipeline.training.compiled import Compiled, DensePart, TorchDevice, made_up_inputs
from pipeline.training.embed import Embed
from pipeline.training.forward import Forward, Ragged
from pipeline.training.shares import BatchShare, SharedBatch, Together, WholeBatch, clear_unused, norm_of_all
from pipeline.training.spread import Items
from pipeline.workflow import Workflow


def seed_of_step(seed: int, step: int, rank: int = 0) -> int:
    """Seed of a worker's random numbers (dropout) for one step. torch uses the low 32 bits, so the seed is a hash."""
    of_rank = f" {rank}" if rank else ""
    return int.from_bytes(hashlib.blake2b(f"{seed} {step}{of_rank}".encode(), digest_size=4).digest(), "little")


def repeats_keys(workflow: Workflow, layout: FieldLayout) -> bool:
    """True if an example may contain a key more than once."""
    tables = [category.table_name for category in workflow.data.categories]
    return bool(layout.multi_M or layout.num_lists) or len(set(tables)) < len(tables)


ALL_ALONE = Together()


class Learner:
    """Trains or scores blocks, one at a time. Only `train` uses it."""

    def __init__(
        self, workflow: Workflow, shape: Shape, slab: Slab, evaluation: Evaluation, threads: Threads | Whole,
        device: Device, together: Together = ALL_ALONE,
    ) -> None:  # fmt: skip
        layout, row, group, schedule = shape.layout, shape.row, together.group, workflow.schedule
        self._group = group
        self._exchange = Exchange(group, row.num_weights, threads, device) if group else None
        self._device, self._torch = device, TorchDevice(device)
        with self._torch.stream():
            self.model = build_model(workflow).to(self._torch.where)
            self.dense = dense_of(self.model, workflow.optimizer, shape.steps_of_epoch, together.collective)
        self.dense_part = DensePart(self.model, self.dense, self._torch)
        self.rows = RowOptimizer(
            workflow.optimizer, slab_rows(slab, row, threads, device, workflow.seed), workflow.model.init_std, threads,
            device, repeats_keys(workflow, layout),
        )  # fmt: skip
        self._widths_F, self._max_grad_norm = widths_on(device, workflow), workflow.optimizer.max_grad_norm
        self._num_fields, self._num_labels = layout.num_fields, len(workflow.data.labels)
        self._weights_a_batch = self._num_labels if workflow.data.tasks else 1
        self._first_range: Tensor | None = None
        """Minimum and maximum output [2] of the run's first batch."""
        self._reader_of: Callable[[I32], WeightReader] | None = None
        """Makes readers of the rows used to score a block."""
        rank = Rank(group.rank, group.world) if group else Rank()
        maximum, self._full = map(rank.size_of, (shape.largest_batch, schedule.batch_size))
        self._embed = Embed(layout, row, maximum, threads, device)
        self._ragged = Ragged(workflow.data, device, Items(layout, row.embedding_dim, threads, device))
        self._forward = Forward(workflow, self.model, device, self._torch.where, maximum, self._full)
        self._compiled: Compiled | None = None
        if workflow.model.compile and not layout.num_lists:
            inputs = partial(made_up_inputs, self._forward, self._embed, self._full)
            self._compiled = Compiled(self._forward.run, inputs, self.model, self._torch, workflow)
            self._forward.of_full_batch = self._compiled
        self.block_metrics = BlockMetrics(evaluation, alone=group is None)
        self._threads, self._seed, self._progressive = schedule.threads, workflow.seed, workflow.metrics.progressive

    def save(self) -> dict[str, Array]:
        """Return the dense part, its optimizer state, and the history of learning rates, for a commit."""
        return self.dense_part.save() | self.rows.rates.save()

    def load(self, saved: Mapping[str, Array]) -> None:
        """Load what `save` returned. Raises ValueError if it belongs to another model."""
        self.dense_part.load(saved)
        self.rows.rates.load(saved)

    def prepare(self, blocks: Sequence[Block]) -> None:
        """Start compiling the dense part if compilation is enabled and not yet done, and one of these blocks has a full
        batch. Returns immediately."""
        if self._compiled and any(block.trains and block.num_examples >= block.batch_size for block in blocks):
            self._compiled.begin()

    def settle(self) -> None:
        """Wait until only the caller uses the model."""
        if self._compiled:
            self._compiled.settle()

    def close(self) -> None:
        """Release the references to row memory."""
        self.settle()
        self._reader_of = None

    def learn(
        self, plan: Plan, examples: Examples, unique: Unique, staged: Staged, owned_keys: OwnedKeys | None = None,
        weights_K: Sequence[float] = (),
    ) -> Callable[[], BlockResult]:  # fmt: skip
        """Enqueue all steps of a block, or its scoring, on the device. Returns a function that returns the block's
        result; it may be called when that work is done.

        `examples` are on the host; arrays of `plan` and `staged` are on the device. With several workers, `examples`
        and `unique` are this worker's part, `owned_keys` contains the requests of all workers for this worker's rows,
        and `weights_K` is the total example weight of each whole batch (see `Examples.batch_weights`)."""
        block = examples.block
        self._torch.run(self._set_up, block, plan, staged)
        work: Callable[..., object] = self._step if block.trains else self._score
        results = [self._torch.zeros(block.num_batches, 4)]
        evaluated = self._progressive or not block.trains
        if evaluated:
            results.append(self._torch.zeros(block.num_examples, self._num_labels))
        for batch, index in enumerate(unique.batches):
            share: BatchShare = WholeBatch(index, self._num_fields)
            if owned_keys and self._exchange:
                whole = weights_K[batch * self._weights_a_batch : (batch + 1) * self._weights_a_batch]
                share = SharedBatch(index, owned_keys.row_requests[batch], whole, self._exchange)
            self._torch.run(work, plan, staged, unique.examples or examples, share, batch, *results)
        found = [here.numpy() for here in self._torch.to_host(results)]
        truth = truth_of(examples) if evaluated else None
        scores_NT = found[1] if evaluated else None
        # The returned function keeps these records alive. Otherwise memory that the steps still use would return to
        # CuPy's pool, and `upload` could get it.
        return partial(self._found, (plan, unique, staged, owned_keys), block, found[0], scores_NT, truth)

    def _found(
        self, in_use: object, block: Block, results_K4: F32, scores_NT: F32 | None, truth: Truth | None
    ) -> BlockResult:
        try:
            return self.block_metrics.of(block, results_K4, scores_NT, truth)
        except FloatingPointError as error:
            if block.first_step or self._first_range is None or np.isfinite(results_K4[0, 0]):
                raise
            low, high = self._first_range.tolist()
            raise FloatingPointError(why_at_first(own_model(self.model), float(results_K4[0, 0]), low, high)) from error

    def _set_up(self, block: Block, plan: Plan, staged: Staged) -> None:
        if self._compiled:
            self._compiled.check()
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        self.model.train(block.trains)
        self.dense_part.show(averaged=not block.trains)
        if block.trains:
            self.rows.expect(block.first_step + block.num_batches)
        else:
            self._reader_of = self.rows.reader_of_block(staged.rows_AW, plan.rows_U, block.first_step)

    def _step(
        self, plan: Plan, staged: Staged, examples: Examples, share: BatchShare, batch: int, results_K4: Tensor,
        scores_NT: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Run one training step: forward, backward, and an update of the dense model and of the batch's rows."""
        step = plan.block.first_step + batch + 1
        rows_P = plan.rows_U[share.owned.unique_P]
        clear_unused(self.rows, rows_P, share, self._widths_F)
        self.rows.catch_up(rows_P, step - 1)
        weights_PC = self._embed.look_up(len(rows_P), self.rows.reader(rows_P))
        sums_PC = self._backward(examples, share, batch, step, weights_PC, results_K4, scores_NT)
        # Dense gradients are sent while row gradients are exchanged, and their sums while rows are updated.
        exchange = self.dense.exchanging()
        next(exchange, None)
        sums_PC = share.push_gradients(sums_PC)
        next(exchange, None)
        starts_P, examples_with_key_P = share.counts(self.rows)
        if self._max_grad_norm:
            take_all_steps(exchange)
            self.dense.regularize()
            self._clip(weights_PC, sums_PC, step, self._max_grad_norm)
        clipped_P = self.rows.update(rows_P, sums_PC, weights_PC, starts_P, examples_with_key_P, step)
        if not self._max_grad_norm:
            take_all_steps(exchange)
            self.dense.regularize()
        self.dense.step(step, batch == plan.block.num_batches - 1 and plan.block.closes_split)
        if self.rows.clips:
            results_K4[batch, 2] = tensor_of(clipped_P).sum()
            results_K4[batch, 3] = len(clipped_P)

    def _backward(
        self, examples: Examples, share: BatchShare, batch: int, step: int, weights_PC: F32, results_K4: Tensor,
        scores_NT: Tensor | None,
    ) -> F32:  # fmt: skip
        """Run forward and backward. Returns the gradients [P, C] of this worker's keys; dense gradients accumulate in
        the parameters."""
        bags_MB = examples.bags[batch]
        self.dense.zero_grad()
        wanted_PC = share.fetch(weights_PC)
        if bags_MB.shape[1] > 1:
            rank = self._group.rank if self._group else 0
            self._torch.generator.manual_seed(seed_of_step(self._seed, step, rank))
            embeddings, first = self._embed.spread(wanted_PC, share.index, bags_MB)
            embeddings.requires_grad_()
            first.requires_grad_()
            items, sequences = self._ragged.look_up(wanted_PC, share.index, examples, batch, embeddings)
            output, loss, weight = self._forward.batch_loss(examples, batch, embeddings, first, results_K4, sequences)
            if step == 1:
                self._first_range = torch.stack(torch.aminmax(output))
            if scores_NT is not None:
                _keep(output, examples.block, batch, scores_NT)
            share_of_loss = share.share_of(loss, weight)
            (share_of_loss.sum() if share_of_loss.ndim else share_of_loss).backward()
            grads = [self._device.array(_gradient(leaf)) for leaf in (embeddings, first, *items)]
            return self._embed.sum_gradients(grads[0], grads[1], share.index, bags_MB, grads[2:])
        return weights_PC[:0]

    def _clip(self, weights_PC: F32, sums_PC: F32, step: int, maximum: float) -> None:
        """Clip the gradient norm: scale the dense gradients, and set the factor by which the update scales those of
        rows."""
        dense = self.dense.gradients()
        rows = tensor_of(sums_PC).add(tensor_of(weights_PC), alpha=self.rows.rates.l2)
        rows = norm_of_all(rows, self._group)
        factor = clip_factor([*dense, rows], maximum)
        for gradient in dense:
            gradient.mul_(factor)
        self.rows.scale(step, factor)

    def _score(
        self, plan: Plan, staged: Staged, examples: Examples, share: BatchShare, batch: int, results_K4: Tensor,
        scores_NT: Tensor,
    ) -> None:  # fmt: skip
        """Score one batch: forward only."""
        assert self._reader_of, "a block is set up before it is scored"
        unique_P = share.owned.unique_P
        weights_PC = self._embed.look_up(len(unique_P), self._reader_of(unique_P))
        wanted_PC = share.fetch(weights_PC)
        if examples.bags[batch].shape[1] > 1:
            embeddings, first = self._embed.spread(wanted_PC, share.index, examples.bags[batch])
            with torch.inference_mode():
                _, sequences = self._ragged.look_up(wanted_PC, share.index, examples, batch, embeddings)
                output, *_ = self._forward.batch_loss(examples, batch, embeddings, first, results_K4, sequences)
                _keep(output, examples.block, batch, scores_NT)


def why_at_first(model: torch.nn.Module, loss: float, low: float, high: float) -> str:
    """Explain why the very first loss, before any update, is not finite: the class, the line, and the range of the
    logits, `low` to `high`."""
    name, own = type(model).__name__, getattr(model, "loss", None)
    if not math.isfinite(low + high):
        return (
            f"forward of {name}{defined_at(model.forward)} gives outputs from {low:g} to {high:g} for the "
            "first batch, before any update: correct it, or look for large values in data.numbers, or a large "
            "model.init_std"
        )
    whose = f"loss of {name}{defined_at(own)}" if own else "loss"
    return (
        f"the {whose} is {loss:g} for the first batch, before any update, where forward gives logits from {low:g} "
        f"to {high:g}: correct it for logits of this range, or look for large or negative values in data.weight"
    )


def _keep(output: Tensor, block: Block, batch: int, scores_NT: Tensor) -> None:
    """Copy a batch's outputs, [B] or [B, T], to their place among the block's outputs."""
    begin, end = block.batch_bounds(batch)
    scores_NT[begin:end] = output.reshape(end - begin, -1)


def _gradient(leaf: Tensor) -> Tensor:
    """Gradient of a leaf tensor; zeros if the model did not use it."""
    return torch.zeros_like(leaf).detach() if leaf.grad is None else leaf.grad.contiguous()
