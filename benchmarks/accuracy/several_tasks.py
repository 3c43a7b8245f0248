"""Models of several labels on a real log with two of them, click and like, by the pipeline and by plain torch.

    python -m benchmarks.accuracy.several_tasks [MODEL ...] [--seeds 1 2 3] [--side pipeline|torch]

`plain_tasks` implements the same equations independently. Single is one MLP per label. Both sides train on twelve days
of KuaiRand's explicit feedback with the same settings; each draws its initial weights and orders independently. The AUC
of each label is measured on the following two days. The figures are the mean over the seeds, its range (maximum minus
minimum), and the difference between the two sides' means, which should be within the larger range. In this log a like
does not require a click, so the results say nothing about the merits of ESMM and AITM, which assume that it does.

Each part writes one JSON file to --out and is not repeated.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.accuracy import plain_tasks
from benchmarks.accuracy.plain_tasks import Settings
from benchmarks.common import arguments, finish, machine
from benchmarks.once import Json, Quiet, once, read, train
from pipeline import models
from pipeline.settings.optimizer import Adam, DenseAdam, Optimizer
from pipeline.workflow import Category, Data, Model, Schedule, Storage, Workflow

LABELS = ("is_click", "liked")
SINGLES, LISTS, ITEMS = ("user_id", "video_id", "hour"), "hist_videos", "video_id"
TRAIN, TEST = (tuple(f"day_{day:02}.parquet" for day in days) for days in (range(1, 13), range(13, 15)))
SIDES = ("pipeline", "torch")


def workflow_of(kind: str, labels: tuple[str, ...], root: Path, seed: int, s: Settings) -> Workflow:
    args: dict[str, Any] = {"hidden": s.hidden}
    if kind not in ("Single", "ESMM"):
        args |= {"tower": s.tower, "num_labels": len(labels)}
    own = {"MMoE": {"experts": s.experts}, "AITM": {"calibrator": s.calibrator}}
    own["PLE"] = {"experts": s.experts // 2, "shared_experts": s.experts // 2}
    return Workflow(
        name="several_tasks",
        data=Data(
            root=root, train=TRAIN, test=TEST, labels=labels,
            categories=(*(Category(name=n) for n in SINGLES), Category(name=LISTS, table=ITEMS, pooling="mean")),
        ),
        model=Model(
            kind=models.DNN if kind == "Single" else getattr(models, kind), embedding_dim=s.dim, init_std=s.init_std,
            args=args | own.get(kind, {}),
        ),
        optimizer=Optimizer(
            rows=Adam(lr=s.lr, semantics="dense", eps_place="torch"), dense=DenseAdam(lr=s.lr),
        ),
        storage=Storage(device="16 MiB", host="8 MiB", disk="1 GiB", read="128 MiB", map="16 MiB", chunk_rows=1024),
        schedule=Schedule(batch_size=s.batch_size, epochs=s.epochs, block_batches=4, threads=1),
        device="cpu",
        seed=seed,
    )  # fmt: skip


def by_pipeline(kind: str, root: Path, seed: int, s: Settings, run_dir: Path) -> list[float]:
    """AUC of each label."""
    found = []
    for labels in [(label,) for label in LABELS] if kind == "Single" else [LABELS]:
        test = train(workflow_of(kind, labels, root, seed, s), run_dir, Quiet(), serial=True)["epochs"][-1]
        found += [test["auc" if label == labels[0] else f"auc_{label}"] for label in labels]
    return found


def by_torch(kind: str, root: Path, seed: int, s: Settings) -> list[float]:
    found = []
    for labels in [(label,) for label in LABELS] if kind == "Single" else [LABELS]:
        paths = [[root / file for file in files] for files in (TRAIN, TEST)]
        logs, sizes = plain_tasks.read(paths, SINGLES, ITEMS, LISTS, labels)
        found += plain_tasks.train(kind, logs, sizes, SINGLES.index(ITEMS), seed, s)
    return found


def stand_in(root: Path) -> None:
    """Write synthetic days with the columns of the log."""
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for file in (*TRAIN, *TEST):
        size = 100
        columns = {name: pa.array(rng.integers(0, 9, size), pa.int32()) for name in SINGLES}
        lists = [rng.integers(0, 9, rng.integers(0, 4)).tolist() for _ in range(size)]
        columns |= {LISTS: pa.array(lists, pa.list_(pa.int32()))}
        columns |= {label: pa.array(rng.integers(0, 2, size), pa.int8()) for label in LABELS}
        pq.write_table(pa.table(columns), root / file)


def print_table(out: Path, kinds: list[str], seeds: list[int]) -> dict[str, float]:
    """Print a line for each model and label with results of both sides. Returns the figures."""
    figures: dict[str, float] = {}
    print(f"\nAUC of days 13 and 14, mean of seeds and its range{'':12}pipeline{'':9}torch   difference")
    for kind in kinds:
        of_side: dict[str, list[Json]] = {
            side: [found for seed in seeds if (found := read(out / f"{kind}_{seed}_{side}.json"))] for side in SIDES
        }
        for number, label in enumerate(LABELS):
            aucs = {side: [run["aucs"][number] for run in runs] for side, runs in of_side.items()}
            if not all(aucs.values()):
                continue
            means = {side: statistics.mean(values) for side, values in aucs.items()}
            ranges = {side: max(values) - min(values) for side, values in aucs.items()}
            difference = means["pipeline"] - means["torch"]
            within = "within" if abs(difference) <= max(ranges.values()) else "beyond"
            shown = "   ".join(f"{means[side]:.4f} {ranges[side]:.4f}" for side in SIDES)
            print(f"{kind:13} {label:9} {len(aucs['pipeline'])} seeds   {shown}   {difference:+.4f} {within} the range")
            figures |= {f"{kind}_{label}_{side}": means[side] for side in SIDES}
            figures |= {f"{kind}_{label}_{side}_range": ranges[side] for side in SIDES}
    return figures


def options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(data=Path("../shared/data/kuairand_14days"))
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(plain_tasks.MODELS)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("runs/several_tasks"), help="a JSON file for each part")
    parser.add_argument("--side", choices=SIDES, help="default: both, one after the other")


def main() -> None:
    args = arguments("accuracy.several_tasks", __doc__ or "", options)
    print(machine())
    kinds, seeds, data, out, s = args.models or list(plain_tasks.MODELS), args.seeds, args.data, args.out, Settings()
    with ExitStack() as stack:
        if args.quick:
            out = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=".", prefix=".benchmark-")))
            kinds, seeds, s = args.models or ["Single", "PLE"], seeds[:1], replace(s, batch_size=100, epochs=1)
            stand_in(data := out / "data")
        if unknown := [kind for kind in kinds if kind not in plain_tasks.MODELS]:
            raise SystemExit(f"no model {', '.join(unknown)}; there are {', '.join(plain_tasks.MODELS)}")
        if missing := [file for file in (*TRAIN, *TEST) if not (data / file).is_file()]:
            raise SystemExit(f"{data} lacks {', '.join(missing)}; see with --quick how it runs on made-up data")
        out.mkdir(parents=True, exist_ok=True)
        for kind, seed, side in (
            (k, n, side) for n in seeds for k in kinds for side in ([args.side] if args.side else SIDES)
        ):
            name = f"{kind}_{seed}_{side}"
            if side == "torch":
                once(out / f"{name}.json", lambda: {"aucs": by_torch(kind, data, seed, s)})  # noqa: B023
            else:
                once(out / f"{name}.json", lambda: {"aucs": by_pipeline(kind, data, seed, s, out / name)})  # noqa: B023
        figures = print_table(out, kinds, seeds)
    finish(args, figures)


if __name__ == "__main__":
    main()
