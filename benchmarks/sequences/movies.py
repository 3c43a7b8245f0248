"""MovieTweetings 100K, weeks in time order: each model by the pipeline and by plain torch on padded input.

    python -m benchmarks.sequences.movies [--models DIN MeanPooling ...] [--seeds 1 2 3] [--epochs N]

Weeks 1 to 23 train, 24 and 25 choose the epoch, 26 and 27 test. Both sides have the candidate's item and genre, the
latest 20 of its history of both, and the same networks, rates and initial distributions; they draw random numbers
independently. Figures are test AUC and logloss, as means over seeds, and the distance between the means of the two
sides, relative to the larger range of a side's seeds: up to 1, a model is within the spread. With more than three
epochs, the differences mostly show which epoch validation happens to choose. Each run writes one JSON file to --out and
is not repeated.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import torch
from sklearn.metrics import log_loss, roc_auc_score

from benchmarks.common import arguments, finish, machine
from benchmarks.once import Json, Quiet, once, read, train
from benchmarks.sequences.padded import Attention, Causal, Evolution, Mean, Padded, Trainer, WithCandidate, pad
from benchmarks.sequences.stand_in import check_files, write_weeks
from pipeline import models
from pipeline.workflow import Workflow

DIM, HIDDEN, ATTENTION, BATCH, RATE, STD = 16, (64, 32), (32, 16), 512, 1e-3, 0.02
MOST = 20
RELU = {"attention": ATTENTION, "attention_activation": "relu"}
MODELS: dict[str, tuple[str, dict[str, Any], Callable[[int], Any]]] = {
    "MeanPooling": ("MeanPooling", {}, Mean),
    "DIN": ("DIN", RELU, lambda width: Attention(width, ATTENTION, False)),
    "DIN, Dice": ("DIN", {"attention": ATTENTION}, lambda width: Attention(width, ATTENTION, True, True)),
    "DIEN": ("DIEN", RELU, lambda width: Evolution(width, ATTENTION, False)),
    "BST": (
        "BST", {"heads": 4, "positions": MOST + 1}, lambda width: WithCandidate(width, 4, 1, MOST + 1, DIM)
    ),
    "SASRec": ("SASRec", {"heads": 1, "layers": 2, "positions": MOST}, lambda width: Causal(width, 1, 2, MOST)),
}  # fmt: skip
"""For each model, its class in this package, with arguments, and its pool in plain torch."""
WEEKS = {"train": range(1, 24), "validation": range(24, 26), "test": range(26, 28)}
METRICS = ("auc", "logloss")
COLUMNS = ("item_id", "item_genre"), ("hist_items", "hist_genres")


def files(split: str) -> tuple[str, ...]:
    return tuple(f"week_{week:02}.parquet" for week in WEEKS[split])


def workflow(data: Path, model: str, seed: int, epochs: int) -> Workflow:
    candidates, lists = COLUMNS
    kind, args, _ = MODELS[model]
    fields = {
        "name": f"movies_{kind}", "seed": seed,
        "data": {
            "root": data, "labels": ("label",), **{split: files(split) for split in WEEKS},
            "categories": tuple({"name": name} for name in candidates),
            "sequences": (
                {"name": "history", "max_length": MOST, "items": dict(zip(lists, candidates, strict=True))},
            ),
        },
        "model": {
            "kind": getattr(models, kind), "embedding_dim": DIM, "init_std": STD, "args": {"hidden": HIDDEN, **args},
        },
        "optimizer": {"rows": {"kind": "adam", "lr": RATE}, "dense": {"lr": RATE}},
        "schedule": {
            "batch_size": BATCH, "epochs": epochs, "threads": 1, "plateau": {"metric": "auc", "stop_after": 2}
        },
        "metrics": {"progressive": False},
    }  # fmt: skip
    return Workflow.model_validate(fields)


def by_pipeline(data: Path, model: str, seed: int, epochs: int, run_dir: Path) -> dict[str, Any]:
    shutil.rmtree(run_dir, ignore_errors=True)
    result = train(workflow(data, model, seed, epochs), run_dir, Quiet())
    valid = [epoch["auc"] for epoch in result["epochs"] if epoch["split"] == "validation"]
    return {"validation": valid} | {metric: result["epochs"][-1][metric] for metric in METRICS}


class Padder:
    """Keys of all files, from 1, and batches of a split."""

    def __init__(self, data: Path) -> None:
        self._tables = {split: pa.concat_tables(pq.read_table(data / name) for name in files(split)) for split in WEEKS}
        self._known = []
        for candidate, history in zip(*COLUMNS, strict=True):
            found = [np.unique(table[candidate].to_numpy()) for table in self._tables.values()]
            found += [
                np.unique(table[history].combine_chunks().flatten().to_numpy()) for table in self._tables.values()
            ]
            self._known.append(np.unique(np.concatenate(found)))
        self.num_keys = [len(known) for known in self._known]

    def batches(self, split: str, shuffled: np.random.Generator | None = None) -> Any:
        table = self._tables[split]
        order = shuffled.permutation(len(table)) if shuffled else np.arange(len(table))
        for begin in range(0, len(table), BATCH):
            part = table.take(order[begin : begin + BATCH]).combine_chunks()
            lengths = pa.compute.list_value_length(part[COLUMNS[1][0]]).to_numpy().astype(np.int64)
            # The latest MOST values of each history, as kept by `max_length`.
            before_end = np.repeat(lengths.cumsum(), lengths) - np.arange(lengths.sum())
            candidates, values = [], []
            for known, candidate, history in zip(self._known, *COLUMNS, strict=True):
                candidates.append(np.searchsorted(known, part[candidate].to_numpy()) + 1)
                flat = part[history].combine_chunks().flatten().to_numpy()[before_end <= MOST]
                values.append(np.searchsorted(known, flat) + 1)
            offsets = torch.from_numpy(np.concatenate([[0], np.minimum(lengths, MOST).cumsum()]))
            candidates_BF, values_VF = (torch.from_numpy(np.stack(keys, 1)) for keys in (candidates, values))
            yield candidates_BF, pad(values_VF, offsets), torch.from_numpy(part["label"].to_numpy().astype(np.float32))


def by_torch(padder: Padder, model: str, seed: int, epochs: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    net = Padded(padder.num_keys, DIM, HIDDEN, MODELS[model][2], STD)
    trainer, rng = Trainer(net, net.tables, RATE), np.random.default_rng(seed)

    def score(split: str) -> dict[str, float]:
        with torch.inference_mode():
            scored = [(net(candidates, history), labels) for candidates, history, labels in padder.batches(split)]
        logits, labels = (torch.cat(parts).double() for parts in zip(*scored, strict=True))
        found = roc_auc_score(labels.numpy(), logits.numpy()), log_loss(labels.numpy(), logits.sigmoid().numpy())
        return dict(zip(METRICS, map(float, found), strict=True))

    valid, test = [], []
    for _ in range(epochs):
        net.train()
        for candidates, history, labels in padder.batches("train", rng):
            trainer.step(net(candidates, history), labels)
        net.eval()
        valid.append(score("validation")["auc"])
        test.append(score("test"))
        if int(np.argmax(valid)) + 2 < len(valid):
            break
    return {"validation": valid} | test[int(np.argmax(valid))]


def compare(sides: dict[str, list[Json]]) -> dict[str, float]:
    """Mean of each metric for each side, and the distance between the means divided by the larger range of a side's
    seeds."""
    found = {}
    for metric in METRICS:
        runs = {side: [one[metric] for one in results] for side, results in sides.items()}
        means = {side: statistics.mean(values) for side, values in runs.items()}
        found |= {f"{side}_{metric}": mean for side, mean in means.items()}
        apart, spread = abs(means["pipeline"] - means["torch"]), max(max(one) - min(one) for one in runs.values())
        found[f"{metric}_distance"] = apart / spread if spread else 0.0
        for side, values in runs.items():
            print(f"  {metric:8} {side:9} " + " ".join(f"{value:.4f}" for value in values))
    return found


def options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(data=Path("../shared/data/movietweetings_100k"))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/sequences"), help="a JSON file for each run")


def main() -> None:
    args = arguments("sequences.movies", __doc__ or "", options)
    print(machine())
    torch.set_num_threads(1)
    seeds, epochs, data, out = args.seeds, args.epochs, args.data, args.out
    names = [name for split in WEEKS for name in files(split)]
    with ExitStack() as stack:
        if args.quick:
            out = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=".", prefix=".benchmark-")))
            seeds, epochs, data = seeds[:1], 1, out / "data"
            write_weeks(data, names, *COLUMNS)
        check_files(data, names)
        out.mkdir(parents=True, exist_ok=True)
        padder, figures = Padder(data), {}
        for model in args.models:
            sides: dict[str, list[Json]] = {"pipeline": [], "torch": []}
            for seed, side in product(seeds, sides):
                path = out / f"movies_{re.sub('[^A-Za-z]+', '_', model)}_{seed}_{side}.json"
                if side == "torch":
                    once(path, partial(by_torch, padder, model, seed, epochs))
                else:
                    once(path, partial(by_pipeline, data, model, seed, epochs, path.with_suffix("")))
                sides[side].append(read(path) or dict.fromkeys(METRICS, math.nan))
            print(model, flush=True)
            figures |= {f"{model} {name}": value for name, value in compare(sides).items()}
    finish(args, figures)


if __name__ == "__main__":
    main()
