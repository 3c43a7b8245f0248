"""One training step of DIN on the same keys: with ragged values, padded to the batch's longest history, and by FuxiCTR,
which pads to the maximum length."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from benchmarks.sequences.padded import Attention, Padded, Trainer, pad
from pipeline.models import DIN
from pipeline.models.ragged import SequenceValues

ITEMS, CATEGORIES = 50_000, 500


@dataclass(frozen=True)
class Shape:
    """Histories: mean length, maximum length, and batch size."""

    mean: int
    longest: int
    batch: int
    dim: int = 16
    hidden: tuple[int, ...] = (512, 128, 64)
    attention: tuple[int, ...] = (64, 32)


class Batch:
    """Keys of items, from 1, drawn from a power law, and their categories."""

    def __init__(self, shape: Shape, rng: np.random.Generator, size: int = 0) -> None:
        size = size or shape.batch
        lengths = rng.geometric(1 / (shape.mean + 1), size) - 1
        self.lengths = np.minimum(lengths, shape.longest)
        self.offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(self.lengths)]))
        self.values_VF, self.candidates_BF = (
            torch.from_numpy(self._keys(rng, count)) for count in (int(self.offsets[-1]), size)
        )
        self.labels = torch.from_numpy((rng.random(size) < 0.3).astype(np.float32))

    def _keys(self, rng: np.random.Generator, count: int) -> np.ndarray:
        items = np.minimum(rng.zipf(1.2, count), ITEMS)
        return np.stack([items, items % CATEGORIES + 1], 1)


Step = Callable[[Batch], float]


def ragged(shape: Shape) -> Step:
    """This package's DIN over in-memory tables: the cost of a model's step without the pipeline."""
    torch.manual_seed(0)
    tables = nn.ModuleList(nn.Embedding(keys + 1, shape.dim, sparse=True) for keys in (ITEMS, CATEGORIES))
    model = DIN(2, 0, shape.dim, {"history": (2, 0)}, hidden=shape.hidden, attention=shape.attention)
    trainer = Trainer(nn.ModuleList([model, tables]), tables)

    def step(batch: Batch) -> float:
        candidates, values = (
            [table(keys[:, f]) for f, table in enumerate(tables)] for keys in (batch.candidates_BF, batch.values_VF)
        )
        names = ("items", "categories")
        history = SequenceValues(
            dict(zip(names, values, strict=True)), batch.offsets, {}, dict(zip(names, candidates, strict=True))
        )
        nothing = candidates[0][:, :0]
        logits = model(nothing, torch.stack(candidates, 1), nothing, {"history": history})
        return trainer.step(logits, batch.labels)

    return step


def padded(shape: Shape) -> Step:
    torch.manual_seed(0)
    model = Padded((ITEMS, CATEGORIES), shape.dim, shape.hidden, lambda width: Attention(width, shape.attention))
    trainer = Trainer(model, model.tables)
    return lambda batch: trainer.step(model(batch.candidates_BF, pad(batch.values_VF, batch.offsets)), batch.labels)


def fuxictr(shape: Shape) -> Step | None:
    """DIN of FuxiCTR's LongCTR, with its training step; None if not installed. Its loader is not used: batches are
    ready in memory, padded as the loader would."""
    try:
        din = importlib.import_module("model_zoo.LongCTR.DIN.DIN").DIN
        features = importlib.import_module("fuxictr.features").FeatureMap("none", tempfile.gettempdir())
    except ImportError:
        return None
    torch.manual_seed(0)
    features.labels, features.num_fields, features.total_features = ["label"], 2, ITEMS + CATEGORIES
    for name, keys in (("item", ITEMS), ("category", CATEGORIES)):
        features.features[name] = {"source": "item", "type": "categorical", "vocab_size": keys + 1, "padding_idx": 0}
    features.default_emb_dim = shape.dim
    model = din(
        features, gpu=-1, dnn_hidden_units=list(shape.hidden), attention_hidden_units=list(shape.attention),
        attention_hidden_activations="Dice", embedding_dim=shape.dim, din_use_softmax=True, learning_rate=1e-3,
        optimizer="adam", loss="binary_crossentropy", verbose=0, model_root=tempfile.gettempdir(), metrics=["AUC"],
        task="binary_classification",
    )  # fmt: skip
    model.train()
    model._max_gradient_norm, model._batch_index = 10.0, 0

    def step(batch: Batch) -> float:
        histories_BLF = pad(batch.values_VF, batch.offsets, shape.longest)
        keys = torch.cat([histories_BLF, batch.candidates_BF.unsqueeze(1)], 1).flatten(0, 1)
        items = {"item": keys[:, 0].contiguous(), "category": keys[:, 1].contiguous()}
        return float(model.train_step(({"label": batch.labels}, items, (histories_BLF[:, :, 0] > 0).float())).detach())

    return step


WAYS: dict[str, Callable[[Shape], Step | None]] = {"ragged": ragged, "padded": padded, "fuxictr": fuxictr}
