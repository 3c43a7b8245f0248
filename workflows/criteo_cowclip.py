"""DeepFM on the whole Kaggle logs of Criteo as CowClip trains it at batches of 1,024 (Zheng et al., AAAI 2023): test
AUC 0.8086; `at_128k` at batches of 131,072: 0.8090. data.root names the folder with train*.parquet (nine tenths, at
random) and test*.parquet.

Null numbers are 0 and each is scaled to 0 .. 1 over all examples, without a logarithm, when the files are made; every
key has a row. The last of ten epochs counts. Keras's l2(1e-5) adds a gradient of 2e-5 * w, and its eps is 1e-7.
"""

from pipeline.api import (
    Adam,
    Category,
    CowClip,
    Data,
    DeepFM,
    DenseAdam,
    Model,
    Number,
    Optimizer,
    Schedule,
    Storage,
    Workflow,
    scale_batch,
)

workflow = Workflow(
    name="criteo_cowclip",
    data=Data(
        root="data/criteo_kaggle",
        train=("train*.parquet",),
        test=("test*.parquet",),
        labels=("label",),
        numbers=tuple(Number(name=f"i{n}") for n in range(1, 14)),
        categories=tuple(Category(name=f"c{n}") for n in range(1, 27)),
    ),
    model=Model(kind=DeepFM, embedding_dim=10, init_std=1e-2, args={"hidden": (400, 400, 400), "init": "xavier"}),
    optimizer=Optimizer(
        rows=Adam(lr=1e-4, l2=2e-5, semantics="dense", eps=1e-7, eps_place="keras", clip=CowClip(r=1.0, zeta=1e-5)),
        dense=DenseAdam(lr=8e-4, eps=1e-7, eps_place="keras", warm_up_epochs=1.0),
    ),
    storage=Storage(device="2 GiB", host="4 GiB", disk="64 GiB", read="1 GiB", map="2 GiB"),
    schedule=Schedule(batch_size=1024, epochs=10, block_batches=16),
    seed=1235,
)

at_128k = scale_batch(workflow, 128 * 1024).model_copy(update={"name": "criteo_cowclip_128k"})
