"""DeepFM on Criteo_x4, as BARS trains it: test AUC 0.8143 and logloss 0.4376. data.root names the folder with
train.parquet, valid.parquet and test.parquet of the Kaggle logs: label, i1 .. i13, c1 .. c26.

Numbers are categories, by their squared logarithm. Values that the training rows have fewer than ten times, null, and 0
of the numbers share a key in each field. `pipeline prepare statistics workflows/criteo.py` counts them first, into
data.root; of the published split it finds 910,669 values that have keys of their own in the 39 fields (910,747
with two more for each). BARS judges an epoch by AUC less logloss. A row takes about 230 bytes.

`criteo.py:sample` trains on parts of a sample without statistics: numbers as logarithms, and a key for every value.
"""

from pipeline.api import (
    Adam,
    Bucket,
    Category,
    Data,
    DeepFM,
    DenseAdam,
    Model,
    Number,
    Optimizer,
    Plateau,
    Rare,
    Schedule,
    Storage,
    Workflow,
)

FIELDS = (*(f"k{n}" for n in range(1, 14)), *(f"c{n}" for n in range(1, 27)))

workflow = Workflow(
    name="criteo",
    data=Data(
        root="data/criteo",
        train=("train.parquet",),
        validation=("valid.parquet",),
        test=("test.parquet",),
        labels=("label",),
        categories=tuple(Category(name=field) for field in FIELDS),
        features=(
            *(Bucket(column=f"i{n}", name=f"k{n}", squared_log=True, missing=0.0) for n in range(1, 14)),
            *(Rare(column=field, at_least=10, counts=f"counts/{field}.parquet", nulls=True) for field in FIELDS),
        ),
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

sample = workflow.with_settings({
    "data.train": ["part-[0-5].parquet"], "data.validation": ["part-6.parquet"], "data.test": ["part-7.parquet"],
    # Counts begin at -3 (i2 of the Kaggle logs): shifted by 3 every logarithm is defined, and a null becomes 0.
    "data.numbers": [Number(name=f"i{n}", fill=-3.0, shift=3.0, log1p=True) for n in range(1, 14)],
    "data.categories": [f"c{n}" for n in range(1, 27)], "data.features": [],
})  # fmt: skip
