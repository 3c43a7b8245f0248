"""Settings of a run other than training: commits, several workers, and metrics."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pipeline.settings import Omitting, Strict

MAX_KEPT = 16


class Commit(Strict):
    """Settings for commits. A commit is also taken at the end of every epoch and when a signal stops the run."""

    every_blocks: Annotated[int, Field(ge=1)] | None = None
    """Number of training blocks between commits."""
    every_minutes: Annotated[float, Field(gt=0.0)] | None = 10.0
    """Minutes between commits."""
    keep: Annotated[int, Field(ge=1, le=MAX_KEPT)] = 2
    """Number of most recent commits to keep."""
    keep_best: bool = True
    """Also keep, under the name "best", the commit of the epoch that is best on the validation split, by AUC (MSE if
    the first label is any number) or by the metric of schedule.plateau."""


SHARDS = 16
"""Default number of shards of a table created by several workers."""


class Workers(Strict):
    """Settings for several workers (`--workers`, `--scheduler`). Storage caps are per worker. schedule.threads is per
    machine; the workers of a machine share the threads."""

    shards: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Number of shards of a new table. It never changes afterwards and limits the number of workers. By default 16 with
    several workers, 1 with one."""
    timeout_seconds: Annotated[float, Field(gt=0.0)] = 120.0
    """Time that a worker waits for another in a collective. It must be longer than a commit takes."""
    silent_seconds: Annotated[float, Field(gt=0.0)] = 30.0
    """Time without a heartbeat after which a worker is considered lost."""
    check_collectives: bool = False
    """Before each collective, compare its number and kind among the workers. A check for developers of this package."""

    def num_shards(self, world: int) -> int:
        """Number of shards of a table created by `world` workers."""
        return self.shards or (SHARDS if world > 1 else 1)


class Metrics(Omitting):
    """Additional metrics. AUC, logloss, normalized entropy and calibration of the evaluated splits are always reported
    (for a label that is any number, MSE, RMSE, MAE and R2 instead). With CowClip, so is the share of an epoch's row
    gradients that were clipped."""

    later = ("score_spans", "score_arrivals", "guard", "guard_then")

    group: str | None = None
    """A column of integers or strings, such as a user ID. Reports the AUC within each of its values, averaged."""
    top: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Number K of highest scores of each group for recall and NDCG, which are reported only if it is set."""
    progressive: bool = False
    """Report the same metrics for the training split, with each batch scored before its update. The scores come from
    the training forward pass, so dropout and batch norm are as in training. If a run is resumed within an epoch, the
    metrics of that epoch count the rest of its examples, and `from_example` is the number of the first one."""
    score_spans: bool = True
    """Score each span of the training data (see `data.span`) with the model trained on the spans before it."""
    score_arrivals: bool = False
    """Also score, at the end of a command, each span that waits for its labels (`data.label_delay`) and was not scored
    so before, without its null labels. These scores are shown only: the guard and the run's result ignore them."""
    guard: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] | None = None
    """Maximum by which the normalized entropy of a span may exceed the mean of the seven spans scored before it. The
    run does not train on a worse span."""
    guard_then: Literal["stop", "hold"] = "stop"
    """What happens then: the run stops (exit code 3), or the span is set aside and later ones go on (exit code 4)."""
