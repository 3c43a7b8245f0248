"""Half a minute on two cores: synthetic clicks, and a table three times as large as what device and host hold of it.

The data is made once, under data/quickstart; `synthetic.json` there has the AUC of the model that made the labels,
which is the best that any model can reach.
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
    Schedule,
    Storage,
    Synthetic,
    Workflow,
)

KEYS = (200_000, 60_000, 20_000, 6_000, 2_000, 500, 100, 50, 20, 4)

workflow = Workflow(
    name="quickstart",
    data=Data(
        root="data/quickstart",
        train=("train",),
        validation=("validation",),
        test=("test",),
        labels=("click",),
        numbers=tuple(Number(name=f"i{n}") for n in range(4)),
        categories=tuple(Category(name=f"c{n}") for n in range(len(KEYS))),
        synthetic=Synthetic(
            train_examples=2_000_000,
            validation_examples=100_000,
            test_examples=100_000,
            keys_per_field=KEYS,
            num_numbers=4,
            zipf=1.1,
        ),
    ),
    model=Model(kind=DeepFM, embedding_dim=8, args={"hidden": (128, 64)}),
    optimizer=Optimizer(rows=Adam(lr=4e-3), dense=DenseAdam(lr=1e-3)),
    storage=Storage(device="14 MiB", host="12 MiB", disk="2 GiB", read="128 MiB", map="32 MiB"),
    schedule=Schedule(batch_size=4096, epochs=2, block_batches=4),
    seed=1,
)
