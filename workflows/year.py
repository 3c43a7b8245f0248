"""Training every night on days as logs deliver them: `bash workflows/year.sh` makes them (year_days.py), and trains."""

from pathlib import Path

from pipeline.api import (
    FM,
    Adam,
    Category,
    Data,
    DenseAdam,
    Lookup,
    Metrics,
    Model,
    Optimizer,
    Schedule,
    Storage,
    Time,
    Workflow,
)  # fmt: skip

workflow = Workflow(
    name="year",
    data=Data(
        root=Path("arriving"),
        train=("2026-01-01.parquet",),  # the first day; later ones come with --extend
        time=Time(name="time"),
        labels=("click",),
        categories=(Category(name="user"), Category(name="item"), Category(name="brand")),
        features=(Lookup(column="item", file="_items.parquet", key="item", take={"brand": "brand"}),),
        label_delay="1 d",  # a day comes again with its later clicks
        late="take",
        ahead="drop",
    ),
    model=Model(kind=FM, embedding_dim=4),
    optimizer=Optimizer(rows=Adam(lr=0.02), dense=DenseAdam(lr=0.02)),
    storage=Storage(device="4 MiB", host="4 MiB", disk="256 MiB", read="16 MiB", map="4 MiB", keep_spans=7),
    schedule=Schedule(batch_size=20),
    metrics=Metrics(guard=0.3, guard_then="hold"),
)
