"""The importance of a sequence is that of whole histories."""

import numpy as np
import pyarrow as pa

from pipeline.doctor.importance import find_importance
from pipeline.doctor.seen import JudgedRows
from pipeline.workflow import Sequence

ROWS = 600


class Run:
    """Its AUC is the share of the rows whose first item is the candidate. It refuses histories whose lists come from
    different examples."""

    def evaluate(self, table):
        rows = table.to_pylist()
        assert all([f"c{item}" for item in row["hist"]] == row["hist_kinds"] for row in rows)
        return {"auc": float(np.mean([row["hist"][0] == row["item"] for row in rows]))}


def test_whole_histories_go_to_other_examples():
    items = np.random.default_rng(0).integers(0, 9, ROWS).tolist()
    lists = [[item] * (1 + n % 3) for n, item in enumerate(items)]
    kinds = [[f"c{item}" for item in one] for one in lists]
    table = pa.table({"item": items, "user": [0] * ROWS, "hist": lists, "hist_kinds": kinds})
    labels_N = (np.arange(ROWS) % 2).astype(np.float32)
    judged = JudgedRows("test", np.arange(ROWS), table, labels_N, "click", ["item", "user"])
    history = Sequence(name="history", items={"hist": "item", "hist_kinds": "kind"})
    (found,) = find_importance(judged, Run(), [history])
    assert sorted(found.columns[:2]) == ["item", "sequence history"]
    assert "No clear effect (too few rows, or a useless field): user" in found.text
