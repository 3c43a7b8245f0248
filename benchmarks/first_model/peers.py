"""Tools that a user might choose instead, with their defaults. Everything is chosen by validation logloss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.first_model.columns import bucket_edges
from benchmarks.first_model.sets import SPLITS, Rows
from pipeline.records import Array

HASHED = 1 << 20
STRENGTHS = (0.02, 0.1, 0.5)
TREES, TUNED_PATIENCE = 1000, 300


@dataclass(frozen=True, slots=True)
class Scored:
    """Probabilities that a tool predicts for the validation and test rows, and its settings."""

    validation: Array
    test: Array
    setting: str


def _values(table: pa.Table, name: str) -> list[Any]:
    return list(table.column(name).to_pylist())


def _numbers(rows: Rows, split: str) -> Array:
    """[N, X] numbers; null is NaN."""
    columns = [rows.splits[split].column(name).cast(pa.float64()).to_numpy() for name in rows.numbers]
    return np.stack(columns, 1) if columns else np.zeros((rows.splits[split].num_rows, 0))


def labels_of(rows: Rows, split: str) -> Array:
    return rows.splits[split].column(rows.label).cast(pa.float64()).to_numpy()


def logloss(labels_N: Array, p_N: Array) -> float:
    p_N = np.clip(p_N, 1e-7, 1 - 1e-7)
    return float(-np.mean(labels_N * np.log(p_N) + (1 - labels_N) * np.log(1 - p_N)))


def _best(tries: Iterator[Scored], rows: Rows) -> Scored:
    labels_N = labels_of(rows, "validation")
    return min(tries, key=lambda scored: logloss(labels_N, scored.validation))


def linear(rows: Rows) -> Scored:
    """Logistic regression from scikit-learn: categories hashed and one-hot encoded, values of lists with weight
    1 / length; numbers standardized with a flag for nulls, or in buckets; C and the form chosen by validation."""
    from scipy.sparse import csr_matrix, hstack
    from sklearn.feature_extraction import FeatureHasher
    from sklearn.linear_model import LogisticRegression

    numbers = {split: _numbers(rows, split) for split in SPLITS}
    edges = [bucket_edges(column[np.isfinite(column)]) for column in numbers["train"].T]
    logs = {split: np.sign(of) * np.log1p(np.abs(of)) for split, of in numbers.items()}
    mean = np.nanmean(logs["train"], 0) if rows.numbers else 0.0
    deviation = np.nanstd(logs["train"], 0) + 1e-9 if rows.numbers else 1.0

    def words(split: str, in_buckets: bool) -> Iterator[list[tuple[str, float]]]:
        columns = [(name, _values(rows.splits[split], name)) for name in rows.categories]
        places = [np.searchsorted(e, of) for e, of in zip(edges, numbers[split].T, strict=True)] if in_buckets else []
        for row in range(rows.splits[split].num_rows):
            found = [(f"{name} {number[row]}", 1.0) for name, number in zip(rows.numbers, places, strict=False)]
            for name, values in columns:
                value = values[row]
                many = value if isinstance(value, list) else [value]
                found += [(f"{name}={one}", 1.0 / len(many)) for one in many]
            yield found

    def tries() -> Iterator[Scored]:
        for in_buckets in (False, True) if rows.numbers else (False,):
            hasher = FeatureHasher(HASHED, input_type="pair", alternate_sign=False)
            inputs = {split: hasher.transform(words(split, in_buckets)) for split in SPLITS}
            if not in_buckets and rows.numbers:
                for split in SPLITS:
                    scaled = np.nan_to_num((logs[split] - mean) / deviation)
                    dense = np.concatenate((scaled, np.isnan(numbers[split])), 1)
                    inputs[split] = hstack([inputs[split], csr_matrix(dense)]).tocsr()
            for strength in STRENGTHS:
                model = LogisticRegression(C=strength, max_iter=200).fit(inputs["train"], labels_of(rows, "train"))
                found = [model.predict_proba(inputs[split])[:, 1] for split in SPLITS[1:]]
                yield Scored(found[0], found[1], f"C {strength}, {'buckets' if in_buckets else 'standardized'}")

    return _best(tries(), rows)


def tabular(rows: Rows, as_text: bool) -> dict[str, Any]:
    """pandas tables: lists as length and last value, categories as text or as training codes, -1 if unseen."""
    import pandas as pd

    frames = {split: pd.DataFrame(_numbers(rows, split), columns=list(rows.numbers)) for split in SPLITS}
    for name in rows.categories:
        is_list = pa.types.is_list(rows.splits["train"].schema.field(name).type)
        last: dict[str, list[str]] = {}
        for split in SPLITS:
            values = _values(rows.splits[split], name)
            if is_list:
                frames[split][f"{name}.length"] = [len(value or []) for value in values]
                values = [value[-1] if value else None for value in values]
            last[split] = [str(value) for value in values]
        known = {value: code for code, value in enumerate(dict.fromkeys(last["train"]))}
        for split in SPLITS:
            frames[split][name] = last[split] if as_text else [known.get(value, -1) for value in last[split]]
    return frames


LIGHTGBM: Mapping[str, Any] = {"learning_rate": 0.05, "num_leaves": 31}
LIGHTGBM_TUNED: Mapping[str, Any] = {
    "learning_rate": 0.04, "num_leaves": 50, "bagging_fraction": 0.75, "bagging_freq": 1, "min_data_in_leaf": 40,
    "min_sum_hessian_in_leaf": 1e-7,
}  # fmt: skip
CATBOOST_TUNED: Mapping[str, Any] = {
    "learning_rate": 0.08, "l2_leaf_reg": 1e-5, "boosting_type": "Plain", "bootstrap_type": "Bernoulli",
    "subsample": 0.9, "max_depth": 7, "random_strength": 0.8, "one_hot_max_size": 15, "leaf_estimation_iterations": 1,
    "max_bin": 254,
}  # fmt: skip
"""Parameters that pytabkit 1.7 calls the tuned defaults of classification."""


def lightgbm(rows: Rows, settings: Mapping[str, Any] = LIGHTGBM, trees: int = 2000, patience: int = 100) -> Scored:
    """LightGBM: learning rate .05, 31 leaves, early stopping after 100 rounds."""
    import lightgbm as tool

    frames, labels = tabular(rows, False), {split: labels_of(rows, split) for split in SPLITS}
    names = list(rows.categories)
    train = tool.Dataset(frames["train"], labels["train"], categorical_feature=names)
    held = tool.Dataset(frames["validation"], labels["validation"], reference=train, categorical_feature=names)
    settings = {"objective": "binary", "num_threads": 1, "verbose": -1, **settings}
    model = tool.train(settings, train, trees, [held], callbacks=[tool.early_stopping(patience, verbose=False)])
    found = [np.asarray(model.predict(frames[split])) for split in SPLITS[1:]]
    return Scored(found[0], found[1], f"{model.best_iteration} trees")


def catboost(rows: Rows, settings: Mapping[str, Any] | None = None, patience: int = 50) -> Scored:
    """CatBoost: library defaults, at most 1,000 trees, early stopping after 50."""
    from catboost import CatBoostClassifier, Pool

    frames = tabular(rows, True)
    pools = {split: Pool(frames[split], labels_of(rows, split), cat_features=list(rows.categories)) for split in SPLITS}
    fixed = {"iterations": TREES, "thread_count": 1, "verbose": False, "allow_writing_files": False}
    model = CatBoostClassifier(**fixed, **(settings or {}))
    model.fit(pools["train"], eval_set=pools["validation"], early_stopping_rounds=patience)
    found = [model.predict_proba(pools[split])[:, 1] for split in SPLITS[1:]]
    return Scored(found[0], found[1], f"{model.tree_count_} trees")


def lightgbm_tuned(rows: Rows) -> Scored:
    """LightGBM with pytabkit's tuned defaults: at most 1,000 trees, early stopping after 300."""
    return lightgbm(rows, LIGHTGBM_TUNED, TREES, TUNED_PATIENCE)


def catboost_tuned(rows: Rows) -> Scored:
    """CatBoost with pytabkit's tuned defaults: at most 1,000 trees, early stopping after 300."""
    return catboost(rows, CATBOOST_TUNED, TUNED_PATIENCE)


def vw(rows: Rows) -> Scored:
    """Vowpal Wabbit: logistic, with and without pairs of columns, 1 and 5 passes, by validation."""
    from vowpalwabbit import Workspace

    def lines(split: str) -> list[str]:
        numbers, columns = (
            _numbers(rows, split),
            [(name, _values(rows.splits[split], name)) for name in rows.categories],
        )
        found = []
        for row, label in enumerate(labels_of(rows, split)):
            text = f"{2 * int(label) - 1} |f"
            for place, value in enumerate(numbers[row]):
                if np.isfinite(value):
                    text += f" n{place}:{np.sign(value) * np.log1p(abs(value)):.5g}"
            for place, (_, values) in enumerate(columns):
                many = values[row] if isinstance(values[row], list) else [values[row]]
                for one in many:
                    word = str(one).replace(" ", "_").replace(":", "_").replace("|", "_")
                    text += f" c{place}_{word}:{1 / len(many):.4g}"
            found.append(text)
        return found

    texts = {split: lines(split) for split in SPLITS}

    def tries() -> Iterator[Scored]:
        for pairs in ("", " --interactions ff"):
            for passes in (1, 5):
                model = Workspace(f"--loss_function logistic --link logistic -b 22 --quiet{pairs}")
                for _ in range(passes):
                    for text in texts["train"]:
                        model.learn(text)
                found = [np.array([model.predict(text) for text in texts[split]]) for split in SPLITS[1:]]
                model.finish()
                yield Scored(found[0], found[1], f"{passes} passes{pairs}")

    return _best(tries(), rows)


PEERS: Mapping[str, Callable[[Rows], Scored]] = {
    "lr": linear, "lightgbm": lightgbm, "lightgbm tuned": lightgbm_tuned, "catboost": catboost,
    "catboost tuned": catboost_tuned, "vw": vw,
}  # fmt: skip
