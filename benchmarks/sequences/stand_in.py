"""Small synthetic data in the files of the real logs, for the quick forms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ITEMS, KINDS, LONGEST = 300, 8, 6
"""Numbers of item keys and of kinds (from 1), and the maximum history length."""


def kinds_of(items: np.ndarray) -> np.ndarray:
    return items % KINDS + 1


def log(rng: np.random.Generator, size: int, candidates: tuple[str, str], histories: tuple[str, str]) -> pa.Table:
    """Alternating labels; candidates and histories with the columns of items and of their kinds."""
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, LONGEST + 1, size))]).astype(np.int32)
    ones, values = (rng.integers(1, ITEMS + 1, count).astype(np.int32) for count in (size, offsets[-1]))
    columns: dict[str, object] = {"label": (np.arange(size) % 2).astype(np.int8)}
    for candidate, history, keys, flat in zip(
        candidates, histories, (ones, kinds_of(ones)), (values, kinds_of(values)), strict=True
    ):
        columns |= {candidate: keys, history: pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat))}
    return pa.table(columns)


def check_files(data: Path, names: Sequence[str]) -> None:
    """Raise SystemExit if files are missing."""
    if missing := [name for name in names if not (data / name).is_file()]:
        raise SystemExit(
            f"{data} lacks {', '.join(missing)}: name the folder that holds the log with --data, or see with --quick "
            "how it runs on stand-in data"
        )


def write_beauty(data: Path, negatives: int, users: int = 30) -> None:
    """The files that `beauty` reads."""
    rng = np.random.default_rng(0)
    data.mkdir(parents=True)
    columns = ("item_id", "item_category"), ("hist_items", "hist_categories")
    for split, size in (("train", 600), ("valid", 60), ("test", 60)):
        pq.write_table(log(rng, size, *columns), data / f"{split}.parquet")
    items = np.arange(1, ITEMS + 1, dtype=np.int32)
    pq.write_table(pa.table({"item_id": items, "category": kinds_of(items)}), data / "items.parquet")
    ids, own = np.arange(users, dtype=np.int32), rng.integers(1, ITEMS + 1, (users, LONGEST)).astype(np.int32)
    pq.write_table(pa.table({"user_id": ids, "items": own.tolist()}), data / "users.parquet")
    others = rng.integers(1, ITEMS + 1, (users, negatives)).astype(np.int32)
    rank = {"user_id": ids, "item_id": own[:, -1], "negatives": others.tolist()}
    pq.write_table(pa.table(rank), data / "test_rank99.parquet")


def write_weeks(data: Path, names: list[str], candidates: tuple[str, str], histories: tuple[str, str]) -> None:
    """The files that `movies` reads."""
    rng = np.random.default_rng(0)
    data.mkdir(parents=True)
    for name in names:
        pq.write_table(log(rng, 40, candidates, histories), data / name)
