"""Recipes for a first model, and the rules that the study tries one at a time, each as changes to a recipe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.first_model.columns import Form
from pipeline.models import DNN, FM, LR, DCNv2, DeepFM
from pipeline.prepare.draft import L2_OF_ALL, LR_FACTOR, MIN_GAIN, SMALL_STD, batch_size_of, num_buckets_of
from pipeline.settings.optimizer import Adagrad, Adam, DenseAdam, Optimizer, Plateau
from pipeline.workflow import Data, Model, Schedule, Workflow

KINDS = {"LR": LR, "FM": FM, "DNN": DNN, "DeepFM": DeepFM, "DCNv2": DCNv2}
ROWS = {"adam": Adam, "adagrad": Adagrad}
LAZY_L2 = 0.3
HIDDEN = ("DNN", "DeepFM", "DCNv2")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that the study varies. The defaults are those drafted by `init`."""

    kind: str = "DeepFM"
    numbers: Form = "both"
    num_buckets: int | None = None
    """None: by the number of training rows and the kind of model."""
    at_least: int = 0
    """Occurrences in the training rows without which a category's values share one key, as values that are not there
    do; 0: each value has a key."""
    l2: float | None = L2_OF_ALL
    """L2 of all rows at every step, in units of 1 / training rows (dense semantics); None: lazy L2, LAZY_L2 times the
    weight of an example in a batch."""
    dense_l2: float = 0.0
    """L2 of the dense part, in units of 1 / training rows."""
    bias: bool = True
    """Start at the training split's positive rate."""
    average_steps: int | None = None
    """Number of steps over which dense weights are averaged."""
    batch: float = 1.0
    """Batch size, in units of the drafted one."""
    rows: str = "adam"
    lr: float = 1e-3
    dense_lr: float = 1e-3
    dim: int = 16
    hidden: tuple[int, ...] = (400, 400)
    dropout: float = 0.2
    shared: bool = True
    """Lists share the rows of the column whose values they list."""
    epochs: int = 20
    stop_after: int = 3
    lr_factor: float = LR_FACTOR

    def num_buckets_for(self, num_rows: int) -> int:
        """Number of buckets of each number for so many training rows."""
        return self.num_buckets or num_buckets_of(num_rows, self.kind == "LR")


DRAFTED = Recipe()
SMALL: Mapping[str, Any] = {"dim": 8, "hidden": (64, 32)}
LINEAR: Mapping[str, Any] = {"kind": "LR", "rows": "adagrad", "lr": 0.2, "dense_lr": 3e-3, "shared": False}

CHANGED: Mapping[str, Mapping[str, Any]] = {
    "drafted": {},
    "before the study": {**SMALL, "numbers": "log", "l2": None, "bias": False, "lr_factor": 1.0},
    "rates stay": {"lr_factor": 1.0},
    "small": SMALL,
    "small, l2 10 / n": {**SMALL, "l2": 10.0},
    "small, l2 2 / n": {**SMALL, "l2": 2.0},
    "l2 10 / n": {"l2": 10.0},
    "l2 200 / n": {"l2": 200.0},
    "3 times": {"at_least": 3},
    "10 times": {"at_least": 10},
    "lazy l2": {"l2": None},
    "dense l2 10 / n": {"dense_l2": 10.0},
    "no bias": {"bias": False},
    "log": {"numbers": "log"},
    "standard": {"numbers": "standard"},
    "buckets": {"numbers": "buckets"},
    "32 buckets": {"num_buckets": 32},
    "64 buckets": {"num_buckets": 64},
    "256 buckets": {"num_buckets": 256},
    "row rate 3e-3": {"lr": 3e-3},
    "row rate 1e-2": {"lr": 1e-2},
    "rates 3e-3": {"lr": 3e-3, "dense_lr": 3e-3},
    "row rate 3e-3, l2 10 / n": {"lr": 3e-3, "l2": 10.0},
    "average 1000": {"average_steps": 1000},
    "batch x 2": {"batch": 2.0},
    "batch / 2": {"batch": 0.5},
    "no dropout": {"dropout": 0.0},
    "own tables": {"shared": False},
    "FM": {"kind": "FM"},
    "DNN": {"kind": "DNN"},
    "DCNv2": {"kind": "DCNv2"},
    "LR, l2 2 / n": {**LINEAR, "l2": 2.0},
    "LR, l2 10 / n": {**LINEAR, "l2": 10.0},
    "LR, l2 10 / n, 128 buckets": {**LINEAR, "l2": 10.0, "num_buckets": 128},
    "LR, l2 10 / n, 3 times": {**LINEAR, "l2": 10.0, "at_least": 3},
    "LR, l2 50 / n": {**LINEAR, "l2": 50.0},
}
"""Rules of the draft, changed one at a time."""


def workflow_of(recipe: Recipe, data: Data, num_rows: int, rate: float, seed: int) -> Workflow:
    """Workflow of a recipe. `num_rows`, `rate`: number of training rows and their positive rate."""
    batch = max(16, int(batch_size_of(num_rows) * recipe.batch))
    l2, semantics = (LAZY_L2 / batch, "lazy") if recipe.l2 is None else (recipe.l2 / num_rows, "dense")
    linear = recipe.kind == "LR"
    if not recipe.shared:
        own = tuple(category.model_copy(update={"table": None}) for category in data.categories)
        data = data.model_copy(update={"categories": own})
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
            rows=ROWS[recipe.rows].model_validate({"lr": recipe.lr, "l2": l2, "semantics": semantics}),
            dense=DenseAdam(lr=recipe.dense_lr, l2=recipe.dense_l2 / num_rows, average=recipe.average_steps),
        ),
        schedule=Schedule(
            batch_size=batch,
            epochs=recipe.epochs,
            threads=1,
            plateau=Plateau(
                metric="logloss", min_gain=MIN_GAIN, stop_after=recipe.stop_after, lr_factor=recipe.lr_factor
            ),
        ),
        device="cpu",
        seed=seed,
    )
