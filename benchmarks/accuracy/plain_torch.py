"""Reference for runs with dense semantics: plain torch, with every row of every table in memory and updated at every
step.

It uses nn.Embedding with torch.optim.Adam over all of it, L2 gradients added to whole tables, torch's gradient
clipping, reduction on plateau, early stopping, and scikit-learn's metrics. It shares with the pipeline only what makes
two runs comparable: the model's class and initial weights, the initial weights of a key, and the order of examples.

N examples    F fields    K keys of all fields and splits    D embedding width
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from pipeline.data import order
from pipeline.kernels.hashing import hash_integers, table_salt
from pipeline.kernels.init_rows import init_rows
from pipeline.settings import SPLITS
from pipeline.settings.optimizer import Adam, Plateau
from pipeline.training.build import build_model
from pipeline.workflow import Data, Workflow

BETTER = 1e-6
FIRST_WEIGHT = 2
"""Index of the first weight in a row of `init_rows`, after the words of the key."""


class Split(NamedTuple):
    ids_NF: Tensor
    labels_N: Tensor
    group_sizes: list[int]


def read_split(data: Data, split: str) -> tuple[NDArray[np.uint64], Tensor, list[int]]:
    """[N, F] keys, [N] labels and the number of examples of each row group. Raises ValueError if a column does not
    contain integers."""
    files = [pq.ParquetFile(path) for pattern in getattr(data, split) for path in sorted(Path(data.root).glob(pattern))]
    sizes = [file.metadata.row_group(g).num_rows for file in files for g in range(file.num_row_groups)]
    table = pa.concat_tables(file.read() for file in files)
    keys_NF = np.empty((len(table), len(data.categories)), np.uint64)
    for f, category in enumerate(data.categories):
        column = table[category.name]
        if column.null_count or not pa.types.is_integer(column.type):
            raise ValueError(f"{split}, column {category.name}: plain torch reads integers without nulls")
        keys_N = np.empty(len(table), np.uint64)
        hash_integers(column.to_numpy(), table_salt(category.table_name), keys_N)
        keys_NF[:, f] = keys_N
    labels_N = table[data.labels[0]].to_numpy().astype(np.float32)
    return keys_NF, torch.from_numpy(labels_N), [size for size in sizes if size]


def first_weights(workflow: Workflow, keys_K: NDArray[np.uint64]) -> Tensor:
    """[K, D] initial weights of the keys, from the workflow's seed."""
    model = workflow.model
    rows_KW = np.empty((len(keys_K), FIRST_WEIGHT + model.embedding_dim), np.uint32)
    init_rows(keys_K, np.uint64(workflow.seed), model.init_std, model.embedding_dim, rows_KW)
    return torch.from_numpy(rows_KW.view(np.float32)[:, FIRST_WEIGHT:].copy())


class Tables(nn.Module):
    """The model with a table of embeddings and, if it uses them, one of first-order weights."""

    def __init__(self, workflow: Workflow, keys_K: NDArray[np.uint64]) -> None:
        super().__init__()
        self.dense = build_model(workflow)
        self.embedding = nn.Embedding.from_pretrained(first_weights(workflow, keys_K), freeze=False)
        width = int(getattr(workflow.model.kind, "first_order", False))
        self.first_order = nn.Embedding.from_pretrained(torch.zeros(len(keys_K), width), freeze=False)

    def forward(self, ids_BF: Tensor) -> Tensor:
        """[B] logits."""
        first_BF = self.first_order(ids_BF).flatten(1)
        return self.dense(torch.empty(len(ids_BF), 0), self.embedding(ids_BF), first_BF)


class PlainTorch:
    """Trainer with all settings of the workflow. Raises ValueError for a setting that it does not implement."""

    def __init__(self, workflow: Workflow) -> None:
        rows, dense = workflow.optimizer.rows, workflow.optimizer.dense
        if not isinstance(rows, Adam) or rows.clip or "keras" in (rows.eps_place, dense.eps_place):
            raise ValueError("plain torch supports only Adam with torch's eps, for rows and dense part, no CowClip")
        if dense.warm_up_epochs or workflow.data.numbers or workflow.data.weight or len(workflow.data.labels) > 1:
            raise ValueError("plain torch supports no warm-up, numbers, example weights or several labels")
        torch.set_num_threads(workflow.schedule.threads)
        torch.manual_seed(workflow.seed)
        self._workflow = workflow
        there = [split for split in SPLITS if getattr(workflow.data, split)]
        read = {split: read_split(workflow.data, split) for split in there}
        keys_K, ids = np.unique(np.concatenate([keys_NF for keys_NF, *_ in read.values()]), return_inverse=True)
        ids_NF = torch.from_numpy(ids.reshape(-1, len(workflow.data.categories)))
        parts = ids_NF.split([len(keys_NF) for keys_NF, *_ in read.values()])
        self._splits = {split: Split(part, *read[split][1:]) for split, part in zip(there, parts, strict=True)}
        self.model = Tables(workflow, keys_K)
        tables = [*self.model.embedding.parameters(), *self.model.first_order.parameters()]
        groups = [{"params": tables, "lr": rows.lr, "betas": (rows.beta1, rows.beta2), "eps": rows.eps, "l2": rows.l2}]
        if parameters := list(self.model.dense.parameters()):
            betas = dense.beta1, dense.beta2
            groups += [{"params": parameters, "lr": dense.lr, "betas": betas, "eps": dense.eps, "l2": dense.l2}]
        self._optimizer = torch.optim.Adam(groups)

    def train(self) -> dict[str, Any]:
        """Train. Returns test AUC and logloss with the weights of the best epoch, and the history of the training."""
        plateau = self._workflow.schedule.plateau or Plateau()
        epochs: list[dict[str, float]] = []
        best, best_epoch, stale, kept = -math.inf, 0, 0, self.model.state_dict()
        for epoch in range(self._workflow.schedule.epochs):
            for _ in self.steps(epoch):
                pass
            epochs.append(self.evaluate("validation"))
            value = epochs[-1]["auc"] if plateau.metric == "auc" else -epochs[-1]["logloss"]
            if value > best + BETTER:
                best, best_epoch, stale, kept = value, epoch + 1, 0, copy.deepcopy(self.model.state_dict())
                continue
            if not math.isfinite(value):
                continue
            stale += 1
            for group in self._optimizer.param_groups:
                group["lr"] = min(group["lr"], max(group["lr"] * plateau.lr_factor, plateau.lr_floor))
            if stale == plateau.stop_after:
                break
        self.model.load_state_dict(kept)
        return {**self.evaluate("test"), "best_epoch": best_epoch, "epochs": epochs}

    def losses(self, num_steps: int) -> list[float]:
        """Losses of the first `num_steps` steps."""
        found: list[float] = []
        for epoch in range(self._workflow.schedule.epochs):
            found += self.steps(epoch)
        return found[:num_steps]

    def steps(self, epoch: int) -> Iterator[float]:
        """Train an epoch, and yield the loss of each batch."""
        self.model.train()
        ids_NF, labels_N, sizes = self._splits["train"]
        order_N = torch.from_numpy(self._order(sizes, epoch))
        for at_B in order_N.split(self._workflow.schedule.batch_size):
            yield self.step(ids_NF[at_B], labels_N[at_B])

    def _order(self, group_sizes: list[int], epoch: int) -> NDArray[np.int64]:
        """[N] examples in the order of the epoch: row groups are permuted, then the examples of each window."""
        window, seed = self._workflow.data.shuffle_window, self._workflow.seed
        groups = np.split(np.arange(sum(group_sizes)), np.cumsum(group_sizes)[:-1])
        if not window:
            return np.concatenate(groups)
        line = np.concatenate([groups[g] for g in order.group_order(len(groups), seed, epoch)])
        windows = np.split(line, range(window, len(line), window))
        return np.concatenate([part[order.window_order(len(part), seed, epoch, w)] for w, part in enumerate(windows)])

    def step(self, ids_BF: Tensor, labels_B: Tensor) -> float:
        """Train on a batch, and return its loss before the update."""
        self._optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(self.model(ids_BF), labels_B)
        loss.backward()
        for group in self._optimizer.param_groups:
            for parameter in (p for p in group["params"] if p.grad is not None):
                # L2 is added before the clipping; weight_decay would add it afterwards.
                parameter.grad.add_(parameter.detach(), alpha=group["l2"])
        if self._workflow.optimizer.max_grad_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), self._workflow.optimizer.max_grad_norm)
        self._optimizer.step()
        return float(loss.detach())

    @torch.inference_mode()
    def evaluate(self, split: str) -> dict[str, float]:
        """AUC and logloss of a split."""
        self.model.eval()
        ids_NF, labels_N, _ = self._splits[split]
        logits_N = torch.cat([self.model(ids_BF) for ids_BF in ids_NF.split(self._workflow.schedule.batch_size)])
        scores_N = torch.sigmoid(logits_N.double())
        return {"auc": float(roc_auc_score(labels_N, scores_N)), "logloss": float(log_loss(labels_N, scores_N))}
