"""Settings of optimizers: one for the rows, one for the dense part.

L2 is stated as the gradient that it adds, `l2 * w`, as torch's weight_decay. Keras's `l2(x)` adds 2 * x * w.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from pipeline.settings import Strict

Positive = Annotated[float, Field(gt=0.0)]
NotNegative = Annotated[float, Field(ge=0.0)]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]
EpsPlace = Literal["torch", "keras"]
"""Of Adam's eps. "torch": added to sqrt(v / (1 - beta2^t)), as torch.optim.Adam does. "keras": added to sqrt(v) before
the bias correction, as Keras and torch.optim.SparseAdam do."""


class CowClip(Strict):
    """Clips each row's gradient by its norm, L2 included and first-order weight left out (Zheng et al., AAAI 2023,
    algorithm 1): at most count * max(r * |w|, floor), where count is the batch's examples that hold the key."""

    r: Positive = 1.0
    zeta: NotNegative = 1e-5
    floor: Literal["released", "paper"] = "released"
    """"released": r * r * sqrt(D) * zeta, as the authors' code has it. "paper": zeta."""

    def floor_of(self, embedding_dim: int) -> float:
        return self.zeta * (self.r**2 * embedding_dim**0.5 if self.floor == "released" else 1.0)


class Rows(Strict):
    """Settings that every row optimizer has."""

    lr: Positive
    l2: NotNegative = 0.0
    semantics: Literal["lazy", "dense"] = "lazy"
    """"lazy": a row moves when it is in the batch; L2 once, whatever the count. "dense": as if every row of a table in
    memory moved at every step. A row that was absent is caught up before training next reads it."""


class Sgd(Rows):
    kind: Literal["sgd"] = "sgd"
    lr: Positive = 1e-2


class Adagrad(Rows):
    kind: Literal["adagrad"] = "adagrad"
    lr: Positive = 1e-2
    eps: Positive = 1e-10


class RowWiseAdagrad(Rows):
    """One accumulator for a row's embedding, of its gradient's mean square, and one for its first-order weight."""

    kind: Literal["rowwise_adagrad"] = "rowwise_adagrad"
    lr: Positive = 1e-2
    eps: Positive = 1e-10


class Adam(Rows):
    """Bias correction is by the run's step, whenever the row was in a batch last."""

    kind: Literal["adam"] = "adam"
    lr: Positive = 1e-3
    beta1: Beta = 0.9
    beta2: Beta = 0.999
    eps: Positive = 1e-8
    eps_place: EpsPlace = "keras"
    clip: CowClip | None = None

    @model_validator(mode="after")
    def _absent_rows_can_be_caught_up(self) -> Adam:
        if self.semantics == "dense" and self.beta1**2 >= self.beta2 and self.beta1:
            raise ValueError(
                f"beta1 is {self.beta1} and beta2 {self.beta2}: m would outlive v, and dense semantics could not tell "
                "when an absent row stands still; take a beta2 above beta1 * beta1"
            )
        if self.clip and self.semantics == "dense" and self.l2 > self.clip.r:
            raise ValueError(
                f"l2 is {self.l2} and clip.r {self.clip.r}: rows that are absent from a batch would be clipped, which "
                "dense semantics does not catch up; lower l2 to at most clip.r"
            )
        return self


class Ftrl(Rows):
    """Follow the regularized leader, per coordinate (McMahan et al., KDD 2013, algorithm 1), with L1 and L2 in closed
    form. A weight is a function of its sums, so rows start from zero."""

    kind: Literal["ftrl"] = "ftrl"
    lr: Positive = 0.1
    """alpha"""
    beta: Positive = 1.0
    l1: NotNegative = 0.0


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


class DenseAdam(Strict):
    lr: Positive = 1e-3
    beta1: Beta = 0.9
    beta2: Beta = 0.999
    eps: Positive = 1e-8
    eps_place: EpsPlace = "torch"
    l2: NotNegative = 0.0
    """Of all parameters of the dense part."""
    warm_up_epochs: NotNegative = 0.0
    """In which the learning rate rises linearly, from that of the first step to `lr`."""


class KStep(Strict):
    """k-step Adam of many workers: each takes steps of its own on its replica of the dense part, and at every k-th step
    of the run they merge (Zhao et al., arXiv 2201.05500, after Chen, Li and Li, FODS 2020).

    They merge after an epoch's last step too. Weights and the float buffers of the model become the mean of all
    workers'. Adam is that of `dense`, with v from 0: x -= lr * m / (sqrt(v_hat) + eps). With a frozen denominator
    dense.eps should be 1e-4 or so: a weight whose gradient was zero for long has a v_hat near zero, and when the
    gradient comes back between two merges, 1e-8 throws it far away."""

    k: Annotated[int, Field(ge=1)]
    start: Annotated[int, Field(ge=1)] = 200
    """Up to this step they merge at every step: v begins at 0, and a denominator near that, if it stayed for k steps,
    would throw the weights far away."""
    denominator: Literal["frozen", "local"] = "frozen"
    """"frozen": v_hat is of all workers, and stays from one merge to the next. "local": each worker's own v."""
    form: Literal["adam", "amsgrad"] = "adam"
    """What a frozen v_hat becomes at a merge. "adam": the mean of v. "amsgrad": that, where it is larger."""
    merged: Literal["x", "xv", "xmv"] = "xv"
    """What becomes the mean of all workers': weights, and the moments m and v."""
    bias_correction: bool = False
    inner: Annotated[int, Field(ge=1)] | None = None
    """Two levels: `k` is of merges between machines. Workers of one machine sum their gradients at every step if this
    is 1, else their weights, and nothing more, become their mean at every step that it divides. None: one level."""

    @model_validator(mode="after")
    def _settings_agree(self) -> KStep:
        if self.denominator == "frozen" and self.merged == "x":
            raise ValueError(
                'merged is "x", and a frozen denominator is the mean of all v; take "xv", "xmv" or denominator "local"'
            )
        if self.denominator == "local" and self.form == "amsgrad":
            raise ValueError(
                'form is "amsgrad", which is of a frozen denominator; take "adam", or denominator "frozen"'
            )
        if self.inner and self.k % self.inner:
            raise ValueError(f"inner is {self.inner} and k {self.k}; take a k that inner divides")
        return self


class Optimizer(Strict):
    rows: RowOptimizerConfig = Adam()
    dense: DenseAdam = DenseAdam()
    merge: KStep | None = None
    """How the dense parts of many workers stay together. None: by the sum of their gradients, at every step."""
    max_grad_norm: Positive | None = None
    """The gradient of a step, over all parameters of the dense part and the batch's rows (L2 included), is scaled down
    to this norm. Rows that are not in the batch do not count."""

    @model_validator(mode="after")
    def _clips_once(self) -> Optimizer:
        if self.max_grad_norm is not None and getattr(self.rows, "clip", None):
            raise ValueError("max_grad_norm and rows.clip cannot both be given; leave one out")
        return self

    @model_validator(mode="after")
    def _merges_what_there_is(self) -> Optimizer:
        if self.merge and self.max_grad_norm is not None:
            raise ValueError(
                "max_grad_norm is of the whole batch's gradient, and with merge nobody has the dense part of it; leave "
                "one out"
            )
        if self.merge and self.merge.bias_correction and self.dense.eps_place == "keras":
            raise ValueError('merge.bias_correction has eps where torch has it; set dense.eps_place to "torch"')
        return self

    @property
    def numbers_a_parameter(self) -> int:
        """Numbers of the dense part's optimizer state for each parameter."""
        return 3 if self.merge and self.merge.denominator == "frozen" else 2


class Plateau(Strict):
    """Settings for what follows an epoch whose validation is no better, by more than 1e-6, than the best one so far.
    The weights of the best epoch are those that are tested, and what the result tells of."""

    metric: Literal["auc", "logloss"] = "auc"
    lr_factor: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Both learning rates are multiplied by it after each such epoch."""
    lr_floor: NotNegative = 0.0
    """No learning rate is brought below it."""
    stop_after: Annotated[int, Field(ge=1)] | None = None
    """So many such epochs in a row end the training."""
