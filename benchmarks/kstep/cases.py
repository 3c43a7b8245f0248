"""Cases of `kstep`: ways to synchronize replicas of the dense part, models, and sizes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.settings.optimizer import Adam, DenseAdam, KStep, Optimizer
from pipeline.workflow import Workflow
from workflows.frappe import frappe

MODELS = {"plain": False, "batch_norm": True}
"""DeepFM without and with batch norm."""

SYNCHRONOUS = "synchronous"
"""Name of the case of torch's Adam on the sum of all gradients, at every step."""
KS = (1, 5, 20, 50, 100)
VARIED_K = 20
VARIANTS: dict[str, dict[str, Any]] = {
    "frozen_xmv": {"merged": "xmv"},
    "frozen_amsgrad": {"form": "amsgrad"},
    "local_x": {"denominator": "local", "merged": "x"},
    "local_xv": {"denominator": "local", "merged": "xv"},
    "local_xmv": {"denominator": "local", "merged": "xmv"},
    "start_1": {"start": 1},
}
"""Differences of each variant from the defaults of `KStep` (variant frozen_xv) or of `Scale`."""


@dataclass(frozen=True)
class Scale:
    """Sizes of everything; a quick run only shows that it works, its accuracies mean nothing."""

    workers: int = 4
    batch_size: int = 1024
    """Number of examples of a batch over all workers."""
    epochs: int = 8
    """Number of epochs. In the fourth, the AUC without batch norm still rises by 0.01 per epoch, so after fewer epochs
    a difference could be just a delay."""
    start: int = 200
    eps: float = 1e-4
    """Adam's eps of the dense part. With 1e-8, a weight whose gradient was zero, and becomes nonzero between two
    merges, jumps far away. The published algorithm starts v_hat at 1e-8, in its AMSGrad form the same floor of 1e-4."""
    hidden: tuple[int, ...] = (400, 400, 400)
    init_std: float = 1e-2
    ks: tuple[int, ...] = KS
    varied_k: int = VARIED_K
    variants: tuple[str, ...] = tuple(VARIANTS)


QUICK = Scale(batch_size=128, epochs=1, start=10, hidden=(16,), ks=(1, 5), varied_k=5, variants=("local_xv",))


class Job(NamedTuple):
    model: str
    case: str
    """Name of the case: SYNCHRONOUS, k1, k5, ... or one of VARIANTS."""
    seed: int

    @property
    def name(self) -> str:
        return f"{self.model}-{self.case}-{self.seed}"


def cases(scale: Scale) -> dict[str, Optimizer]:
    """Optimizer of each case by name, in the order in which cases are run and printed."""
    settings: dict[str, dict[str, Any]] = {f"k{k}": {"k": k} for k in scale.ks}
    settings |= {name: {"k": scale.varied_k} | VARIANTS[name] for name in scale.variants}
    made = {}
    for name, fields in settings.items():
        made[name] = _optimizer(scale.eps, KStep.model_validate({"start": scale.start} | fields))
    return made | {SYNCHRONOUS: _optimizer(scale.eps, None)}


def _optimizer(eps: float, merge: KStep | None) -> Optimizer:
    return Optimizer(rows=Adam(semantics="dense", eps_place="torch"), dense=DenseAdam(eps=eps), merge=merge)


def workflow_of(job: Job, scale: Scale, data: Path) -> Workflow:
    """Workflow of DeepFM on Frappe: D = 10, Adam 1e-3 for rows and dense part, no L2, no dropout, no clipping."""
    fields = frappe("DeepFM").model_dump()
    fields["data"]["root"], fields["seed"] = data, job.seed
    fields["model"] |= {
        "args": {"hidden": scale.hidden, "batch_norm": MODELS[job.model], "init": "xavier"},
        "init_std": scale.init_std,
    }
    fields["schedule"] |= {"batch_size": scale.batch_size, "epochs": scale.epochs, "plateau": None, "threads": 1}
    fields["optimizer"] = cases(scale)[job.case].model_dump()
    return Workflow.model_validate(fields)
