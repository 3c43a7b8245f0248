"""Settings of the row optimizer and of the dense optimizer.

L2 is defined by the gradient that it adds, `l2 * w`, like weight_decay in torch. Keras's `l2(x)` adds 2 * x * w.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from pipeline.errors import did_you_mean
from pipeline.settings import Strict

Positive = Annotated[float, Field(gt=0.0)]
NotNegative = Annotated[float, Field(ge=0.0)]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]
EpsPlace = Literal["torch", "keras"]
"""Place of Adam's eps. "torch": added to sqrt(v / (1 - beta2^t)), as in torch.optim.Adam. "keras": added to sqrt(v)
before the bias correction, as in Keras and torch.optim.SparseAdam."""


class CowClip(Strict):
    """Clips the norm of each row's gradient to count * max(r * |w|, floor), where count is the number of examples of
    the batch that contain the key (Zheng et al., AAAI 2023, algorithm 1). The gradient includes L2 and excludes the
    first-order weight."""

    r: Positive = 1.0
    zeta: NotNegative = 1e-5
    """Factor of the weights' norm, and the norm that `floor` is made of."""
    floor: Literal["released", "paper"] = "released"
    """Definition of the floor. "released": r * r * sqrt(D) * zeta, as in the authors' code. "paper": zeta."""

    def floor_of(self, embedding_dim: int) -> float:
        return self.zeta * (self.r**2 * embedding_dim**0.5 if self.floor == "released" else 1.0)


class RowStorage(Strict):
    """Number formats in which rows are stored, in every tier. Kernels compute in float32. A row is rounded only when
    training stores it, stochastically and without bias."""

    weights: Literal["float32", "bfloat16", "float16"] = "float32"
    """Format of the weights."""
    state: Literal["float32", "bfloat16"] = "float32"
    """Adam's m, Adagrad's sums, FTRL's z and n. The two sums of row-wise Adagrad are always float32. float16 would lose
    small sums of squares."""
    v: Literal["float32", "bfloat16"] | None = None
    """Adam's v; by default like `state`."""


NAMED_STORAGE = {
    "float32": RowStorage(),
    "bfloat16": RowStorage(weights="bfloat16", state="bfloat16"),
    "float16": RowStorage(weights="float16", state="bfloat16"),
}


def _stored_as(value: Any) -> Any:
    """Settings for a name: weights in this format, and optimizer state in bfloat16 unless the format is float32."""
    if isinstance(value, str) and value not in NAMED_STORAGE:
        raise ValueError(f"must be {', '.join(map(repr, NAMED_STORAGE))}, or formats of `weights`, `state` and `v`")
    return NAMED_STORAGE[value] if isinstance(value, str) else value


class Rows(Strict):
    """Settings that all row optimizers share."""

    lr: Positive
    """Learning rate."""
    l2: NotNegative = 0.0
    """L2 of a row's weights: this, times the weight, is added to the gradient."""
    semantics: Literal["lazy", "dense"] = "lazy"
    """"lazy": a row is updated only by steps whose batch contains its key, and L2 is then added once, whatever the
    key's count. "dense": rows have the same values as if every row were updated at every step; a row that missed steps
    is caught up before training reads it again."""
    storage: Annotated[RowStorage, BeforeValidator(_stored_as)] = RowStorage()
    """Formats of stored rows, or the name of one: "float32", "bfloat16" or "float16" weights, the latter two with
    optimizer state in bfloat16."""

    @model_validator(mode="after")
    def _has_what_is_stored(self) -> Rows:
        if self.storage.v and not isinstance(self, Adam):
            raise ValueError("storage.v is the format of Adam's v, but this optimizer has none; leave it out")
        return self


class Sgd(Rows):
    kind: Literal["sgd"] = "sgd"
    lr: Positive = 1e-2


class Adagrad(Rows):
    kind: Literal["adagrad"] = "adagrad"
    lr: Positive = 1e-2
    eps: Positive = 1e-10
    """Learning rate, and the amount added to the divisor."""


class RowWiseAdagrad(Rows):
    """Row-wise Adagrad: each row has one accumulator for the mean square of the embedding's gradient, and one for the
    first-order weight."""

    kind: Literal["rowwise_adagrad"] = "rowwise_adagrad"
    lr: Positive = 1e-2
    eps: Positive = 1e-10
    """Learning rate, and the amount added to the divisor."""


class Adam(Rows):
    """Adam. Bias correction uses the step of the run, not the number of updates of the row."""

    kind: Literal["adam"] = "adam"
    lr: Positive = 1e-3
    """Learning rate."""
    beta1: Beta = 0.9
    beta2: Beta = 0.999
    eps: Positive = 1e-8
    eps_place: EpsPlace = "keras"
    """Decays of the means of the gradient and of its square; the amount added to the divisor, after the correction of
    its bias as in "torch", or before it as in "keras"."""
    clip: CowClip | None = None
    """Clips each row's gradient by the norm of its weights."""

    @model_validator(mode="after")
    def _absent_rows_can_be_caught_up(self) -> Adam:
        if self.semantics == "dense" and self.beta1**2 >= self.beta2 and self.beta1:
            raise ValueError(
                f"beta1 is {self.beta1} and beta2 {self.beta2}: m / sqrt(v) of an absent row would not shrink, and "
                "dense semantics could not compute when the row stops moving; set beta2 above beta1 * beta1"
            )
        if self.clip and self.semantics == "dense" and self.l2 > self.clip.r:
            raise ValueError(
                f"l2 is {self.l2} and clip.r {self.clip.r}: the L2 gradients of absent rows would be clipped, which "
                "the catch-up of dense semantics does not do; lower l2 to at most clip.r"
            )
        return self


class Ftrl(Rows):
    """FTRL-Proximal, per coordinate (McMahan et al., KDD 2013, algorithm 1), with L1 and L2 in closed form. A weight is
    a function of its sums, so rows start at zero."""

    kind: Literal["ftrl"] = "ftrl"
    lr: Positive = 0.1
    """Learning rate, alpha in the paper."""
    beta: Positive = 1.0
    """Amount added to the root of the sum of squares, beta in the paper."""
    l1: NotNegative = 0.0
    """L1 of the weights; larger values make more of them exactly 0."""


def _kind(value: Any) -> str:
    return str(value.get("kind", "adam") if isinstance(value, dict) else getattr(value, "kind", "adam"))


RowOptimizerConfig = Annotated[
    Annotated[Sgd, Tag("sgd")]
    | Annotated[Adagrad, Tag("adagrad")]
    | Annotated[RowWiseAdagrad, Tag("rowwise_adagrad")]
    | Annotated[Adam, Tag("adam")]
    | Annotated[Ftrl, Tag("ftrl")],
    Discriminator(_kind),
]

ROW_OPTIMIZERS: dict[str, type[Rows]] = {
    kind.model_fields["kind"].default: kind for kind in (Sgd, Adagrad, RowWiseAdagrad, Adam, Ftrl)
}
"""Row optimizers by kind."""


class DenseAdam(Strict):
    """Adam of the dense part."""

    lr: Positive = 1e-3
    """Learning rate."""
    beta1: Beta = 0.9
    beta2: Beta = 0.999
    eps: Positive = 1e-8
    eps_place: EpsPlace = "torch"
    """As in `Adam`."""
    l2: NotNegative = 0.0
    """L2 of all parameters of the dense part."""
    warm_up_epochs: NotNegative = 0.0
    """Number of epochs in which the learning rate rises linearly, step by step, to `lr`."""
    average: Annotated[int, Field(ge=1)] | None = None
    """Number N of last steps over which the weights are averaged for evaluation, export and serving. Training continues
    with the plain weights. Up to step N, this is the mean of all steps; afterwards, an exponential moving average in
    which the newest weights have weight 1 / N. Rows are not averaged. None: no average."""


class KStep(Strict):
    """k-step Adam for several workers: each worker takes local steps on its replica of the dense part, and the replicas
    merge at every k-th step of the run (Zhao et al., arXiv 2201.05500, after Chen, Li and Li, FODS 2020).

    They also merge after an epoch's last step. A merge sets the weights and the model's float buffers to the mean over
    all workers. Adam uses the settings of `dense`, and v starts at 0: x -= lr * m / (sqrt(v_hat) + eps). With a frozen
    denominator, dense.eps should be about 1e-4: a weight whose gradient was zero for a long time has a v_hat near zero,
    and with 1e-8 its next gradient between two merges would move it very far."""

    k: Annotated[int, Field(ge=1)]
    """Number of steps between merges."""
    start: Annotated[int, Field(ge=1)] = 200
    """Number of initial steps after each of which the replicas merge: v starts at 0, and a denominator near 0 that is
    frozen for k steps would move the weights very far."""
    denominator: Literal["frozen", "local"] = "frozen"
    """"frozen": v_hat is computed from all workers at a merge and constant until the next. "local": each worker uses
    its v."""
    form: Literal["adam", "amsgrad"] = "adam"
    """New value of a frozen v_hat at a merge. "adam": the mean of v. "amsgrad": the maximum of v_hat and that mean."""
    merged: Literal["x", "xv", "xmv"] = "xv"
    """State that a merge sets to the mean over all workers: weights x, moments m and v."""
    bias_correction: bool = False
    """Correct the bias of m and v, as Adam does."""
    inner: Annotated[int, Field(ge=1)] | None = None
    """Second level of merging, within each machine; None: one level. `k` then counts steps between merges of machines.
    If 1, the workers of a machine sum their gradients at every step. Otherwise, at every step divisible by `inner`,
    only their weights are set to the mean over the machine."""

    @model_validator(mode="after")
    def _settings_agree(self) -> KStep:
        if self.denominator == "frozen" and self.merged == "x":
            raise ValueError(
                'merged is "x", but a frozen denominator needs the mean of v; use "xv", "xmv" or denominator "local"'
            )
        if self.denominator == "local" and self.form == "amsgrad":
            raise ValueError('form is "amsgrad", which needs a frozen denominator; use "adam", or denominator "frozen"')
        if self.inner and self.k % self.inner:
            raise ValueError(f"inner is {self.inner} and k is {self.k}; set k to a multiple of inner")
        return self


class Optimizer(Strict):
    rows: RowOptimizerConfig = Adam()
    dense: DenseAdam = DenseAdam()
    """Optimizers of the embedding rows, and of the rest of the model."""
    merge: KStep | None = None
    """k-step Adam for the dense parts of several workers. None: they sum their gradients at every step."""
    max_grad_norm: Positive | None = None
    """Maximum norm of a step's gradient; larger gradients are scaled down to it. The norm covers all parameters of the
    dense part and the batch's rows, including L2. Rows that are not in the batch are excluded."""

    @model_validator(mode="after")
    def _clips_once(self) -> Optimizer:
        if self.max_grad_norm is not None and getattr(self.rows, "clip", None):
            raise ValueError("max_grad_norm and rows.clip cannot both be given; leave one out")
        return self

    @model_validator(mode="after")
    def _merges_what_there_is(self) -> Optimizer:
        if self.merge and self.max_grad_norm is not None:
            raise ValueError(
                "max_grad_norm needs the gradient of the whole batch, but with merge no worker has its dense part; "
                "leave out one of the two"
            )
        if self.merge and self.merge.bias_correction and self.dense.eps_place == "keras":
            raise ValueError('merge.bias_correction places eps as torch does; set dense.eps_place to "torch"')
        return self

    @property
    def numbers_a_parameter(self) -> int:
        """Number of values that a commit stores for each parameter of the dense part, in addition to the parameter."""
        frozen = self.merge is not None and self.merge.denominator == "frozen"
        return 2 + frozen + (self.dense.average is not None)


OF_NUMBERS = ("mse", "rmse", "mae", "r2")
"""Metrics of a label that is any number."""
JUDGED = ("auc", "logloss", "ne", "gauc", "recall", "ndcg", *OF_NUMBERS)


def _metric(value: object) -> object:
    """Convert METRIC_LABEL to METRIC:LABEL. Raises ValueError for a name that does not begin with a metric."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(rf"({'|'.join(JUDGED)})(?:[:_](.+))?", value)
    if found is None:
        metric = re.split("[:_]", value)[0]
        close, _ = did_you_mean(metric, JUDGED)
        hint = f"; did you mean {value.replace(metric, close, 1)!r}?" if close else ";"
        raise ValueError(f"no metric {value!r}{hint} Metrics: {', '.join(JUDGED)} for the first label, or METRIC:LABEL")
    return f"{found[1]}:{found[2]}" if found[2] else value


class Plateau(Strict):
    """Early stopping and learning rate reduction, applied after each epoch whose validation metric does not improve on
    the best one so far by more than `min_gain`. An epoch with an undefined metric does not count. The result reports
    the test of the best epoch's weights."""

    metric: Annotated[str, BeforeValidator(_metric)] = "auc"
    """Metric of the first label, or METRIC:LABEL for another label (METRIC_LABEL, as in the names of metrics, means the
    same). gauc, the AUC within groups, needs metrics.group; recall and ndcg also need metrics.top; mse, rmse, mae and
    r2 are for labels that are any number."""
    min_gain: NotNegative = 1e-6
    """Minimum by which the metric of a better epoch improves on the best one so far."""
    lr_factor: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Factor by which both learning rates are multiplied after each such epoch."""
    lr_floor: NotNegative = 0.0
    """Lower bound for both learning rates."""
    stop_after: Annotated[int, Field(ge=1)] | None = None
    """Number of consecutive such epochs after which training ends; None: it never ends early."""
