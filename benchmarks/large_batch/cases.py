"""Cases of `large_batch`: sizes, rules with their ablations, and the workflow of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.large_batch.data import Planted
from pipeline.models import DeepFM
from pipeline.optim.scaling import scale_batch
from pipeline.settings.optimizer import Adam, CowClip, DenseAdam, Optimizer
from pipeline.workflow import Category, Commit, Data, Model, Schedule, Storage, Workflow

EPS = 1e-7


class Settings(NamedTuple):
    """Settings tuned at the base batch."""

    row_lr: float
    l2: float
    dense_lr: float
    clip: bool

    @property
    def name(self) -> str:
        return f"tune-{'clip' if self.clip else 'plain'}-{self.row_lr:g}-{self.l2:g}-{self.dense_lr:g}"


class Variant(NamedTuple):
    """A rule, and the settings that it scales: those tuned with the clip or without it."""

    rule: str
    clip: bool = False
    tuned_with_clip: bool = False
    scale_l2: bool = True
    warm_up: bool = True


BASE = {"base": Variant("none"), "base_with_clip": Variant("none", clip=True, tuned_with_clip=True)}
RULES = {rule: Variant(rule) for rule in ("none", "sqrt", "sqrt_star", "linear", "n2_lambda")} | {
    "cowclip_without_clip": Variant("cowclip"),
    "cowclip": Variant("cowclip", clip=True, tuned_with_clip=True),
}
ABLATIONS = {
    "cowclip_clip_off": Variant("cowclip", tuned_with_clip=True),
    "cowclip_l2_unscaled": Variant("cowclip", clip=True, tuned_with_clip=True, scale_l2=False),
    "cowclip_warm_up_off": Variant("cowclip", clip=True, tuned_with_clip=True, warm_up=False),
}
VARIANTS = BASE | RULES | ABLATIONS


TUNED = (("row_lr", "row_lrs"), ("l2", "l2s"), ("dense_lr", "dense_lrs"))
"""Settings in tuning order, with the name of their candidates. Until it is tuned, a setting has its first candidate."""


@dataclass(frozen=True)
class Scale:
    """Sizes of everything; a quick run only shows that it works, its accuracies mean nothing."""

    planted: Planted = field(default_factory=Planted)
    batch: int = 16
    block_batches: int = 2048
    epochs: int = 10
    tune_epochs: int = 2
    times: tuple[int, ...] = (8, 64, 128)
    seeds: tuple[int, ...] = (1, 2)
    rules: tuple[str, ...] = tuple(RULES)
    hidden: tuple[int, ...] = (64, 32)
    row_lrs: tuple[float, ...] = (1e-3, 3e-4, 3e-3)
    l2s: tuple[float, ...] = (1e-5, 1e-6, 1e-4)
    dense_lrs: tuple[float, ...] = (1e-3, 3e-4, 3e-3)
    memory: str = "160 MiB"


QUICK = Scale(
    Planted(4000, 2000, (200, 100, 50, 20)), 16, 16, 1, 1, (4,), (1,), ("none", "cowclip"), (8,), (1e-3,), (1e-5,),
    (1e-3,), "8 MiB",
)  # fmt: skip


class Job(NamedTuple):
    s: int
    rule: str
    seed: int

    @property
    def name(self) -> str:
        return f"run-{self.s}-{self.rule}-{self.seed}"


def base(scale: Scale, data: Path, threads: int, settings: Settings, seed: int) -> Workflow:
    """Workflow with the base batch; every split but `train` is the test split, so that each epoch is tested."""
    rows = Adam(
        lr=settings.row_lr, l2=settings.l2, semantics="dense", eps=EPS, eps_place="keras",
        clip=CowClip() if settings.clip else None,
    )  # fmt: skip
    return Workflow(
        name="large_batch",
        data=Data(
            root=data,
            train=("train",),
            validation=("test",),
            labels=("label",),
            categories=tuple(Category(name=f"c{f}") for f in range(len(scale.planted.keys_per_field))),
            shuffle_window=1 << 20,
        ),
        model=Model(kind=DeepFM, embedding_dim=10, args={"hidden": scale.hidden}),
        optimizer=Optimizer(rows=rows, dense=DenseAdam(lr=settings.dense_lr, eps=EPS, eps_place="keras")),
        storage=Storage(
            device=scale.memory, host=scale.memory, disk="4 GiB", read="512 MiB", map="64 MiB", chunk_rows=1024
        ),
        schedule=Schedule(
            batch_size=scale.batch, epochs=scale.epochs, block_batches=scale.block_batches, threads=threads
        ),
        commit=Commit(keep=1, keep_best=False),
        seed=seed,
    )


def scaled(workflow: Workflow, variant: Variant, s: int) -> Workflow:
    """Workflow for batches s times as large, scaled by the variant's rule."""
    fields = scale_batch(workflow, s * workflow.schedule.batch_size, variant.rule).model_dump()
    if not variant.scale_l2:
        fields["optimizer"]["rows"]["l2"] = workflow.optimizer.rows.l2
    if not variant.warm_up:
        fields["optimizer"]["dense"]["warm_up_epochs"] = 0.0
    return Workflow.model_validate(fields)
