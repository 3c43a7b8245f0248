"""A minute on two cores: synthetic clicks, and a table three times as large as what device and host may hold of it.

The data is made once, under data/quickstart; `synthetic.json` there tells the AUC of the model that made the labels,
which is the best that any model can reach.
"""

from pipeline.models import DeepFM
from pipeline.optimizer import Adam, DenseAdam, Optimizer
from pipeline.workflow import Category, Data, Model, Number, Schedule, Storage, Synthetic, Workflow

KEYS = (1_200_000, 400_000, 100_000, 30_000, 10_000, 2_000, 500, 100, 20, 4)

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
            train_examples=6_000_000,
            validation_examples=200_000,
            test_examples=200_000,
            keys_per_field=KEYS,
            num_numbers=4,
            zipf=1.1,
        ),
    ),
    model=Model(kind=DeepFM, embedding_dim=8, args={"hidden": (128, 64)}),
    optimizer=Optimizer(rows=Adam(lr=2e-3), dense=DenseAdam(lr=1e-3)),
    storage=Storage(device="40 MiB", host="28 MiB", disk="8 GiB", read="512 MiB", map="128 MiB"),
    schedule=Schedule(batch_size=4096, epochs=2, block_batches=8),
    seed=1,
)
