"""A split by rows after negatives were drawn lets memory beat the best model; a split by users does not."""

import numpy as np
import pytest

from benchmarks.first_model.leak import by_rows, memory_auc, planted
from benchmarks.first_model.sets import split_by
from pipeline.init.measures import rank_auc


@pytest.mark.parametrize("seed", [0, 1])
def test_memory_beats_the_true_model_where_negatives_leak(seed):
    table, logits_N = planted(seed)
    best = rank_auc(logits_N, table.column("label").to_numpy() > 0)
    rows, users = by_rows(table), split_by(table, "user")
    assert memory_auc(rows["train"], rows["test"]) > best + 0.05
    assert memory_auc(users["train"], users["test"]) == 0.5


def test_memory_is_behind_the_true_model_of_independent_rows():
    table, logits_N = planted(0, leaks=False)
    rows = by_rows(table)
    best = rank_auc(logits_N, table.column("label").to_numpy() > 0)
    assert memory_auc(rows["train"], rows["test"]) < best - 0.05


def test_equal_values_are_in_one_split():
    splits = split_by(planted(0)[0], "user", "weekday")
    parts = [{*map(str, of.select(["user", "weekday"]).to_pylist())} for of in splits.values()]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 400
    sizes = np.array([of.num_rows for of in splits.values()]) / 14_400
    assert abs(sizes - (0.6, 0.2, 0.2)).max() < 0.06
