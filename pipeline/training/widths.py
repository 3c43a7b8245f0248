"""Fields that use fewer weights than a row has.

All rows are stored with D embedding weights. A field of width d < D uses the first d of them: the model sees their
product with a learned projection [d, D], a parameter of the dense part. So the other weights have no influence, and
their gradient is exactly 0. When a row is trained for the first time, these weights and their state are set to 0
(`RowOptimizer.clear_unused`). Every update and catch-up rule keeps a weight at zero if its gradient and state are zero,
and zeros add nothing to a norm, to L2 or to a fingerprint. Before that they are those of the key's initial row, and
nothing reads them. Wherever weights are counted, every field counts D: in the divisor of row-wise Adagrad's mean square
and in CowClip's floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.device.device import Device
from pipeline.records import I32
from pipeline.workflow import Workflow


def widths_of(workflow: Workflow) -> tuple[int, ...] | None:
    """Number of weights that each categorical field uses; None if all use D."""
    dim = workflow.model.embedding_dim
    widths = tuple(category.width or dim for category in workflow.data.categories)
    return widths if min(widths) < dim else None


def widths_on(device: Device, workflow: Workflow) -> I32 | None:
    """The same as an array [F] on the device."""
    widths = widths_of(workflow)
    return None if widths is None else device.to_device(np.array(widths, np.int32))


class Projected(nn.Module):
    """A model whose narrow fields are first projected to D weights. Fields of a table share its projection, so that a
    value has the same embedding wherever it occurs."""

    def __init__(self, model: nn.Module, tables: Sequence[str], widths: Sequence[int], dim: int) -> None:
        """`tables`: name of each field's table. The entries of a projection are drawn from a normal distribution with
        variance 1/d, so that projected weights initially have the standard deviation of the row's weights."""
        super().__init__()
        self.model = model
        width_of = {table: width for table, width in zip(tables, widths, strict=True) if width < dim}
        self._widths = list(width_of.values())
        self.projections = nn.ParameterList(torch.empty(d, dim).normal_(0, d**-0.5) for d in self._widths)
        numbers = {table: number for number, table in enumerate(width_of)}
        self._number_of_field = [numbers.get(table) for table in tables]

    @property
    def loss(self) -> Any:
        """Loss of the wrapped model. The attribute is missing if that model has none."""
        return self.model.loss

    def forward(self, numbers_BX: Tensor, embeddings_BFD: Tensor, first_order_BF: Tensor) -> object:
        projected = [
            embedding_BD if number is None else embedding_BD[:, : self._widths[number]] @ self.projections[number]
            for embedding_BD, number in zip(embeddings_BFD.unbind(1), self._number_of_field, strict=True)
        ]
        return self.model(numbers_BX, torch.stack(projected, 1), first_order_BF)


def own_model(model: nn.Module) -> nn.Module:
    """The user's model, without the projections that wrap it."""
    return model.model if isinstance(model, Projected) else model
