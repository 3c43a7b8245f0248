"""Models of several labels in plain torch, from their papers' equations: nn.Embedding, torch.optim.Adam over whole
tables, probabilities and their cross-entropy. Nothing of the pipeline is used.

B examples    F fields    D embedding width    I = F * D inputs    H outputs of an expert    T labels
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy

TINY = 1e-7


@dataclass(frozen=True)
class Settings:
    """Settings shared by both sides. Experts: number in MMoE; PLE has half of them per label, and half shared."""

    batch_size: int = 512
    epochs: int = 3
    dim: int = 8
    hidden: tuple[int, ...] = (32, 16)
    tower: tuple[int, ...] = (16,)
    experts: int = 4
    calibrator: float = 0.6
    lr: float = 5e-3
    init_std: float = 0.05


class Log(NamedTuple):
    """Integer columns, with the columns of one table numbered together, and the labels."""

    ids_NS: Tensor
    """One column per single-valued field."""
    lists_NL: Tensor
    """Values of the list field, padded with -1."""
    labels_NT: Tensor


def read(
    paths: Sequence[Sequence[Any]], singles: Sequence[str], items: str, lists: str, labels: Sequence[str]
) -> tuple[list[Log], list[int]]:
    """A `Log` for each list of files, and each table's number of values. Lists share the table of `items`."""
    tables = [pa.concat_tables([pq.read_table(path) for path in of_split]) for of_split in paths]
    whole = pa.concat_tables(tables)
    flat = whole[lists].combine_chunks()
    lengths, offsets = flat.value_lengths().to_numpy(), flat.offsets.to_numpy()
    columns = {name: whole[name].to_numpy() for name in singles}
    inside = flat.flatten().to_numpy()
    ids, sizes = {}, []
    for name in singles:
        extra = inside if name == items else inside[:0]
        values, numbers = np.unique(np.concatenate([columns[name], extra]), return_inverse=True)
        ids[name], of_lists = np.split(numbers, [len(whole)])
        sizes.append(len(values))
        if name == items:
            places = np.arange(lengths.max()) + (offsets[:-1] - offsets[0])[:, None]
            padded = np.append(of_lists, -1)
            lists_NL = padded[np.where(np.arange(lengths.max()) < lengths[:, None], places, len(padded) - 1)]
    columns_NT = np.stack([whole[label].to_numpy() for label in labels], 1).astype(np.float32)
    parts = (np.stack([ids[name] for name in singles], 1), lists_NL, columns_NT)
    split_at = np.cumsum([len(table) for table in tables])[:-1]
    found = [[torch.from_numpy(part) for part in np.split(array, split_at)] for array in parts]
    return [Log(*of_split) for of_split in zip(*found, strict=True)], sizes


def net(*widths: int) -> nn.Sequential:
    """Layers of ReLU(W x + b)."""
    return nn.Sequential(*[part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())])


def tower(num_inputs: int, widths: Sequence[int]) -> nn.Sequential:
    last = (num_inputs, *widths)[-1]
    return nn.Sequential(net(num_inputs, *widths), nn.Linear(last, 1))


def probabilities(towers: nn.ModuleList, inputs: Sequence[Tensor]) -> Tensor:
    return torch.sigmoid(torch.cat([of(x_BH) for of, x_BH in zip(towers, inputs, strict=True)], 1))


class Single(nn.Module):
    """An MLP for a single label."""

    def __init__(self, num_inputs: int, num_labels: int, s: Settings) -> None:
        super().__init__()
        self.towers = nn.ModuleList([tower(num_inputs, s.hidden)])

    def forward(self, x_BI: Tensor) -> Tensor:
        return probabilities(self.towers, [x_BI])


class SharedBottom(nn.Module):
    """p_t = sigmoid(tower_t(bottom(x)))."""

    def __init__(self, num_inputs: int, num_labels: int, s: Settings) -> None:
        super().__init__()
        self.bottom = net(num_inputs, *s.hidden)
        self.towers = nn.ModuleList(tower(s.hidden[-1], s.tower) for _ in range(num_labels))

    def forward(self, x_BI: Tensor) -> Tensor:
        shared_BH = self.bottom(x_BI)
        return probabilities(self.towers, [shared_BH for _ in self.towers])


class MMoE(nn.Module):
    """p_t = sigmoid(tower_t(sum_e softmax(G_t x)_e expert_e(x)))."""

    def __init__(self, num_inputs: int, num_labels: int, s: Settings) -> None:
        super().__init__()
        self.experts = nn.ModuleList(net(num_inputs, *s.hidden) for _ in range(s.experts))
        self.gates = nn.ModuleList(nn.Linear(num_inputs, s.experts) for _ in range(num_labels))
        self.towers = nn.ModuleList(tower(s.hidden[-1], s.tower) for _ in range(num_labels))

    def forward(self, x_BI: Tensor) -> Tensor:
        experts = [expert(x_BI) for expert in self.experts]
        return probabilities(self.towers, [mixture(gate(x_BI), experts) for gate in self.gates])


def mixture(scores_BE: Tensor, experts: Sequence[Tensor]) -> Tensor:
    """[B, H] sum of the experts, weighted by the softmax of their scores."""
    shares_BE = torch.softmax(scores_BE, 1)
    return torch.stack([shares_BE[:, e : e + 1] * expert for e, expert in enumerate(experts)]).sum(0)


class PLE(nn.Module):
    """Levels of experts for each label and shared experts. A label's gate mixes that label's experts and the shared
    ones; the shared gate, which the last level lacks, mixes all."""

    def __init__(self, num_inputs: int, num_labels: int, s: Settings) -> None:
        super().__init__()
        self.half, self.num_labels = s.experts // 2, num_labels
        self.experts, self.gates = nn.ModuleList(), nn.ModuleList()
        for level, (before, width) in enumerate(pairwise((num_inputs, *s.hidden))):
            parts = num_labels + 1
            self.experts.append(nn.ModuleList(net(before, width) for _ in range(parts * self.half)))
            mixed = [2 * self.half] * num_labels + [parts * self.half] * (level < len(s.hidden) - 1)
            self.gates.append(nn.ModuleList(nn.Linear(before, size) for size in mixed))
        self.towers = nn.ModuleList(tower(s.hidden[-1], s.tower) for _ in range(num_labels))

    def forward(self, x_BI: Tensor) -> Tensor:
        inputs = [x_BI] * (self.num_labels + 1)
        for experts, gates in zip(self.experts, self.gates, strict=True):
            outputs = [expert(inputs[e // self.half]) for e, expert in enumerate(experts)]
            groups = [outputs[at : at + self.half] for at in range(0, len(outputs), self.half)]
            mixed = [own + groups[-1] for own in groups[:-1]] + [outputs]
            inputs = [mixture(gate(x), of) for gate, x, of in zip(gates, inputs, mixed, strict=False)]
        return probabilities(self.towers, inputs)


class ESMM(nn.Module):
    """p_1 = sigmoid(f(x)) and p_2 = p_1 sigmoid(g(x))."""

    def __init__(self, num_inputs: int, num_labels: int, s: Settings) -> None:
        super().__init__()
        self.towers = nn.ModuleList(tower(num_inputs, s.hidden) for _ in range(2))

    def forward(self, x_BI: Tensor) -> Tensor:
        return torch.cumprod(probabilities(self.towers, [x_BI, x_BI]), 1)


class AITM(nn.Module):
    """The second label attends to its bottom q and to the output passed on by the first label, p = W z_1: z_2 is the
    sum of V u, u in {p, q}, weighted by the softmax of <K u, Q u> / sqrt(H)."""

    def __init__(self, num_inputs: int, num_labels: int, s: Settings) -> None:
        super().__init__()
        width = s.hidden[-1]
        self.bottoms = nn.ModuleList(net(num_inputs, *s.hidden) for _ in range(2))
        self.hand_on, self.key, self.query, self.value = (nn.Linear(width, width) for _ in range(4))
        self.towers = nn.ModuleList(tower(width, s.tower) for _ in range(2))
        self.scale = width**-0.5

    def forward(self, x_BI: Tensor) -> Tensor:
        first_BH, own_BH = (bottom(x_BI) for bottom in self.bottoms)
        seen = [self.hand_on(first_BH), own_BH]
        scores_B2 = torch.stack([(self.key(u) * self.query(u)).sum(1) * self.scale for u in seen], 1)
        return probabilities(self.towers, [first_BH, mixture(scores_B2, [self.value(u) for u in seen])])


MODELS: dict[str, type[nn.Module]] = {kind.__name__: kind for kind in (Single, SharedBottom, MMoE, PLE, ESMM, AITM)}


class Tables(nn.Module):
    """A model over the embeddings of the single fields and the mean embedding of the list."""

    def __init__(self, kind: str, sizes: Sequence[int], item: int, num_labels: int, s: Settings) -> None:
        super().__init__()
        self.tables, self.item = nn.ModuleList(nn.Embedding(size, s.dim) for size in sizes), item
        for table in self.tables:
            nn.init.normal_(table.weight, std=s.init_std)
        self.model = MODELS[kind]((len(sizes) + 1) * s.dim, num_labels, s)

    def forward(self, ids_BS: Tensor, lists_BL: Tensor) -> Tensor:
        embeddings = [table(ids_BS[:, n]) for n, table in enumerate(self.tables)]
        has_BL1 = (lists_BL >= 0).float()[..., None]
        sums_BD = (self.tables[self.item](lists_BL.clamp(min=0)) * has_BL1).sum(1)
        return self.model(torch.cat([*embeddings, sums_BD / has_BL1.sum(1).clamp(min=1)], 1))


def train(kind: str, logs: Sequence[Log], sizes: Sequence[int], item: int, seed: int, s: Settings) -> list[float]:
    """Train on the first log, and return the AUC of each label on the second."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    training, test = logs
    model = Tables(kind, sizes, item, training.labels_NT.shape[1], s)
    optimizer = torch.optim.Adam(model.parameters(), lr=s.lr)
    for _ in range(s.epochs):
        for at_B in torch.randperm(len(training.labels_NT)).split(s.batch_size):
            p_BT = model(training.ids_NS[at_B], training.lists_NL[at_B]).clamp(TINY, 1 - TINY)
            loss = binary_cross_entropy(p_BT, training.labels_NT[at_B]) * p_BT.shape[1]
            if kind == "AITM":
                loss = loss + s.calibrator * torch.relu(p_BT[:, 1] - p_BT[:, 0]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.inference_mode():
        scores_NT = model(test.ids_NS, test.lists_NL).numpy()
    return [float(roc_auc_score(test.labels_NT[:, t], scores_NT[:, t])) for t in range(scores_NT.shape[1])]
