"""DeepFM on Frappe_x1 (app usage in context, ten fields): data.root names the folder with the three Parquet files."""

from pipeline.models import DeepFM
from pipeline.optimizer import Adam, DenseAdam, Optimizer
from pipeline.workflow import Category, Data, Model, Schedule, Storage, Workflow

FIELDS = ("user", "item", "daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city")

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
    model=Model(kind=DeepFM, embedding_dim=10, args={"hidden": (400, 400, 400)}),
    optimizer=Optimizer(rows=Adam(lr=5e-3), dense=DenseAdam(lr=2e-3)),
    storage=Storage(device="8 MiB", host="8 MiB", disk="1 GiB", read="256 MiB", map="16 MiB", chunk_rows=1024),
    schedule=Schedule(batch_size=4096, epochs=12, block_batches=4),
    seed=2020,
)
