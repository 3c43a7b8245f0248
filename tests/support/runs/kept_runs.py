"""The runs of `kept_runs.tar.xz`: made data, workflow files, and the trainings. `python -m support.runs.kept_runs
FOLDER`, in tests/, makes them.

The archive was made at commit 26631bee by this script's steps in pieces: all runs first, then the servable again
without an ONNX file, and the run of two workers again with 3 shards. It has run formats 3 and 4 and servable format 1.
It stays as it is when the package changes: what it holds must open for good."""

from __future__ import annotations

import json
import os
import signal
import sys
import tarfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.api import Observer, export, train
from pipeline.driver.resume import environment
from pipeline.records import StageResult
from pipeline.run import main as run_main
from pipeline.serving import dense_files
from pipeline.tune.main import main as tune_main

SPLITS = {"train": 200, "validation": 60, "test": 60}
"""Number of examples of each split."""
DAYS = 3
"""Number of days in `days/`; the last one is in `later/`."""
OWN = """
import torch
from torch import nn


class Own(nn.Module):
    def __init__(self, num_fields, num_numbers, embedding_dim, width=3):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(num_fields * embedding_dim + num_numbers, width), nn.ReLU(),
                                    nn.Linear(width, 1))

    def forward(self, numbers, embeddings, first_order):
        return self.layers(torch.cat([embeddings.flatten(1), numbers], 1)).squeeze(1)

"""
WORKFLOW = """from pipeline.api import (
    Adam, Between, Category, Data, DeepFM, DenseAdam, Metrics, Model, Number, Optimizer, Schedule, Storage, Time, Tune,
    Workers, Workflow,
)
{before}
workflow = Workflow(
    name="{name}",
    data=Data(
        root="data",
        train=("{train}",),
        {splits}
        labels=("click",),
        numbers=(Number(name="price"),),
        categories=(Category(name="user"), Category(name="country"), Category(name="tags")),
    ),
    model=Model(kind={kind}, embedding_dim=2{args}),
    optimizer=Optimizer(rows=Adam(lr=0.05), dense=DenseAdam(lr=0.01)),
    storage=Storage(device="1 MiB", host="1 MiB", disk="64 MiB", read="4 MiB", map="1 MiB", chunk_rows=1024),
    schedule=Schedule(batch_size=8, epochs={epochs}, block_batches=2, look_ahead=1, threads=1),{more}
    device="cpu",
)
"""
EVALUATED = 'validation=("validation.parquet",), test=("test.parquet",),'
PLAIN = {
    "before": "", "train": "train.parquet", "splits": EVALUATED, "kind": "DeepFM", "args": ', args={"hidden": (4,)}',
    "epochs": 2, "more": "",
}  # fmt: skip
FILES: dict[str, dict[str, Any]] = {
    "plain": {},
    "progressive": {"more": "\n    metrics=Metrics(progressive=True),"},
    "spans": {"train": "days", "splits": 'time=Time(name="at"),', "epochs": 1},
    "workers": {"more": "\n    workers=Workers(shards=3),"},
    "own": {"before": OWN, "kind": "Own", "args": ', args={"width": 4}'},
    "study": {"before": 'tune = Tune(space={"optimizer.rows.lr": Between(low=1e-3, high=1e-1, log=True)})'},
}
"""Differences from PLAIN in the workflow file of each run."""
SET = {"progressive": {"metrics.slices": ("country",), "metrics.group": "user", "storage.host_policy": "lfu_aged"}}
"""Settings of a run that its file does not have."""
TRIALS = 2


class Interrupt(Observer):
    """Sends Ctrl-C when a block of training is done."""

    def __init__(self, block: int) -> None:
        self._left = block

    def on_stage(self, done: StageResult) -> None:
        if done.trained and done.trained.block.trains:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGINT)


def table(rng: np.random.Generator, num_examples: int) -> pa.Table:
    def maybe_null(values: list[Any]) -> list[Any]:
        return [None if rng.random() < 0.1 else value for value in values]

    users = rng.integers(0, 40, num_examples)
    return pa.table({
        "click": pa.array((rng.random(num_examples) < 0.2 + 0.5 * (users % 2)).astype(np.int8)),
        "price": pa.array(maybe_null(rng.random(num_examples).round(3).tolist()), pa.float32()),
        "user": pa.array(users),
        "country": pa.array(maybe_null([f"c{n}" for n in rng.integers(0, 5, num_examples)])),
        "tags": pa.array([rng.integers(0, 20, n).tolist() for n in rng.integers(0, 3, num_examples)]),
    })  # fmt: skip


def write_data(root: Path) -> None:
    rng = np.random.default_rng(26)
    for folder in ("days", "later"):
        (root / folder).mkdir(parents=True)
    for split, num_examples in SPLITS.items():
        pq.write_table(table(rng, num_examples), root / f"{split}.parquet", row_group_size=64)
    for day in range(DAYS):
        times = [datetime(2026, 11, 20 + day) + timedelta(minutes=9 * n) for n in range(80)]
        of_day = table(rng, 80).append_column("at", pa.array(times, pa.timestamp("us")))
        pq.write_table(of_day, root / ("later" if day == DAYS - 1 else "days") / f"{day}.parquet")


def main(folder: Path) -> None:
    os.chdir(folder)
    write_data(Path("data"))
    for name, changes in FILES.items():
        Path(f"{name}.py").write_text(WORKFLOW.format(**(PLAIN | {"name": name} | changes)))
    assert run_main(["plain.py", "--serial"]) == 0
    fingerprints: dict[str, Any] = {}
    for name in ("progressive", "workers", "own"):
        settings, workers = SET.get(name, {}), 2 if name == "workers" else None
        try:
            train(f"{name}.py", settings=settings, workers=workers, observers=[Interrupt(18)], verbose=False)
        except KeyboardInterrupt:
            print(f"{name} is interrupted")
        with train(f"{name}.py", f"whole/{name}", settings=settings, workers=workers, verbose=False) as run:
            assert run.result
            fingerprints[name] = run.result["fingerprint"]
    for out in ("runs/spans", "whole/spans"):
        train("spans.py", out, verbose=False).close()
    with train("spans.py", "whole/spans", extend=["data/later"], verbose=False) as run:
        assert run.result
        fingerprints["spans"] = run.result["fingerprint"]
    for out, trials in (("study", TRIALS), ("whole/study", TRIALS + 1)):
        assert tune_main(["study.py", "--out", out, "--trials", str(trials)]) == 0
    verdicts = [json.loads(Path(f"whole/study/records/{n:03}/verdict.json").read_bytes()) for n in range(TRIALS + 1)]
    fingerprints["study"] = [verdict["fingerprint"] for verdict in verdicts]
    expected = {"environment": environment(), "fingerprints": fingerprints}
    Path("expected.json").write_text(json.dumps(expected, indent=1))
    # It would have paths of this machine.
    dense_files.exported = without_onnx
    export("runs/plain", "servable")


def without_onnx(*args: object) -> Any:
    raise RuntimeError("left out of the archive")


def pack(folder: Path, archive: Path) -> None:
    """Write the archive: everything but runs that were not interrupted and the page of the study. The study's absolute
    paths become those of /made."""

    def kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return None if entry.name.startswith("whole") or entry.name == "study/report.html" else entry

    for path in (*folder.glob("study/records/*/order.json"), folder / "study/best.py"):
        path.write_text(path.read_text().replace(str(folder.absolute()), "/made"))
    with tarfile.open(archive, "w:xz", preset=9) as file:
        for path in sorted(folder.iterdir()):
            file.add(path, path.name, filter=kept)


if __name__ == "__main__":
    main(made := Path(sys.argv[1]).absolute())
    pack(made, Path(__file__).with_name("kept_runs.tar.xz"))
