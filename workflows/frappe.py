"""Frappe_x1 (app usage in context, ten fields) with the settings of BARS: data.root names the folder with the three
Parquet files.

`workflow` is DeepFM. `frappe(name)` is that of any model of MODELS, which differ in the model and its L2 alone; on the
command line the same fields are set one by one: --set model.kind=pipeline.models.DNN --set optimizer.rows.l2=0.05
"""

from typing import Any

from pipeline.api import (
    DCN,
    DNN,
    FM,
    LR,
    Adam,
    Category,
    Commit,
    Data,
    DCNv2,
    DeepFM,
    DenseAdam,
    Model,
    Optimizer,
    Plateau,
    Schedule,
    Storage,
    WideDeep,
    Workflow,
    xDeepFM,
)

FIELDS = ("user", "item", "daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city")

DEEP = {"hidden": (400, 400, 400), "batch_norm": True, "dropout": 0.2, "init": "xavier"}
MODELS: dict[str, tuple[type, dict[str, Any], float]] = {
    "LR": (LR, {}, 1e-5),
    "FM": (FM, {}, 5e-6),
    "DNN": (DNN, DEEP, 0.05),
    "WideDeep": (WideDeep, DEEP | {"dropout": 0.6}, 0.1),
    "DeepFM": (DeepFM, DEEP, 0.05),
    "DCN": (DCN, DEEP | {"cross_layers": 3}, 0.05),
    "DCNv2": (DCNv2, DEEP | {"dropout": 0.4, "cross_layers": 4, "structure": "parallel"}, 0.05),
    "xDeepFM": (xDeepFM, DEEP | {"cin": (64,)}, 0.1),
}
"""Class, its arguments, and L2 of the rows, first-order weights included."""

workflow = Workflow(
    name="frappe",
    data=Data(
        root="data/frappe_x1",
        train=("train.parquet",),
        validation=("valid.parquet",),
        test=("test.parquet",),
        labels=("label",),
        categories=tuple(Category(name=field) for field in FIELDS),
        shuffle_window=1 << 18,
    ),
    model=Model(kind=DeepFM, embedding_dim=10, init_std=1e-4, args=DEEP),
    optimizer=Optimizer(
        rows=Adam(lr=1e-3, l2=0.05, semantics="dense", eps_place="torch"),
        dense=DenseAdam(lr=1e-3),
        max_grad_norm=10.0,
    ),
    storage=Storage(device="8 MiB", host="8 MiB", disk="1 GiB", read="256 MiB", map="16 MiB", chunk_rows=1024),
    schedule=Schedule(
        batch_size=4096,
        epochs=100,
        block_batches=4,
        plateau=Plateau(metric="auc", lr_factor=0.1, lr_floor=1e-6, stop_after=2),
    ),
    # The whole takes minutes: the end of each epoch will do.
    commit=Commit(every_minutes=None),
    seed=2020,
)


def frappe(name: str) -> Workflow:
    """The workflow of a model of MODELS. LR has no embeddings."""
    kind, args, l2 = MODELS[name]
    model = workflow.model.model_copy(update={"kind": kind, "args": args, "embedding_dim": 0 if kind is LR else 10})
    rows = workflow.optimizer.rows.model_copy(update={"l2": l2})
    optimizer = workflow.optimizer.model_copy(update={"rows": rows})
    return workflow.model_copy(update={"name": f"frappe_{name}", "model": model, "optimizer": optimizer})
