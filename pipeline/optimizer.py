"""Import path of `pipeline.settings.optimizer` in workflow files of earlier versions and in code that runs keep."""

from pipeline.settings.optimizer import (
    Adagrad,
    Adam,
    CowClip,
    DenseAdam,
    Ftrl,
    KStep,
    Optimizer,
    Plateau,
    RowStorage,
    RowWiseAdagrad,
    Sgd,
)

__all__ = [
    "Adagrad",
    "Adam",
    "CowClip",
    "DenseAdam",
    "Ftrl",
    "KStep",
    "Optimizer",
    "Plateau",
    "RowStorage",
    "RowWiseAdagrad",
    "Sgd",
]
