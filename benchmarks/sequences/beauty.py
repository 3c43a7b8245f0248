"""Amazon Beauty, 5-core: workflows of the models, and the protocol of SASRec and S3-Rec: the last item of each user
against 99 items that the user never had.

    python -m benchmarks.sequences.beauty [MODEL ...] [--seeds 1 2 3] [--epochs N] [--users N]

Each model is trained by the pipeline, once per seed. AUC, logloss, HR@10, NDCG@10 and MRR are those of the test split
at the epoch with the best validation. Each run writes one JSON file to --out and is not repeated.
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.common import arguments, finish, machine
from benchmarks.once import Quiet, once, read, train
from benchmarks.sequences.stand_in import check_files, write_beauty
from pipeline import models
from pipeline.serving.opened import open_run
from pipeline.workflow import Workflow

MODELS: dict[str, dict[str, Any]] = {
    "MeanPooling": {"hidden": (128, 64)},
    "DIN": {"hidden": (128, 64), "attention": (64, 32)},
    "DIEN": {"hidden": (128, 64), "attention": (64, 32)},
    "BST": {"hidden": (128, 64), "heads": 4},
    "SASRec": {"hidden": (128, 64), "heads": 1, "layers": 2, "positions": 50},
}
METRICS = ("auc", "logloss", "hr10", "ndcg10", "mrr")
FILES = tuple(f"{name}.parquet" for name in ("train", "valid", "test", "test_rank99", "users", "items"))
NEGATIVES, MOST = 99, 50
"""Number of items with which the last one is compared, and maximum history length, as in the data's lists."""


def workflow(data: Path, model: str, seed: int, epochs: int, dim: int = 64) -> Workflow:
    fields = {
        "name": f"beauty_{model}",
        "seed": seed,
        "data": {
            "root": data, "train": ("train.parquet",), "validation": ("valid.parquet",), "test": ("test.parquet",),
            "labels": ("label",),
            "categories": ({"name": "item_id"}, {"name": "item_category"}),
            "sequences": (
                {"name": "history", "max_length": MOST,
                 "items": {"hist_items": "item_id", "hist_categories": "item_category"}},
            ),
        },
        "model": {"kind": getattr(models, model), "embedding_dim": dim, "args": MODELS[model], "init_std": 0.02},
        "optimizer": {"rows": {"kind": "adam", "lr": 1e-3}, "dense": {"lr": 1e-3}},
        "schedule": {
            "batch_size": 512, "epochs": epochs, "threads": 1, "plateau": {"metric": "auc", "stop_after": 2}
        },
        "metrics": {"progressive": False},
    }  # fmt: skip
    return Workflow.model_validate(fields)


def ranking(data: Path, users: int | None) -> tuple[pa.Table, int]:
    """One row per user and candidate, with the user's last item first among that user's candidates. Also returns the
    number of candidates per user."""
    rank = pq.read_table(data / "test_rank99.parquet")
    if users:
        rank = rank.take(np.random.default_rng(0).permutation(len(rank))[:users])
    each = NEGATIVES + 1
    of_user = dict(zip(*(column.to_pylist() for column in pq.read_table(data / "users.parquet").columns), strict=True))
    items = pq.read_table(data / "items.parquet")
    category = np.zeros(int(items["item_id"].to_numpy().max()) + 1, np.int32)
    category[items["item_id"].to_numpy()] = items["category"].to_numpy()
    negatives = rank["negatives"].combine_chunks().flatten().to_numpy().reshape(len(rank), NEGATIVES)
    candidates = np.concatenate([rank["item_id"].to_numpy()[:, None], negatives], 1).ravel()
    histories = [of_user[user][:-1][-MOST:] for user in rank["user_id"].to_pylist()]
    offsets = np.concatenate([[0], np.cumsum([len(history) for history in histories])]).astype(np.int32)
    flat = np.array([item for history in histories for item in history], np.int32)
    repeated = np.repeat(np.arange(len(rank)), each)
    lists = {
        name: pa.ListArray.from_arrays(pa.array(offsets), pa.array(values)).take(pa.array(repeated))
        for name, values in (("hist_items", flat), ("hist_categories", category[flat]))
    }
    columns = {"label": np.tile(np.arange(each) == 0, len(rank)).astype(np.int8), "item_id": candidates}
    return pa.table(columns | {"item_category": category[candidates]} | lists), each


def ranks(scores: np.ndarray, each: int) -> dict[str, float]:
    """HR@10, NDCG@10 and MRR of each user's first candidate, and the standard error of HR@10 due to the sampling of
    users. An equal score counts against the candidate."""
    scores = scores.reshape(-1, each)
    place = (scores[:, 1:] >= scores[:, :1]).sum(1)
    hit = place < 10
    found = {"hr10": hit, "ndcg10": hit / np.log2(place + 2), "mrr": 1 / (place + 1)}
    error = {"hr10_error": float(hit.std() / math.sqrt(len(hit))), "users": len(hit)}
    return {name: float(of_users.mean()) for name, of_users in found.items()} | error


def measure(data: Path, model: str, seed: int, epochs: int, users: int | None, run_dir: Path) -> dict[str, Any]:
    shutil.rmtree(run_dir, ignore_errors=True)
    begin = time.process_time()
    result = train(workflow(data, model, seed, epochs), run_dir, Quiet(), keep=True)
    seconds = time.process_time() - begin
    table, each = ranking(data, users)
    with open_run(run_dir) as run:
        # Only the best commit by validation is scored, as for the test split.
        parts = [run.predict(table.slice(begin, 20_000)) for begin in range(0, len(table), 20_000)]
    scores = np.concatenate([part.column("label.logit").to_numpy() for part in parts])
    shutil.rmtree(run_dir)
    test = result["epochs"][-1]
    valid = [epoch["auc"] for epoch in result["epochs"] if epoch["split"] == "validation"]
    figures = {"auc": test["auc"], "logloss": test["logloss"], "validation": valid, "cpu_seconds": seconds}
    return figures | ranks(scores, each)


def options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(data=Path("../shared/data/amazon_beauty"))
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(MODELS)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--users", type=int, help="default: all")
    parser.add_argument("--out", type=Path, default=Path("runs/sequences"), help="a JSON file for each run")


def main() -> None:
    args = arguments("sequences.beauty", __doc__ or "", options)
    print(machine())
    torch.set_num_threads(1)
    models, seeds, epochs, data, out = args.models or list(MODELS), args.seeds, args.epochs, args.data, args.out
    if unknown := [model for model in models if model not in MODELS]:
        raise SystemExit(f"no settings of {', '.join(unknown)}; there are {', '.join(MODELS)}")
    with ExitStack() as stack:
        if args.quick:
            out = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=".", prefix=".benchmark-")))
            models, seeds, epochs, data = args.models or ["SASRec"], seeds[:1], 1, out / "data"
            write_beauty(data, NEGATIVES)
        check_files(data, FILES)
        out.mkdir(parents=True, exist_ok=True)
        figures: dict[str, float] = {}
        print(f"{'':12}" + "".join(f"{metric:>10}" for metric in METRICS))
        for model in models:
            found = []
            for seed in seeds:
                path = out / f"beauty_{model}_{seed}.json"
                once(path, partial(measure, data, model, seed, epochs, args.users, path.with_suffix("")))
                found.append(read(path) or {})
            means = {metric: statistics.mean(one[metric] for one in found if one) for metric in METRICS}
            print(f"{model:12}" + "".join(f"{mean:10.4f}" for mean in means.values()), flush=True)
            figures |= {f"{model}_{metric}": mean for metric, mean in means.items()}
    finish(args, figures)


if __name__ == "__main__":
    main()
