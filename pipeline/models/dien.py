"""DIEN, deep interest evolution network (Zhou, Mou, Fan, Pi, Bian, Zhou, Zhu and Gai, AAAI 2019). The defaults are
those of BARS on Amazon reviews, whose MLP also uses batch_norm and dropout 0.1. BARS uses no auxiliary loss; in the
authors' code its weight is 1."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.nn.utils.rnn import PackedSequence

from pipeline.models.din import AttentionUnit, UnitAndDeep, take_unit
from pipeline.models.history import History, HistoryModel, Sizes
from pipeline.models.losses import Output, binary_cross_entropy, weighted_mean
from pipeline.models.mlp import at_least_zero, draw, mlp, one_of
from pipeline.models.ragged import SequenceValues, TimeMajor

GATES = ("augru", "agru", "aigru")


class DIEN(HistoryModel):
    """One recurrent network finds an example's interest at each value; a second one models the evolution of the
    interests related to the candidate. `auxiliary` weights the loss for distinguishing an example's next value from
    another one."""

    def __init__(
        self, num_fields: int, num_numbers: int, embedding_dim: int, sequences: Sizes,
        hidden: Sequence[int] = (1024, 512, 256), attention: Sequence[int] = (256, 128), gate: str = "augru",
        auxiliary: float = 0.0, **others: Unpack[UnitAndDeep],
    ):  # fmt: skip
        pool = partial(
            Evolution, unit=take_unit(attention, others), gate=one_of("gate", gate, GATES),
            init=others.get("init", "torch"), is_taught=bool(auxiliary),
        )  # fmt: skip
        super().__init__(num_fields, num_numbers, embedding_dim, sequences, pool, hidden, others)
        self.auxiliary = at_least_zero("auxiliary", auxiliary)
        if auxiliary:
            self.loss = partial(loss_of_both, auxiliary)

    def forward(  # type: ignore[override]
        self, numbers_BX: Tensor, embeddings_BFD: Tensor, first_order_BF: Tensor, sequences: dict[str, SequenceValues]
    ) -> Output:
        """Logits [B], as in `HistoryModel`; in training with an auxiliary loss, also that loss for each example [B]."""
        pools: list[Any] = [*self.pools]
        histories = self.histories(sequences)
        interests = [pool.interests(history) for pool, history in zip(pools, histories, strict=True)]
        given = [*zip(pools, histories, interests, strict=True)]
        logits_B = self.logits(numbers_BX, embeddings_BFD, [pool(history, h_VE) for pool, history, h_VE in given])
        if not self.auxiliary or not self.training:
            return logits_B
        return logits_B, sum((pool.mistakes(history, h_VE) for pool, history, h_VE in given), 0 * logits_B)


def loss_of_both(auxiliary: float, output: Output, labels_BT: Tensor, weights: Tensor | None) -> Tensor:
    """L + auxiliary * mean of the examples' auxiliary losses."""
    loss = binary_cross_entropy(output, labels_BT, weights)
    if isinstance(output, Tensor):
        return loss
    return loss + auxiliary * weighted_mean(output[1].view(labels_BT.shape if loss.ndim else -1), weights)


class Evolution(nn.Module):
    def __init__(
        self, width: int, num_numbers: int, unit: partial[AttentionUnit], gate: str, init: str, is_taught: bool
    ):
        super().__init__()
        self.width, self.gate = width, gate
        self.interest = nn.GRU(width + num_numbers, width)
        self.unit = unit(width, 0)
        self.evolution = nn.GRU(width, width) if gate == "aigru" else AttentionalGRU(width, gate, init)
        self.teller = mlp(2 * width, (100, 50), activation="sigmoid", init=init) if is_taught else None

    def interests(self, history: History) -> Tensor:
        """[V, E]: the state after each value."""
        return history.time.back(run(self.interest, history.inputs_VI, history.time)[0])

    def forward(self, history: History, h_VE: Tensor) -> Tensor:
        """[B, E]: the last state of the evolving interest."""
        time, no_numbers = history.time, history.numbers_VN[:, :0]
        a_V1 = self.unit(h_VE, history.candidate_BE, no_numbers, history.segments).unsqueeze(1)
        if isinstance(self.evolution, AttentionalGRU):
            return time.back_to_examples(self.evolution(h_VE, a_V1, time))
        return time.back_to_examples(run(self.evolution, a_V1 * h_VE, time)[1])

    def mistakes(self, history: History, h_VE: Tensor) -> Tensor:
        """[B]: mean, over all values of an example except the last, of -log s(h, next) - log(1 - s(h, other)), where s
        is the sigmoid of an MLP and `other` is drawn from the values of the batch."""
        assert self.teller, "it is made with an auxiliary loss"
        e_VE, segments = history.items_VE, history.segments
        is_last_V = segments.position_V() == segments.copy(segments.lengths) - 1
        other_VE = e_VE[torch.randint(max(1, len(e_VE)), (len(e_VE),), device=e_VE.device)]
        of_next_V, of_other_V = (
            self.teller(torch.cat([h_VE, of_VE], 1)).squeeze(1) for of_VE in (e_VE.roll(-1, 0), other_VE)
        )
        losses_V = (softplus(-of_next_V) + softplus(of_other_V)).masked_fill(is_last_V, 0.0)
        return segments.sum(losses_V) / (segments.lengths - 1).clamp_min(1)


def run(gru: nn.GRU, x_VI: Tensor, time: TimeMajor) -> tuple[Tensor, Tensor]:
    """States for inputs [V, I], in the order of `time`, and last states of the examples that have values, by length."""
    states, last = gru(PackedSequence(time.order(x_VI), time.batch_sizes))
    return states.data, last[0]


class AttentionalGRU(nn.Module):
    """GRU whose update gate is the attention ("agru") or is multiplied by it ("augru")."""

    def __init__(self, width: int, gate: str, init: str):
        super().__init__()
        self.of_input, self.of_state = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)
        self.has_gate = gate == "augru"
        draw(self, init)

    def forward(self, x_VE: Tensor, a_V1: Tensor, time: TimeMajor) -> Tensor:
        """Last states for inputs [V, E] and attention [V, 1] of the examples that have values, by length."""
        sizes = time.batch_sizes.tolist()
        h, ended = x_VE.new_zeros(sizes[0], x_VE.shape[1]), []
        of_x, of_a = time.order(self.of_input(x_VE)).split(sizes), time.order(a_V1).split(sizes)
        for at_x, a in zip(of_x, of_a, strict=True):
            if len(at_x) < len(h):
                ended.append(h[len(at_x) :])
                h = h[: len(at_x)]
            u_x, r_x, c_x = at_x.chunk(3, 1)
            u_h, r_h, c_h = self.of_state(h).chunk(3, 1)
            candidate = torch.tanh(c_x + torch.sigmoid(r_x + r_h) * c_h)
            u = a * torch.sigmoid(u_x + u_h) if self.has_gate else a
            h = (1 - u) * h + u * candidate
        return torch.cat([h, *reversed(ended)])
