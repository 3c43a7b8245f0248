"""Data with sequences, and a small model that reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from conftest import make_table, make_workflow
from torch import Tensor, nn

from pipeline.models.ragged import SequenceValues
from pipeline.workflow import Category, Sequence, Workflow

SEQUENCES = (
    Sequence(name="clicks", items={"clicked": "item", "clicked_in": "country"}, numbers=("gaps",), max_length=4),
    Sequence(name="views", items={"viewed": "item"}, max_length=100),
)
CATEGORIES = (
    Category(name="tags", pooling="mean"),
    Category(name="item"),
    Category(name="country"),
    Category(name="user"),
)


class Pooled(nn.Module):
    """Model that uses the mean of each item list, and its product with the candidate, weighted by the numbers if there
    are any."""

    first_order = True

    def __init__(self, num_fields: int, num_numbers: int, embedding_dim: int) -> None:
        super().__init__()
        self.out = nn.Linear(num_fields * embedding_dim + 3, 1)

    def forward(
        self, numbers: Tensor, embeddings: Tensor, first_order: Tensor, sequences: dict[str, SequenceValues]
    ) -> Tensor:
        parts = []
        for values in sequences.values():
            lengths = values.offsets.diff()
            example = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
            for name, items in values.items.items():
                for numbers_V in values.numbers.values():
                    items = items * torch.tanh(numbers_V)[:, None]
                pooled = torch.zeros(len(lengths), items.shape[1]).index_add(0, example, items)
                pooled = pooled / lengths.clamp_min(1)[:, None]
                parts.append((pooled * values.candidate[name]).sum(1, keepdim=True))
        flat = torch.cat([embeddings.flatten(1), *parts], 1)
        return self.out(flat).squeeze(1) + first_order.sum(1)


def table_with_histories(rng: np.random.Generator, num_examples: int, num_keys: int) -> pa.Table:
    """The columns of `make_table`, and lists of equal lengths within an example, some empty or null, some longer than
    4."""

    def lists(draw: Any, lengths: list[int], nulls: bool) -> list[Any]:
        return [None if nulls and n == 0 and rng.random() < 0.5 else [draw() for _ in range(n)] for n in lengths]

    clicks, views = (rng.integers(0, 8, num_examples).tolist() for _ in range(2))
    columns = {
        "clicked": pa.array(lists(lambda: int(rng.integers(0, 2 * num_keys)), clicks, True), pa.list_(pa.int64())),
        "clicked_in": pa.array(lists(lambda: f"c{rng.integers(0, num_keys)}", clicks, True), pa.list_(pa.string())),
        "gaps": pa.array(lists(lambda: float(rng.random()), clicks, False), pa.list_(pa.float32())),
        "viewed": pa.array(lists(lambda: int(rng.integers(0, num_keys)), views, False), pa.large_list(pa.int32())),
    }
    table = make_table(rng, num_examples, num_keys)
    for name, values in columns.items():
        table = table.append_column(name, values)
    return table


def write_histories(root: Path, seed: int = 0, num_train: int = 50, num_keys: int = 20) -> Path:
    """Two training files of several row groups, one of validation and one of test data."""
    rng = np.random.default_rng(seed)
    root.mkdir(parents=True, exist_ok=True)
    half = num_train // 2
    for name, count in (("train-0", half), ("train-1", num_train - half), ("validation", 13), ("test", 9)):
        if count:
            pq.write_table(table_with_histories(rng, count, num_keys), root / f"{name}.parquet", row_group_size=8)
    return root


def workflow_with_histories(root: Path, **changes: Any) -> Workflow:
    given = {"kind": Pooled, "args": {}, "categories": CATEGORIES} | changes
    sequences = given.pop("sequences", SEQUENCES)
    workflow = make_workflow(root, **given)
    return workflow.with_settings({"data.sequences": sequences})
