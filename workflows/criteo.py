"""DeepFM on Criteo's click logs as Parquet: label, i1 .. i13, c1 .. c26. data.root names the folder with the parts."""

from pipeline.models import DeepFM
from pipeline.optimizer import Adam, DenseAdam, Optimizer
from pipeline.workflow import Category, Data, Model, Number, Schedule, Storage, Workflow

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
    model=Model(kind=DeepFM, embedding_dim=16, args={"hidden": (400, 400, 400)}),
    optimizer=Optimizer(rows=Adam(lr=2e-3), dense=DenseAdam(lr=5e-4)),
    storage=Storage(device="32 MiB", host="24 MiB", disk="4 GiB", read="512 MiB", map="64 MiB", chunk_rows=1024),
    schedule=Schedule(batch_size=512, epochs=1, block_batches=8),
    seed=2022,
)
