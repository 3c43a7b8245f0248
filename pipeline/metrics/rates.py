"""Terms that metrics sum over examples, and the metrics of these sums.

B examples of a batch    T labels
"""

from __future__ import annotations

import math

import numpy as np

from pipeline.records import F32, F64


def cross_entropy(logits_BT: F32, labels_BT: F32) -> F64:
    """[B, T] binary cross-entropy in nats, in float64; labels are 0 or 1.

    NaN only for a NaN logit; an infinite logit gives 0 or infinity.
    """
    # With z = x for label 0 and -x for label 1: log(1 + exp(z)), without overflow.
    wrong_BT = np.where(labels_BT == 1, -logits_BT, logits_BT).astype(np.float64)
    return np.maximum(wrong_BT, 0) + np.log1p(np.exp(-np.abs(wrong_BT)))


def probability(logits_BT: F32) -> F64:
    """[B, T] 1 / (1 + exp(-logit)), in float64, without overflow."""
    small_BT = np.exp(-np.abs(logits_BT.astype(np.float64)))
    return np.where(logits_BT >= 0, 1.0, small_BT) / (1.0 + small_BT)


def rates(loss: float, predicted: float, clicked: float, weight: float) -> dict[str, float]:
    """`logloss`, `ne` and `calibration` from weighted sums over examples.

    ne (normalized entropy): logloss divided by that of a model that always predicts the mean label (He et al.,
    Practical Lessons from Predicting Clicks on Ads at Facebook, ADKDD 2014); nan if only one class has weight.
    calibration: mean prediction divided by mean label; nan if there is no positive. All are nan if the weight is 0.
    """
    mean = clicked / weight if weight else math.nan
    entropy = -(mean * math.log(mean) + (1 - mean) * math.log1p(-mean)) if 0 < mean < 1 else math.nan
    logloss = loss / weight if weight else math.nan
    return {"logloss": logloss, "ne": logloss / entropy, "calibration": predicted / clicked if clicked else math.nan}


LEAST_SPREAD = 1e-12
"""Minimum variance of a label for R2, relative to its mean square. float32 cannot resolve less."""


def errors(squared: float, absolute: float, label: float, label_squared: float, weight: float) -> dict[str, float]:
    """`mse`, `rmse`, `mae` and `r2` from weighted sums over examples: of the squared error, the absolute error, the
    label, and the squared label.

    r2: 1 - mse / variance of the label; nan if all labels are equal to float32 precision. All are nan if the weight
    is 0.
    """
    mse, mae = (total / weight if weight else math.nan for total in (squared, absolute))
    spread = label_squared - label * label / weight if weight else 0.0
    r2 = 1 - squared / spread if spread > LEAST_SPREAD * label_squared else math.nan
    return {"mse": mse, "rmse": math.sqrt(mse), "mae": mae, "r2": r2}
