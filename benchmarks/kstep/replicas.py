"""Data-parallel training with many workers in one process: one table of rows, updated once per step with the whole
batch's gradient, and a replica of the dense model for each worker, with this package's optimizer.

N examples    B examples of the whole batch    F fields    K keys of all splits    D embedding width
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, embedding

from benchmarks.accuracy.plain_torch import first_weights, read_split
from benchmarks.kstep.in_process import in_process, together
from pipeline.comm.collective import take_all_steps
from pipeline.optim.kstep import KStepDense, dense_of
from pipeline.training.build import build_model
from pipeline.workflow import Workflow

SPLITS = ("train", "test")


class Replicas:
    def __init__(self, workflow: Workflow, num_workers: int) -> None:
        torch.set_num_threads(workflow.schedule.threads)
        self._workflow = workflow
        read = [read_split(workflow.data, split) for split in SPLITS]
        keys_K, ids = np.unique(np.concatenate([keys_NF for keys_NF, *_ in read]), return_inverse=True)
        ids_NF = torch.from_numpy(ids.reshape(-1, len(workflow.data.categories)))
        self._ids = dict(zip(SPLITS, ids_NF.split([len(keys_NF) for keys_NF, *_ in read]), strict=True))
        self._labels = dict(zip(SPLITS, (labels_N for _, labels_N, _ in read), strict=True))
        weights_KD = first_weights(workflow, keys_K)
        # First-order weights follow the embedding, as in this package's rows.
        self._rows_KC = torch.nn.functional.pad(weights_KD, (0, 1)).requires_grad_()
        self._rows_optimizer = torch.optim.Adam([self._rows_KC], lr=workflow.optimizer.rows.lr, fused=True)
        self._num_steps = 0
        self._models = [build_model(workflow) for _ in range(num_workers)]
        self._steps_of_epoch = -(-len(self._labels["train"]) // workflow.schedule.batch_size)
        self.collectives = in_process(num_workers)
        self._denses = [
            dense_of(model, workflow.optimizer, self._steps_of_epoch, collective)
            for model, collective in zip(self._models, self.collectives, strict=True)
        ]

    def train(self) -> dict[str, Any]:
        """Train. Returns test AUC and logloss after every epoch, and the traffic that worker 0 sent."""
        started = time.process_time()
        epochs = []
        for epoch in range(self._workflow.schedule.epochs):
            self._train_epoch(epoch)
            epochs.append(self._evaluate())
        return epochs[-1] | {
            "epochs": epochs,
            "steps": self._num_steps,
            "bytes": self.collectives[0].bytes,
            "messages": self.collectives[0].messages,
            "cpu_seconds": time.process_time() - started,
        }

    def _train_epoch(self, epoch: int) -> None:
        for model in self._models:
            model.train()
        rng = np.random.default_rng((self._workflow.seed, epoch))
        order_N = torch.from_numpy(rng.permutation(len(self._labels["train"])))
        for number, at_B in enumerate(order_N.split(self._workflow.schedule.batch_size), 1):
            self._num_steps += 1
            self._step(self._ids["train"][at_B], self._labels["train"][at_B], number == self._steps_of_epoch)

    def _step(self, ids_BF: Tensor, labels_B: Tensor, last_of_epoch: bool) -> None:
        self._rows_optimizer.zero_grad()
        for dense in self._denses:
            dense.zero_grad()
        parts = zip(
            self._models, ids_BF.tensor_split(len(self._models)), labels_B.tensor_split(len(self._models)), strict=True
        )
        losses = [
            binary_cross_entropy_with_logits(self._score(model, ids), labels, reduction="sum")
            for model, ids, labels in parts
        ]
        (torch.stack(losses).sum() / len(labels_B)).backward()
        self._rows_optimizer.step()
        self._step_dense(last_of_epoch)

    def _step_dense(self, last_of_epoch: bool) -> None:
        step = self._num_steps

        def work(worker: int) -> None:
            dense = self._denses[worker]
            take_all_steps(dense.exchanging())
            dense.regularize()
            dense.step(step, last_of_epoch)

        first = self._denses[0]
        if isinstance(first, KStepDense) and not first.merges(step, last_of_epoch):
            for worker in range(len(self._denses)):
                work(worker)
        else:
            together([lambda worker=worker: work(worker) for worker in range(len(self._denses))])

    def _score(self, model: torch.nn.Module, ids_BF: Tensor) -> Tensor:
        """[B] logits."""
        rows_BFC = embedding(ids_BF, self._rows_KC)
        scores_B: Tensor = model(torch.empty(len(ids_BF), 0), rows_BFC[..., :-1], rows_BFC[..., -1])
        return scores_B

    @torch.inference_mode()
    def _evaluate(self) -> dict[str, float | None]:
        """Metrics of worker 0's model, which is the merged one at the end of an epoch; None if it has diverged."""
        model = self._models[0].eval()
        logits_N = torch.cat([self._score(model, ids_BF) for ids_BF in self._ids["test"].split(4096)])
        scores_N: NDArray[np.float64] = torch.sigmoid(logits_N.double()).numpy()
        labels_N = self._labels["test"]
        if not np.isfinite(scores_N).all():
            return {"auc": None, "logloss": None}
        return {"auc": float(roc_auc_score(labels_N, scores_N)), "logloss": float(log_loss(labels_N, scores_N))}
