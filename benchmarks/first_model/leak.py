"""How much a split of rows with sampled negatives leaks: unseen rows, scored by memory alone.

    python -m benchmarks.first_model.leak [--data ../shared/data]

In logs such as Frappe, each positive has two negatives of the same user and context, never with an item for which the
user has a positive. If rows are then split at random, training rows determine test rows: an item that was a negative
for the user is a negative again, and a group of user and context with many negatives lacks positives. Memory scores by
these two rules, without parameters, and uses only the user, the item and which rows share a group. Its AUC is the
amount of leakage. If all rows of a user are in one split, memory must be worthless.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import arguments, finish
from benchmarks.first_model.sets import NAMED, codes_of_rows, split_by
from pipeline.init.measures import rank_auc
from pipeline.records import Array

NEGATIVES = 2
"""Number of negatives drawn per positive."""


def memory_auc(train: pa.Table, test: pa.Table) -> float:
    """AUC of memory on test rows. Columns: label, user, item, and others, which are the context."""
    table, first = pa.concat_tables([train, test]), train.num_rows
    pairs_N = codes_of_rows(table, "user", "item")
    groups_N = codes_of_rows(table, *(name for name in table.column_names if name not in ("label", "item")))
    labels_N = table.column("label").to_numpy()

    def counts(codes_N: Array) -> tuple[Array, Array]:
        """Numbers of negatives and positives in training for each row's code."""
        negative_N, positive_N = (
            np.bincount(codes_N[:first][labels_N[:first] == label], minlength=codes_N.max() + 1)[codes_N]
            for label in (0, 1)
        )
        return negative_N, positive_N

    negative_N, positive_N = counts(groups_N)
    # The fewer positives of a group are in training, the more of its other rows are positive.
    lacking_N = (negative_N + NEGATIVES / 3) / (negative_N + positive_N + (NEGATIVES + 1) / 3)
    negative_N, positive_N = counts(pairs_N)
    scores_N = np.sign(positive_N) - np.sign(negative_N) + lacking_N
    return rank_auc(scores_N[first:], labels_N[first:] > 0)


def planted(seed: int, leaks: bool = True) -> tuple[pa.Table, Array]:
    """Generate such a log, and the best logit of each row that a model can learn. Without `leaks`, each row is positive
    with probability 1 / 3, independently of the others, and negatives can have any items."""
    rng = np.random.default_rng(seed)
    num_users, num_items, num_groups, rows = 200, 300, 8, 9
    logits_UI = 0.5 * rng.normal(0, 1, (num_users, 4)) @ rng.normal(0, 1, (4, num_items))
    chances_UI = np.exp(logits_UI)
    chances_UI /= chances_UI.sum(1, keepdims=True)
    labels_UGR = np.tile(np.arange(rows) % (NEGATIVES + 1) == 0, (num_users, num_groups, 1))
    if not leaks:
        labels_UGR = rng.random(labels_UGR.shape) < 1 / (NEGATIVES + 1)
    items_UGR = np.zeros(labels_UGR.shape, np.int64)
    for user, labels_GR in enumerate(labels_UGR):
        liked = rng.choice(num_items, labels_GR.sum(), p=chances_UI[user])
        others = np.setdiff1d(np.arange(num_items), liked) if leaks else np.arange(num_items)
        items_UGR[user][labels_GR] = liked
        items_UGR[user][~labels_GR] = rng.choice(others, (~labels_GR).sum())
    users_N, groups_N, _ = (places.ravel() for places in np.indices(labels_UGR.shape))
    items_N = items_UGR.ravel()
    context = {"daytime": groups_N % 4, "weekday": groups_N // 4}
    table = pa.table({"label": labels_UGR.ravel().astype(np.int8), "user": users_N, "item": items_N} | context)
    return table, logits_UI[users_N, items_N]


def by_rows(table: pa.Table) -> dict[str, pa.Table]:
    """Split the rows at random; a fifth is for test."""
    drawn_N, cut = np.random.default_rng(0).permutation(table.num_rows), table.num_rows // 5
    return {"train": table.take(drawn_N[cut:]), "test": table.take(drawn_N[:cut])}


def main() -> None:
    args = arguments("first_model.leak", "what the split of Frappe gives away")
    if args.quick:
        table = planted(0)[0]
        splits = by_rows(table)
    else:
        splits = {split: pq.read_table(args.data / "frappe_x1" / names[0]) for split, names in NAMED.items()}
        table = pa.concat_tables(splits.values())
    divided = {"rows divided at random": splits, "users divided": split_by(table, "user")}
    figures = {f"memory, {name}": memory_auc(of["train"], of["test"]) for name, of in divided.items()}
    for name, value in figures.items():
        print(f"{name}: AUC {value:.4f}")
    finish(args, figures)


if __name__ == "__main__":
    main()
