"""Every row optimizer with its options, in both semantics."""

from pipeline.settings.optimizer import Adagrad, Adam, CowClip, DenseAdam, Optimizer, RowWiseAdagrad, Sgd

DENSE = DenseAdam(lr=0.01)
DENSE_ADAM = {"lr": 0.05, "semantics": "dense", "l2": 0.01}
FLOAT16_BUT_V = {"weights": "float16", "state": "bfloat16", "v": "float32"}

EXACT = {
    "lazy adam": Optimizer(rows=Adam(lr=0.05), dense=DENSE),
    "lazy adam with L2": Optimizer(rows=Adam(lr=0.05, l2=0.01), dense=DENSE),
    "lazy, clipped norm": Optimizer(rows=Adam(lr=0.05, l2=0.01), dense=DENSE, max_grad_norm=0.1),
    "lazy CowClip": Optimizer(rows=Adam(lr=0.05, clip=CowClip(r=0.1, floor="paper")), dense=DENSE),
    "dense adam": Optimizer(rows=Adam(lr=0.05, semantics="dense"), dense=DENSE),
    "dense adam with L2": Optimizer(rows=Adam(**DENSE_ADAM, eps_place="torch"), dense=DENSE),
    "dense, clipped norm": Optimizer(rows=Adam(**DENSE_ADAM), dense=DENSE, max_grad_norm=0.3),
    "CowClip": Optimizer(rows=Adam(**DENSE_ADAM, clip=CowClip(zeta=1e-3)), dense=DENSE),
    "sgd": Optimizer(rows=Sgd(lr=0.05, l2=0.01), dense=DENSE),
    "dense sgd": Optimizer(rows=Sgd(lr=0.05, semantics="dense"), dense=DENSE),
    "adagrad": Optimizer(rows=Adagrad(lr=0.05, l2=0.01), dense=DENSE),
    "row-wise": Optimizer(rows=RowWiseAdagrad(lr=0.05, l2=0.01), dense=DENSE),
    "dense row-wise": Optimizer(rows=RowWiseAdagrad(lr=0.05, semantics="dense"), dense=DENSE),
    "lazy adam in bfloat16": Optimizer(rows=Adam(lr=0.05, l2=0.01, storage="bfloat16"), dense=DENSE),
    "dense adam in bfloat16": Optimizer(rows=Adam(**DENSE_ADAM, storage="bfloat16"), dense=DENSE),
    "CowClip in float16, v whole": Optimizer(
        rows=Adam(**DENSE_ADAM, clip=CowClip(zeta=1e-3), storage=FLOAT16_BUT_V), dense=DENSE
    ),
    "sgd in float16": Optimizer(rows=Sgd(lr=0.05, storage="float16"), dense=DENSE),
    "adagrad in bfloat16": Optimizer(rows=Adagrad(lr=0.05, storage="bfloat16"), dense=DENSE),
    "dense row-wise in bfloat16": Optimizer(
        rows=RowWiseAdagrad(lr=0.05, semantics="dense", storage="bfloat16"), dense=DENSE
    ),
}
"""Optimizers that catch up step by step, so that the plain loop, which moves every row at every step, has the same
bits."""

POWERS = {
    "dense sgd with L2": Optimizer(rows=Sgd(lr=0.05, l2=0.01, semantics="dense"), dense=DENSE),
    "dense adagrad with L2": Optimizer(rows=Adagrad(lr=0.05, l2=0.01, semantics="dense"), dense=DENSE),
    "dense row-wise with L2": Optimizer(rows=RowWiseAdagrad(lr=0.05, l2=0.01, semantics="dense"), dense=DENSE),
}
"""Optimizers that catch up by replacing many steps with powers."""
