"""DeepFM on Criteo's click logs as Parquet: label, i1 .. i13, c1 .. c26. data.root names the folder with the parts.

The settings are those of BARS on Criteo_x4, test AUC 0.8143 and logloss 0.4376 of the whole Kaggle logs. There keys
seen fewer than ten times are one key, numbers are keys as well (by their squared logarithm), and an epoch is judged by
AUC less logloss. The storage is for a sample: a row takes about 230 bytes.
"""

from pipeline.api import (
    Adam,
    Category,
    Data,
    DeepFM,
    DenseAdam,
    Model,
    Number,
    Optimizer,
    Plateau,
    Schedule,
    Storage,
    Workflow,
)

workflow = Workflow(
    name="criteo",
    data=Data(
        root="data/criteo",
        train=("part-[0-5].parquet",),
        validation=("part-6.parquet",),
        test=("part-7.parquet",),
        labels=("label",),
        # Counts begin at -3 (i2 of the Kaggle logs): shifted by 3 every logarithm is defined, and a null becomes 0.
        numbers=tuple(Number(name=f"i{n}", fill=-3.0, shift=3.0, log1p=True) for n in range(1, 14)),
        categories=tuple(Category(name=f"c{n}") for n in range(1, 27)),
    ),
    model=Model(
        kind=DeepFM,
        embedding_dim=16,
        init_std=1e-4,
        args={"hidden": (1000, 1000, 1000, 1000, 1000), "dropout": 0.2, "init": "xavier"},
    ),
    optimizer=Optimizer(
        rows=Adam(lr=1e-3, l2=1e-5, semantics="dense", eps_place="torch"),
        dense=DenseAdam(lr=1e-3),
        max_grad_norm=10.0,
    ),
    storage=Storage(device="32 MiB", host="24 MiB", disk="4 GiB", read="512 MiB", map="64 MiB", chunk_rows=1024),
    schedule=Schedule(
        batch_size=10000,
        epochs=100,
        block_batches=8,
        plateau=Plateau(metric="auc", lr_factor=0.1, lr_floor=1e-6, stop_after=2),
    ),
    seed=2019,
)
