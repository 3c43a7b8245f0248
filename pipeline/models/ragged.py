"""Ragged rows, such as the sequences that are inputs of a model: the values of B examples, V in total, concatenated
example by example without padding.

Copies and sums are each other's gradients. Both have a fixed order of additions for any number of threads: a sum adds
the values of an example one by one. torch's `index_select` adds its gradients row by row, which takes ten times as
long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class Segments:
    """Assignment of V values to B examples."""

    def __init__(self, offsets: Tensor, num_values: int) -> None:
        """`offsets`: int64 [B + 1]. Example b has values offsets[b] to offsets[b + 1] - 1."""
        self.offsets, self.num_values = offsets, num_values
        self.lengths = offsets.diff()
        if torch.compiler.is_exporting():
            # ONNX has no repeat_interleave: a value's example is the number of examples that end at or before it.
            ends = offsets.new_zeros(num_values + 1).index_add(0, offsets[1:], torch.ones_like(offsets[1:]))
            self.example_V = ends.cumsum(0)[:num_values]
            return
        examples = torch.arange(len(self.lengths), device=offsets.device)
        self.example_V = torch.repeat_interleave(examples, self.lengths, output_size=num_values)
        """Example of each value."""

    def copy(self, of_examples: Tensor) -> Tensor:
        """[V, ...] from [B, ...]: each example's numbers, repeated for each of its values."""
        if torch.compiler.is_exporting():
            return of_examples.index_select(0, self.example_V)
        return _Copy.apply(of_examples, self.example_V, self.lengths)

    def sum(self, of_values: Tensor) -> Tensor:
        """[B, ...] from [V, ...]: sum over the values of each example, 0 if it has none."""
        if torch.compiler.is_exporting():
            return of_values.new_zeros(self.lengths.shape[0], *of_values.shape[1:]).index_add(
                0, self.example_V, of_values
            )
        return _Sum.apply(of_values, self.example_V, self.lengths)

    def mean(self, of_values: Tensor) -> Tensor:
        """[B, D] from [V, D]: mean over the values of each example, 0 if it has none."""
        return self.sum(of_values) / self.lengths.clamp_min(1).unsqueeze(1)

    def softmax(self, scores_V: Tensor) -> Tensor:
        """[V] or [V, H]: softmax over the values of each example."""
        scores_V = scores_V.float() if scores_V.dtype is torch.bfloat16 else scores_V
        with torch.no_grad():
            # Subtracting an example's maximum score changes the softmax only by rounding, so it needs no gradient.
            greatest = self._max(scores_V)
        e_V = (scores_V - greatest.index_select(0, self.example_V)).exp()
        return e_V / self.copy(self.sum(e_V))

    def _max(self, scores_V: Tensor) -> Tensor:
        """Maximum score of each example; arbitrary (and unused) for an example without values."""
        if torch.compiler.is_exporting():
            lowest = scores_V.new_full((self.lengths.shape[0], *scores_V.shape[1:]), torch.finfo(scores_V.dtype).min)
            example_V = self.example_V.view(-1, *[1] * (scores_V.ndim - 1)).expand_as(scores_V)
            return lowest.scatter_reduce(0, example_V, scores_V, "amax")
        return torch.segment_reduce(scores_V, "max", lengths=self.lengths, axis=0, unsafe=True)

    def position_V(self) -> Tensor:
        """Position of each value in its example, counted from 0."""
        values = torch.arange(self.num_values, device=self.offsets.device)
        return values - self.offsets[:-1].index_select(0, self.example_V)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, of_examples: Tensor, example_V: Tensor, lengths: Tensor) -> Tensor:
        ctx.save_for_backward(example_V, lengths)
        return of_examples.index_select(0, example_V)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Sum.apply(gradient, *ctx.saved_tensors), None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, of_values: Tensor, example_V: Tensor, lengths: Tensor) -> Tensor:
        ctx.save_for_backward(example_V, lengths)
        return torch.segment_reduce(of_values.contiguous(), "sum", lengths=lengths, axis=0, unsafe=True)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Copy.apply(gradient, *ctx.saved_tensors), None, None


def rearrange(x_VD: Tensor, source_W: Tensor, target_V: Tensor) -> Tensor:
    """[W, D]: row source[w] of V rows, or zeros where source[w] is V. Row v goes to at most one place, target[v], which
    is W if it goes nowhere."""
    return _Rearrange.apply(x_VD, source_W, target_V)


class _Rearrange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_VD: Tensor, source_W: Tensor, target_V: Tensor) -> Tensor:
        ctx.save_for_backward(source_W, target_V)
        return torch.cat([x_VD, x_VD.new_zeros(1, *x_VD.shape[1:])]).index_select(0, source_W)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        source_W, target_V = ctx.saved_tensors
        return _Rearrange.apply(gradient, target_V, source_W), None, None


class TimeMajor:
    """Order of values for a recurrence: the first values of all examples, then the second values and so on, longer
    examples first, so that step t processes the first `batch_sizes[t]` examples.

    If there are no values at all, the order has one row of zeros, whose result goes nowhere. Everything before and in
    the recurrence then has zero gradients, as if an example without values were one of several. Without gradients,
    `Dice` would not take part in the backward sums for which other workers wait."""

    def __init__(self, segments: Segments) -> None:
        lengths, time_V = segments.lengths, segments.position_V()
        by_length = torch.argsort(lengths, descending=True, stable=True)
        self.rank_B = torch.empty_like(by_length)
        """Place of each example in the order by length."""
        self.rank_B[by_length] = torch.arange(len(lengths), device=lengths.device)
        sizes = torch.bincount(time_V)
        self.batch_sizes = sizes.cpu() if segments.num_values else torch.ones(1, dtype=torch.int64)
        """Number of examples at each step: int64, on the CPU."""
        self._num_with_values = int(self.batch_sizes[0]) if segments.num_values else 0
        self.by_length = by_length
        self.target_V = (sizes.cumsum(0) - sizes)[time_V] + self.rank_B[segments.example_V]
        self.source_W = torch.argsort(self.target_V) if segments.num_values else lengths.new_zeros(1)

    def order(self, x_VD: Tensor) -> Tensor:
        """Values [V, D] in the order of the recurrence, [W, D] with W = max(V, 1)."""
        return rearrange(x_VD, self.source_W, self.target_V)

    def back(self, x_WD: Tensor) -> Tensor:
        """[V, D]: values in the order of the recurrence, rearranged example by example."""
        return rearrange(x_WD, self.target_V, self.source_W)

    def back_to_examples(self, of_longest: Tensor) -> Tensor:
        """[B, D] from one row per example with values, by length; 0 for the other examples."""
        of_longest = of_longest[: self._num_with_values]
        absent = self.rank_B.clamp_max(len(of_longest))
        return rearrange(of_longest, absent, self.by_length[: len(of_longest)])


class Buckets:
    """Examples grouped by similar length and padded to the longest in the group. A bucket covers lengths 2^n + 1 to
    2^(n + 1), so at most half of its places are padding. `num_places`: number of places in all buckets."""

    def __init__(self, segments: Segments) -> None:
        lengths, offsets, num_values = segments.lengths, segments.offsets, segments.num_values
        self._masks, sources = [], []
        target_V = torch.zeros(num_values, dtype=torch.int64, device=offsets.device)
        begin, shortest, longest = 0, 1, int(lengths.max()) if len(lengths) else 0
        while shortest <= longest:
            end = 2 * shortest if shortest > 1 else 2
            at = torch.nonzero((lengths >= shortest) & (lengths <= end)).squeeze(1)
            shortest = end + 1
            if not len(at):
                continue
            of_bucket = lengths[at]
            place = torch.arange(int(of_bucket.max()), device=offsets.device)
            real = place < of_bucket.unsqueeze(1)
            source = torch.where(real, offsets[at].unsqueeze(1) + place, num_values)
            places = begin + torch.arange(source.numel(), device=offsets.device).view_as(source)
            target_V[source[real]] = places[real]
            begin += source.numel()
            sources.append(source.flatten())
            self._masks.append(real)
        self._source_W = torch.cat(sources) if sources else target_V
        self._target_V, self.num_places = target_V, begin

    def attend(self, q_VE: Tensor, k_VE: Tensor, v_VE: Tensor, heads: int, causal: bool) -> Tensor:
        """[V, E]: scaled dot-product attention of each value to the values of its example; with `causal`, only to
        values up to itself."""
        if not self._masks:
            return v_VE
        all_W3E = rearrange(torch.stack([q_VE, k_VE, v_VE], 1), self._source_W, self._target_V)
        outs = []
        for real, of_bucket in zip(self._masks, all_W3E.split([real.numel() for real in self._masks]), strict=True):
            num, longest = real.shape
            q, k, v = of_bucket.view(num, longest, 3, heads, -1).permute(2, 0, 3, 1, 4)
            mask = real[:, None, None, :].expand(num, 1, longest, longest)
            if causal:
                mask = mask & mask.new_ones(longest, longest).tril()
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            outs.append(out.transpose(1, 2).reshape(num * longest, -1))
        return rearrange(torch.cat(outs), self._target_V, self._source_W)


@dataclass(frozen=True)
class SequenceValues:
    """A sequence of a batch of B examples. Its V items are concatenated example by example, oldest first."""

    items: dict[str, Tensor]
    """Embeddings [V, D] of the values of each list column, float32."""
    offsets: Tensor
    """int64 [B + 1]. Example b has items offsets[b] to offsets[b + 1] - 1."""
    numbers: dict[str, Tensor]
    """Values [V] of each list of numbers, float32."""
    candidate: dict[str, Tensor]
    """Embeddings [B, D] of the candidate, by the list column whose table it shares, float32."""
