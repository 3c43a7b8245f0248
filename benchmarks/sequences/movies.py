"""MovieTweetings 100K, weeks in order of time: DIN and mean pooling by the pipeline and by plain torch on padded input.

    python -m benchmarks.sequences.movies [--models DIN MeanPooling] [--seeds 1 2 3] [--epochs N]

Weeks 1 to 23 train, 24 and 25 choose the epoch, 26 and 27 test. Both sides have the candidate's item and genre, its
history of both, the same networks, rates and initial distributions; they draw their own numbers. Figures are test AUC,
a mean over seeds. Each run leaves one JSON file in --out and is not repeated.
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from sklearn.metrics import roc_auc_score

from benchmarks.common import arguments, finish, machine
from benchmarks.once import Quiet, once, read, train
from benchmarks.sequences.padded import Padded, Trainer, pad
from benchmarks.sequences.stand_in import check_files, write_weeks
from pipeline import models
from pipeline.workflow import Workflow

DIM, HIDDEN, ATTENTION, BATCH, RATE, STD = 16, (64, 32), (32, 16), 512, 1e-3, 0.02
WEEKS = {"train": range(1, 24), "validation": range(24, 26), "test": range(26, 28)}
COLUMNS = ("item_id", "item_genre"), ("hist_items", "hist_genres")


def files(split: str) -> tuple[str, ...]:
    return tuple(f"week_{week:02}.parquet" for week in WEEKS[split])


def workflow(data: Path, model: str, seed: int, epochs: int) -> Workflow:
    candidates, lists = COLUMNS
    attention = {"attention": ATTENTION, "attention_activation": "relu"} if model == "DIN" else {}
    fields = {
        "name": f"movies_{model}", "seed": seed,
        "data": {
            "root": data, "labels": ("label",), **{split: files(split) for split in WEEKS},
            "categories": tuple({"name": name} for name in candidates),
            "sequences": (
                {"name": "history", "max_length": 50, "items": dict(zip(lists, candidates, strict=True))},
            ),
        },
        "model": {
            "kind": getattr(models, model), "embedding_dim": DIM, "init_std": STD,
            "args": {"hidden": HIDDEN, **attention},
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
    return {"validation": valid, "auc": result["epochs"][-1]["auc"]}


class Padder:
    """Keys from 1 of all files, and batches of a split."""

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
            candidates, values = [], []
            for known, candidate, history in zip(self._known, *COLUMNS, strict=True):
                column = part[history].combine_chunks()
                candidates.append(np.searchsorted(known, part[candidate].to_numpy()) + 1)
                values.append(np.searchsorted(known, column.flatten().to_numpy()) + 1)
                lengths = np.diff(column.offsets.to_numpy())
            offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
            candidates_BF, values_VF = (torch.from_numpy(np.stack(keys, 1)) for keys in (candidates, values))
            yield candidates_BF, pad(values_VF, offsets), torch.from_numpy(part["label"].to_numpy().astype(np.float32))


def by_torch(padder: Padder, model: str, seed: int, epochs: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    net = Padded(padder.num_keys, DIM, HIDDEN, ATTENTION if model == "DIN" else (), dice=False, std=STD)
    trainer, rng = Trainer(net, net.tables, RATE), np.random.default_rng(seed)

    def auc(split: str) -> float:
        with torch.inference_mode():
            scored = [(net(candidates, history), labels) for candidates, history, labels in padder.batches(split)]
        logits, labels = (torch.cat(parts).numpy() for parts in zip(*scored, strict=True))
        return float(roc_auc_score(labels, logits))

    valid, test = [], []
    for _ in range(epochs):
        for candidates, history, labels in padder.batches("train", rng):
            trainer.step(net(candidates, history), labels)
        valid.append(auc("validation"))
        test.append(auc("test"))
        if int(np.argmax(valid)) + 2 < len(valid):
            break
    return {"validation": valid, "auc": test[int(np.argmax(valid))]}


def options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(data=Path("../shared/data/movietweetings_100k"))
    parser.add_argument("--models", nargs="+", choices=("DIN", "MeanPooling"), default=("DIN", "MeanPooling"))
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3))
    parser.add_argument("--epochs", type=int, default=6)
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
            for side in ("pipeline", "torch"):
                found = []
                for seed in seeds:
                    path = out / f"movies_{model}_{seed}_{side}.json"
                    if side == "torch":
                        once(path, partial(by_torch, padder, model, seed, epochs))
                    else:
                        once(path, partial(by_pipeline, data, model, seed, epochs, path.with_suffix("")))
                    found.append((read(path) or {"auc": math.nan})["auc"])
                print(
                    f"{model:12} {side:9} test AUC {statistics.mean(found):.4f} [{min(found):.4f} .. {max(found):.4f}]"
                )
                figures[f"{model}_{side}_auc"] = statistics.mean(found)
    finish(args, figures)


if __name__ == "__main__":
    main()
