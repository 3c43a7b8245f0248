"""Sixty days of synthetic clicks, one file a day, for training day by day (docs/nightly.md).

    python workflows/stream.py --days 60

writes data/stream/2026-01-01.parquet and so on; more days later continue the same stream, since a day is a function of
its number and the seed alone. Keys drift: every day brings new items, and old ones fade within weeks; users come and
go more slowly; the effect of each item changes with its own period. With `--still` no day brings new keys, so that the
table stops growing. `best.json` has AUC and normalized entropy by day of two models: "true" made the labels, and
"known" is the same without what is hidden of items and users that are new on this day, which no model of the days
before can know.
"""

import argparse
import json
from datetime import date, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.api import Adam, Category, Data, DeepFM, DenseAdam, Model, Optimizer, Schedule, Storage, Time, Workflow

FIRST_DAY, FOLDER = date(2026, 1, 1), Path("data/stream")
ROWS, WIDTH, SEED = 20_000, 2, 2026
NEW_ITEMS, ITEMS_BEFORE = 20, 400
"""Items that each day brings, and those that the first day begins with."""
NEW_USERS, USERS_BEFORE = 10, 500
SITES = 50


def hidden(kind: int, number: int) -> np.ndarray:
    """[number, WIDTH + 3] what is hidden of the first users, items or sites: a vector, and three numbers."""
    return np.random.default_rng([SEED, kind]).normal(size=(number, WIDTH + 3))


def one_day(day: int, rows: int = ROWS, still: bool = False) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """The examples of a day, in order of time, their true probabilities, and the probabilities without what is hidden
    of items and users that come on this day: about the best that a model of the days before can know. `still`: no day
    brings new keys."""
    rng = np.random.default_rng([SEED, 3, day])
    new_items, new_users = (0, 0) if still else (NEW_ITEMS, NEW_USERS)
    items_before, users_before = ITEMS_BEFORE + new_items * day, USERS_BEFORE + new_users * day
    num_items, num_users = items_before + new_items, users_before + new_users
    # The newest are seen most: the age of what is seen has a heavy tail.
    item = num_items - 1 - (4 * NEW_ITEMS * rng.pareto(1, rows)).astype(np.int64) % num_items
    user = num_users - 1 - (num_users * rng.random(rows) ** 1.5).astype(np.int64)
    site, seconds = rng.integers(0, SITES, rows), np.sort(rng.integers(0, 86_400, rows))
    items, users, sites = hidden(0, num_items)[item], hidden(1, num_users)[user], hidden(2, SITES)[site]
    period = 60 + 30 * np.abs(items[:, WIDTH + 1])
    worth = items[:, WIDTH] * np.sin(2 * np.pi * (day + seconds / 86_400) / period + 9 * items[:, WIDTH + 2])
    of_user = 0.6 * users[:, WIDTH]
    of_pair = (items[:, :WIDTH] * users[:, :WIDTH]).sum(1) / WIDTH**0.5
    others = -2.2 + 0.5 * sites[:, WIDTH] + 0.3 * np.sin(2 * np.pi * seconds / 86_400)
    old_item, old_user = item < items_before, user < users_before
    known = others + worth * old_item + of_user * old_user + of_pair * (old_item & old_user)
    probability, known_probability = (1 / (1 + np.exp(-logit)) for logit in (others + worth + of_user + of_pair, known))
    midnight = datetime.combine(FIRST_DAY + timedelta(day), datetime.min.time())
    return pa.table({
        "time": pa.array(np.datetime64(midnight, "s") + seconds.astype("timedelta64[s]")),
        "user": user, "item": item, "site": site, "hour": seconds // 3600,
        "click": (rng.random(rows) < probability).astype(np.int8),
    }), probability, known_probability  # fmt: skip


def name_of(day: int) -> str:
    return f"{FIRST_DAY + timedelta(day)}.parquet"


def best_metrics(click: np.ndarray, probability: np.ndarray) -> dict[str, float]:
    """AUC and normalized entropy of probabilities."""

    def log_loss(p: np.ndarray) -> float:
        return -float(np.log(np.where(click, p, 1 - p)).mean())

    positives = np.flatnonzero(click[np.argsort(probability, kind="stable")])
    below = (positives - np.arange(len(positives))).mean() / (len(click) - len(positives))
    return {"auc": float(below), "ne": log_loss(probability) / log_loss(np.full(len(click), click.mean()))}


def write_days(folder: Path, days: range, rows: int = ROWS, still: bool = False) -> None:
    """Write the files that are missing, each under another name until it is whole, and the best possible metrics."""
    folder.mkdir(parents=True, exist_ok=True)
    best_file = folder / "best.json"
    best = json.loads(best_file.read_text()) if best_file.exists() else {}
    for day in days:
        file = folder / name_of(day)
        if file.exists():
            continue
        table, probability, known = one_day(day, rows, still)
        click = table["click"].to_numpy()
        best[file.stem] = {"true": best_metrics(click, probability), "known": best_metrics(click, known)}
        pq.write_table(table, partial := folder / f".{file.name}")
        partial.rename(file)
        best_file.write_text(json.dumps(best, indent=1) + "\n")


workflow = Workflow(
    name="stream",
    data=Data(
        root=FOLDER,
        train=(name_of(0),),  # the first day; later ones come with --extend
        time=Time(name="time"),  # a span is a day of it
        labels=("click",),
        categories=tuple(Category(name=name) for name in ("user", "item", "site", "hour")),
    ),
    model=Model(kind=DeepFM, embedding_dim=8, args={"hidden": (32,)}, initial_bias=-1.6),
    optimizer=Optimizer(rows=Adam(lr=1e-2), dense=DenseAdam(lr=3e-3)),
    storage=Storage(device="16 MiB", host="8 MiB", disk="512 MiB", read="64 MiB", map="16 MiB"),
    schedule=Schedule(batch_size=64),
    seed=SEED,
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write days of the synthetic stream that are missing.")
    parser.add_argument("--days", type=int, default=60)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--still", action="store_true", help="no day brings new keys, so that the table stops growing")
    arguments = parser.parse_args()
    write_days(arguments.folder, range(arguments.days), still=arguments.still)
    for day, best in json.loads((arguments.folder / "best.json").read_text()).items():
        print(day, *(f"{name}: AUC {of['auc']:.4f}, NE {of['ne']:.4f}" for name, of in best.items()), sep="  ")
