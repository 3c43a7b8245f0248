"""Recipes of a first model, and the rules that the study tries one at a time, each as changes of a recipe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.first_model.columns import Form
from pipeline.models import DNN, FM, LR, DCNv2, DeepFM
from pipeline.prepare.draft import L2_OF_EXAMPLE, MIN_GAIN, SMALL_STD, batch_size_of
from pipeline.settings.optimizer import Adam, DenseAdam, Optimizer, Plateau
from pipeline.workflow import Data, Model, Schedule, Workflow

KINDS = {"LR": LR, "FM": FM, "DNN": DNN, "DeepFM": DeepFM, "DCNv2": DCNv2}
HIDDEN = ("DNN", "DeepFM", "DCNv2")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that the study varies. The defaults are what `init` drafts for less than 200,000 rows."""

    kind: str = "DeepFM"
    numbers: Form = "log"
    l2: float | None = None
    """L2 at every step of all rows, in units of 1 / training rows (dense semantics); None: lazy L2, as drafted."""
    dense_l2: float = 0.0
    """L2 of the dense part, in the same units."""
    bias: bool = False
    """Begin at the training split's positive rate."""
    average: float = 0.0
    """Steps that are averaged, as a share of an epoch; 0: none."""
    average_steps: int = 0
    """The same in steps."""
    batch: float = 1.0
    """Batch size, in units of the drafted one."""
    lr: float = 1e-3
    dense_lr: float = 1e-3
    dim: int = 8
    hidden: tuple[int, ...] = (64, 32)
    dropout: float = 0.2
    epochs: int = 20
    stop_after: int = 3


DRAFTED = Recipe()
RECIPE = Recipe(numbers="both", l2=10.0, bias=True, average_steps=100)
"""Form of the prototypes from which rules are taken away, one at a time."""

ADDED: Mapping[str, Mapping[str, Any]] = {
    "drafted": {},
    "+ bias": {"bias": True},
    "+ standard": {"numbers": "standard"},
    "+ buckets": {"numbers": "buckets"},
    "+ both": {"numbers": "both"},
    "+ l2 10 / n": {"l2": 10.0},
    "+ average 100": {"average_steps": 100},
}
"""Rules added to the draft."""
CHANGED: Mapping[str, Mapping[str, Any]] = {
    "recipe": {},
    "no bias": {"bias": False},
    "log": {"numbers": "log"},
    "standard": {"numbers": "standard"},
    "buckets": {"numbers": "buckets"},
    "lazy l2": {"l2": None},
    "l2 2 / n": {"l2": 2.0},
    "l2 50 / n": {"l2": 50.0},
    "l2 of both parts": {"dense_l2": 10.0},
    "no average": {"average_steps": 0},
    "average 1000": {"average_steps": 1000},
    "average epoch": {"average_steps": 0, "average": 1.0},
    "LR": {"kind": "LR"},
    "LR, l2 2 / n": {"kind": "LR", "l2": 2.0},
    "LR, l2 2 / n, no average": {"kind": "LR", "l2": 2.0, "average_steps": 0},
    "LR, l2 2 / n, no bias": {"kind": "LR", "l2": 2.0, "bias": False},
    "LR, lazy l2": {"kind": "LR", "l2": None},
    "LR, l2 2 / n, rates 1e-2": {"kind": "LR", "l2": 2.0, "lr": 1e-2, "dense_lr": 1e-2},
    "LR, l2 2 / n, rates 3e-3": {"kind": "LR", "l2": 2.0, "lr": 3e-3, "dense_lr": 3e-3},
    "LR, l2 10 / n, rates 3e-3": {"kind": "LR", "l2": 10.0, "lr": 3e-3, "dense_lr": 3e-3},
    "LR, l2 50 / n, rates 3e-3": {"kind": "LR", "l2": 50.0, "lr": 3e-3, "dense_lr": 3e-3},
    "rates 3e-3": {"lr": 3e-3, "dense_lr": 3e-3},
    "FM": {"kind": "FM"},
    "DNN": {"kind": "DNN"},
    "DNN, l2 50 / n": {"kind": "DNN", "l2": 50.0},
    "DCNv2": {"kind": "DCNv2"},
    "DCNv2, l2 50 / n": {"kind": "DCNv2", "l2": 50.0},
}
"""Rules of the recipe changed."""


def workflow_of(recipe: Recipe, data: Data, num_rows: int, rate: float, seed: int) -> Workflow:
    """Workflow of a recipe. `num_rows`, `rate`: number of training rows and their positive rate."""
    batch = max(16, int(batch_size_of(num_rows) * recipe.batch))
    steps = -(-num_rows // batch)
    average = recipe.average_steps or round(recipe.average * steps) or None
    l2, semantics = (L2_OF_EXAMPLE / batch, "lazy") if recipe.l2 is None else (recipe.l2 / num_rows, "dense")
    linear = recipe.kind == "LR"
    return Workflow(
        name="first",
        data=data,
        model=Model(
            kind=KINDS[recipe.kind],
            embedding_dim=0 if linear else recipe.dim,
            init_std=SMALL_STD,
            initial_bias=math.log(rate / (1 - rate)) if recipe.bias else 0.0,
            args={"hidden": recipe.hidden, "dropout": recipe.dropout} if recipe.kind in HIDDEN else {},
        ),
        optimizer=Optimizer(
            rows=Adam.model_validate({"lr": recipe.lr, "l2": l2, "semantics": semantics}),
            dense=DenseAdam(lr=recipe.dense_lr, l2=recipe.dense_l2 / num_rows, average=average),
        ),
        schedule=Schedule(
            batch_size=batch,
            epochs=recipe.epochs,
            threads=1,
            plateau=Plateau(metric="logloss", min_gain=MIN_GAIN, stop_after=recipe.stop_after),
        ),
        device="cpu",
        seed=seed,
    )
