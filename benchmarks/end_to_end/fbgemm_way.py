"""DeepFM with FBGEMM's table-batched embeddings on the CPU (what TorchRec runs there), all rows in memory.

    pip install --no-deps fbgemm-gpu-cpu==1.8.0        (for torch 2.13; nothing else is needed, torchrec neither)

FBGEMM has no Adam on the CPU. Its rows are trained with row-wise Adagrad, which has one state per row where Adam has
two per weight, so the pipeline does more work. All other choices are the fastest for FBGEMM: IDs are not checked, and
they are put in FBGEMM's order, field by field, before the clock starts; the C allocator is set as in a run. The
first-order weights are a separate table of width 4 (FBGEMM's minimum), of which DeepFM needs only the sum over the
fields. This is 8 % faster than rows of width 20 that hold both (17 is not a multiple of 4), and 6 % faster than 26 more
tables.

`python -m benchmarks.end_to_end.fbgemm_way DATA.npz KEYS COMPILE BFLOAT16 BATCHES BATCH_SIZE HIDDEN...` prints
examples per second; KEYS is the argument of `keys_per_field`, COMPILE and BFLOAT16 are 1 for a dense model that has
these `Advantages`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.cases import DIM, keys_per_field
from benchmarks.end_to_end.advantages import EAGER, Advantages
from pipeline.machine.process import keep_freed_memory
from pipeline.models import DeepFM

FIRST_DIM = 4
LEARNING_RATE = 0.02
NOTE = "(e) trains its rows by row-wise Adagrad (FBGEMM has no Adam on the CPU), lighter work than Adam in (a) to (c)"
NOT_INSTALLED = "(e) is left out: FBGEMM is not installed (pip install --no-deps fbgemm-gpu-cpu==1.8.0)"


def installed() -> bool:
    return find_spec("fbgemm_gpu") is not None


def make_tables(rows: Sequence[int], dim: int, learning_rate: float) -> Any:
    """Make in-memory fp32 tables with these numbers of rows, with row-wise Adagrad in the backward pass."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    return SplitTableBatchedEmbeddingBagsCodegen(
        [(r, dim, EmbeddingLocation.HOST, ComputeDevice.CPU) for r in rows],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=learning_rate,
        pooling_mode=PoolingMode.SUM,
        stochastic_rounding=False,
        bounds_check_mode=BoundsCheckMode.NONE,
        device="cpu",
    )


class Fbgemm:
    """One table per field, and one with all first-order weights. IDs and labels are in memory, batch by batch."""

    def __init__(
        self, ids_NF: np.ndarray, labels_N: np.ndarray, rows: Sequence[int], dim: int, hidden: Sequence[int],
        batch: int, advantages: Advantages = EAGER,
    ) -> None:  # fmt: skip
        num_fields = len(rows)
        of_field_NF = torch.from_numpy(ids_NF - np.cumsum([0, *rows[:-1]]))
        self._shape = (batch, num_fields, dim)
        self._of_field = [part.T.contiguous().view(-1) for part in of_field_NF.split(batch)]
        self._of_all = [part.reshape(-1) for part in torch.from_numpy(ids_NF).split(batch)]
        self._labels = torch.from_numpy(labels_N).split(batch)
        self._singles = torch.arange(batch * num_fields + 1)
        self._bags = torch.arange(0, batch * num_fields + 1, num_fields)
        self.embedding = make_tables(rows, dim, LEARNING_RATE)
        # Row-wise Adagrad averages the squares of one gradient and three zeros, so the root is half as large. Half the
        # learning rate compensates.
        self.first_order = make_tables([sum(rows)], FIRST_DIM, LEARNING_RATE / 2)
        for table in self.embedding.split_embedding_weights():
            nn.init.normal_(table, std=0.01)
        nn.init.zeros_(self.first_order.split_embedding_weights()[0])
        self.model = DeepFM(num_fields, 0, dim, hidden)
        self._loss_of = advantages.loss_of(self.model)
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=True)

    def look_up(self, at: int) -> tuple[Tensor, Tensor]:
        """Embeddings [B, F, D] of a batch and the sum of its first-order weights [B, 1]."""
        embeddings = self.embedding(self._of_field[at], self._singles).view(self._shape)
        return embeddings, self.first_order(self._of_all[at], self._bags)[:, :1]

    def step(self, at: int) -> Tensor:
        """Train on a batch. Returns its loss before the update."""
        self._optimizer.zero_grad(set_to_none=True)
        embeddings, first = self.look_up(at)
        loss = self._loss_of(embeddings, first, self._labels[at])
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def train(self, num_batches: int) -> float:
        """Train, and return examples per second."""
        start = time.perf_counter()
        for batch in range(num_batches):
            self.step(batch % len(self._labels))
        return num_batches * self._shape[0] / (time.perf_counter() - start)


def main() -> None:
    data = np.load(sys.argv[1])
    keys, compiles, bfloat16, num_batches, batch_size, *hidden = map(int, sys.argv[2:])
    keep_freed_memory()
    advantages = Advantages(bool(compiles), bool(bfloat16))
    way = Fbgemm(data["ids"], data["labels"], keys_per_field(keys), DIM, hidden, batch_size, advantages)
    way.train(3)
    print(way.train(num_batches))


if __name__ == "__main__":
    main()
