"""Clicks for `large_batch`: keys as rare as Criteo's, and a label that depends on every one of them.

The logit of an example is the sum of a bias, an effect of each of its keys, and the product of the latent vectors of
each pair of its keys. All keys occur in training, half of them fewer than ten times. Since the logit is known, so is
the AUC that no model can exceed except by chance: that of the logit itself.

N examples    F fields    K keys of all fields    R rank of the pairwise effects
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

F64, I32 = NDArray[np.float64], NDArray[np.int32]

GROUP_EXAMPLES = 1 << 16
RARE = 10
DONE = "planted.json"


@dataclass(frozen=True)
class Planted:
    train: int = 640_000
    test: int = 500_000
    keys_per_field: tuple[int, ...] = (40_000, 25_000, 15_000, 10_000, 5_000, 3_000, 1_500, 400, 80, 20)
    zipf: float = 0.91
    main_std: float = 1.2
    """Standard deviation of the sum of an example's first-order effects."""
    pair_std: float = 1.0
    """Standard deviation of the sum of its pairwise effects."""
    rank: int = 4
    positive_rate: float = 0.3
    seed: int = 0


def draw_keys(planted: Planted, rng: np.random.Generator, num_examples: int, every_key: bool) -> I32:
    """[N, F] keys 0 .. n - 1 of each field, key k with a frequency of about (k + 1) ** -zipf; if `every_key`, each key
    occurs at least once."""
    columns = []
    for num_keys in planted.keys_per_field:
        share_K = np.arange(1, num_keys + 1) ** -planted.zipf
        once = num_keys if every_key else 0
        at_N = np.searchsorted(np.cumsum(share_K), share_K.sum() * rng.random(num_examples - once), side="right")
        drawn_N = np.concatenate([np.arange(once), np.minimum(at_N, num_keys - 1)])
        columns.append(rng.permutation(drawn_N).astype(np.int32))
    return np.stack(columns, 1)


def effects(planted: Planted, rng: np.random.Generator, keys_NF: I32) -> tuple[F64, F64]:
    """[K] first-order effects and [K, R] latent vectors, scaled so that their sums over examples have the planned
    standard deviations."""
    num_keys = sum(planted.keys_per_field)
    main_K, latent_KR = rng.standard_normal(num_keys), rng.standard_normal((num_keys, planted.rank))
    main_N, pairs_N = sums(planted, main_K, latent_KR, keys_NF)
    # The product of two latent vectors grows with the square of their scale.
    return main_K * planted.main_std / main_N.std(), latent_KR * np.sqrt(planted.pair_std / pairs_N.std())


def sums(planted: Planted, main_K: F64, latent_KR: F64, keys_NF: I32) -> tuple[F64, F64]:
    """[N] sums of the first-order effects, and [N] sums of the effects of all pairs of fields."""
    first_F = np.cumsum([0, *planted.keys_per_field[:-1]])
    main_N, sum_NR, squares_N = np.zeros(len(keys_NF)), np.zeros((len(keys_NF), planted.rank)), np.zeros(len(keys_NF))
    for f, first in enumerate(first_F):
        at_N = first + keys_NF[:, f]
        main_N += main_K[at_N]
        sum_NR += latent_KR[at_N]
        squares_N += np.square(latent_KR[at_N]).sum(1)
    return main_N, (np.square(sum_NR).sum(1) - squares_N) / 2


def sigmoid(x_N: F64) -> F64:
    return 1 / (1 + np.exp(-x_N))


def bias(logits_N: F64, positive_rate: float) -> float:
    """Bias that makes this share of labels positive on average, found by bisection."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if sigmoid(logits_N + middle).mean() > positive_rate else (middle, high)
    return low


def ensure(planted: Planted, root: Path) -> dict[str, Any]:
    """Make the data in `root` unless it exists, and return the content of planted.json: `bayes_auc`, and counts.

    Raises ValueError if `root` contains data with other parameters.
    """
    parameters = json.loads(json.dumps(asdict(planted)))
    if not (root / DONE).exists():
        _write(root / DONE, json.dumps({"parameters": parameters, **_make(planted, root)}, indent=1) + "\n")
    known: dict[str, Any] = json.loads((root / DONE).read_text())
    if known["parameters"] != parameters:
        raise ValueError(
            f"{root} holds data of other parameters: {known['parameters']}; name another folder with --data"
        )
    return known


def _make(planted: Planted, root: Path) -> dict[str, Any]:
    rng = np.random.default_rng(planted.seed)
    keys = {"train": draw_keys(planted, rng, planted.train, every_key=True)}
    keys["test"] = draw_keys(planted, rng, planted.test, every_key=False)
    model = effects(planted, rng, keys["train"])
    logits = {split: sum(sums(planted, *model, keys_NF)) for split, keys_NF in keys.items()}
    shift = bias(logits["train"], planted.positive_rate)
    labels = {split: (rng.random(len(x_N)) < sigmoid(x_N + shift)).astype(np.int8) for split, x_N in logits.items()}
    for split in keys:
        _write_split(root / split, labels[split], keys[split])
    counts_K = np.concatenate([np.bincount(column_N) for column_N in keys["train"].T])
    return {
        "bayes_auc": float(roc_auc_score(labels["test"], logits["test"])),
        "positives": int(labels["test"].sum()),
        "negatives": int((labels["test"] == 0).sum()),
        "rare_keys": float((counts_K < RARE).mean()),
    }


def _write_split(folder: Path, labels_N: NDArray[np.int8], keys_NF: I32) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    columns = {"label": labels_N} | {f"c{f}": keys_NF[:, f] for f in range(keys_NF.shape[1])}
    path = folder / f"part-0.parquet.{os.getpid()}"
    pq.write_table(pa.table(columns), path, row_group_size=GROUP_EXAMPLES)
    os.replace(path, folder / "part-0.parquet")


def _write(path: Path, text: str) -> None:
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(text)
    os.replace(partial, path)
