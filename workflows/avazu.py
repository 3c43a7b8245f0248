"""DeepFM on Avazu_x4, as BARS trains it: test AUC 0.7930 and logloss 0.3719. data.root names the folder with
train.parquet, valid.parquet and test.parquet of the Kaggle logs: click, hour (as in 14102100), and 21 fields.

Hour of the day, weekday and weekend are made of `hour`. Values that the training rows have once share a key in each
field; `pipeline prepare statistics workflows/avazu.py` counts them first, into data.root. BARS judges an epoch by AUC
less logloss.
"""

from pipeline.api import (
    Adam,
    Calendar,
    Category,
    Data,
    DeepFM,
    DenseAdam,
    Model,
    Optimizer,
    Plateau,
    Rare,
    Schedule,
    Storage,
    Workflow,
)

FIELDS = (
    "hour_of_day", "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain",
    "app_category", "device_id", "device_ip", "device_model", "device_type", "device_conn_type",
    *(f"C{n}" for n in range(14, 22)), "weekday", "weekend",
)  # fmt: skip

workflow = Workflow(
    name="avazu",
    data=Data(
        root="data/avazu",
        train=("train.parquet",),
        validation=("valid.parquet",),
        test=("test.parquet",),
        labels=("click",),
        categories=tuple(Category(name=field) for field in FIELDS),
        features=(
            Calendar(
                column="hour",
                form="%y%m%d%H",
                take={"hour": "hour_of_day", "weekday": "weekday", "weekend": "weekend"},
            ),
            *(Rare(column=field, at_least=2, counts=f"counts/{field}.parquet", nulls=True) for field in FIELDS),
        ),
    ),
    model=Model(
        kind=DeepFM,
        embedding_dim=16,
        init_std=1e-4,
        args={"hidden": (2000, 2000, 2000, 2000), "init": "xavier"},
    ),
    optimizer=Optimizer(
        rows=Adam(lr=1e-3, semantics="dense", eps_place="torch"),
        dense=DenseAdam(lr=1e-3),
        max_grad_norm=10.0,
    ),
    storage=Storage(device="256 MiB", host="512 MiB", disk="16 GiB", read="1 GiB", map="256 MiB"),
    schedule=Schedule(
        batch_size=10000,
        epochs=100,
        block_batches=8,
        plateau=Plateau(metric="auc", lr_factor=0.1, lr_floor=1e-6, stop_after=2),
    ),
    seed=2019,
)
