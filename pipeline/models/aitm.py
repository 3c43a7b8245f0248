"""AITM, adaptive information transfer (Xi, Chen, Yan, Zhang, Zhu, Zhuang and Chen, KDD 2021). T labels. The defaults
are those of MTReclib, whose MLPs also use batch_norm and dropout 0.2. The weight of the calibrator is from the
authors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from pipeline.models.losses import binary_cross_entropy, weighted_mean
from pipeline.models.mlp import Deep, draw, mlp, side_by_side, whole, width_of, widths
from pipeline.models.shared_bottom import Towers


class AITM(nn.Module):
    """Model for labels that each presuppose the previous label, such as click and conversion. A label's MLP attends to
    information passed on by the previous one. `calibrator` weights the penalty on a label that is likelier than the
    previous one."""

    def __init__(
        self, num_fields: int, num_numbers: int, embedding_dim: int, num_labels: int = 2,
        hidden: Sequence[int] = (512, 256), tower: Sequence[int] = (128, 64), calibrator: float = 0.6,
        **deep: Unpack[Deep],
    ):  # fmt: skip
        super().__init__()
        width, self.calibrator = width_of(num_fields, num_numbers, embedding_dim), calibrator
        labels, last = whole("num_labels", num_labels, minimum=2), widths("hidden", hidden, minimum=1)[-1]
        self.bottoms = nn.ModuleList(mlp(width, hidden, out=False, **deep) for _ in range(labels))
        self.hands_on = nn.ModuleList(nn.Linear(last, last) for _ in range(labels - 1))
        self.value, self.key, self.query = (nn.Linear(last, last) for _ in range(3))
        for part in (self.hands_on, self.value, self.key, self.query):
            draw(part, deep.get("init", "torch"))
        self.towers = Towers(labels, last, tower, deep)

    def forward(self, numbers_BX: Tensor, embeddings_BFD: Tensor, first_order_BF: Tensor) -> Tensor:
        """Logits [B, T] of numbers [B, X] and embeddings [B, F, D]; first-order weights [B, 0] are not used."""
        x_BI = side_by_side(embeddings_BFD, numbers_BX)
        first, *later = (bottom(x_BI) for bottom in self.bottoms)
        inputs = [first]
        for hand_on, own_BH in zip(self.hands_on, later, strict=True):
            both_B2H = torch.stack([hand_on(inputs[-1]), own_BH], 1)
            likeness_B2 = (self.key(both_B2H) * self.query(both_B2H)).sum(2) / own_BH.shape[1] ** 0.5
            inputs.append(torch.einsum("bn,bnh->bh", likeness_B2.softmax(1), self.value(both_B2H)))
        return self.towers(inputs)

    def loss(self, output: Tensor, labels_BT: Tensor, weights: Tensor | None) -> Tensor:
        """Binary cross-entropy, summed over the labels, + calibrator * sum of max(0, p_t - p_(t-1)). With weights [B,
        T], one value per label; the penalty of label t covers the examples that have label t - 1."""
        p_BT = output.sigmoid()
        too_likely_BT = torch.cat([torch.zeros_like(p_BT[:, :1]), (p_BT[:, 1:] - p_BT[:, :-1]).relu()], 1)
        loss = binary_cross_entropy(output, labels_BT, weights)
        if weights is None or weights.ndim == 1:
            return loss + self.calibrator * weighted_mean(too_likely_BT.sum(1), weights)
        before = torch.cat([weights[:, :1], weights[:, :-1]], 1)
        return loss + self.calibrator * weighted_mean(too_likely_BT, before)
