"""Data sets of the study, and the half that each belongs to.

Rules are chosen on the choosing half alone. The judging half is scored once, when all rules are chosen. Each source is
in one half as a whole: all labels of a log, and all sizes of one kind of planted data. Sources are assigned to the
halves alternately, in alphabetical order, so that nothing known about them affects the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SPLITS = ("train", "validation", "test")
CHOOSING = ("adclick_6days", "census_income_half", "frappe_x1", "movietweetings_100k", "planted_linear")
JUDGING = ("amazon_beauty", "criteo_1tb_sample", "kuairand_14days", "planted_crossed", "planted_rare")
LARGE = ("planted_large",)
"""A check of the rules at a size that the study does not cover; in neither half."""
MAX_ROWS = 200_000
"""Maximum number of training rows. From larger sets, this many are drawn with seed 0."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A data set: one table for each split, with the columns that a model may read and one label."""

    name: str
    label: str
    numbers: tuple[str, ...]
    categories: tuple[str, ...]
    """Columns of single values or lists."""
    splits: Mapping[str, pa.Table]
    tables: Mapping[str, str] = field(default_factory=dict)
    """Columns of lists, and the column whose embeddings each shares."""


@dataclass(frozen=True, slots=True)
class Log:
    """Files of a real log."""

    label: str
    files: Mapping[str, tuple[str, ...]]
    """Patterns of the files of each split."""
    numbers: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Columns that are known only after the label, other labels, and times."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """Columns of lists, and the column whose embeddings each shares."""
    by: str = ""
    """Column whose values, drawn with seed 0, are divided among the splits instead of the files' division."""


def _numbered(pattern: str, *ends: int) -> dict[str, tuple[str, ...]]:
    """Files of each split by their numbers: training ends before the first of `ends`, and so on."""
    borders = zip(SPLITS, ends, ends[1:], strict=False)
    return {split: tuple(pattern.format(n) for n in range(first, last)) for split, first, last in borders}


NAMED = {"train": ("train.parquet",), "validation": ("valid.parquet",), "test": ("test.parquet",)}
KUAIRAND_LABELS = ("is_click", "long_view", "liked", "is_comment", "is_follow", "is_forward", "is_profile_enter")
AFTER_KUAIRAND = ("time_ms", "day", "play_time_ms", "comment_stay_time_ms")


def _kuairand(label: str) -> Log:
    others = tuple(name for name in KUAIRAND_LABELS if name != label)
    files = _numbered("day_{:02}.parquet", 1, 11, 13, 15)
    return Log(label, files, ("duration_ms",), (*others, *AFTER_KUAIRAND), {"hist_videos": "video_id"})


REAL: Mapping[str, Mapping[str, Log]] = {
    "adclick_6days": {
        "adclick": Log(
            "label", _numbered("day_{}.parquet", 1, 5, 6, 7), left_out=("time", "day", "session_id"),
            tables={"hist_products": "product", "hist_campaigns": "campaign_id"},
        ),
    },
    "amazon_beauty": {
        "amazon_beauty": Log("label", NAMED, tables={"hist_items": "item_id", "hist_categories": "item_category"}),
    },
    "census_income_half": {
        "census": Log(
            "income_50k", NAMED,
            ("age", "wage_per_hour", "capital_gains", "capital_losses", "stock_dividends", "num_emp", "weeks_worked"),
            ("never_married", "instance_weight"),
        ),
    },
    "criteo_1tb_sample": {
        "criteo": Log("label", _numbered("part-{}.parquet", 0, 6, 7, 8), tuple(f"i{n}" for n in range(1, 14))),
    },
    # Its rows were split at random after negatives were drawn, so they leak.
    "frappe_x1": {
        "frappe": Log("label", NAMED),
        "frappe_by_user": Log("label", NAMED, by="user"),
        "frappe_new_users": Log("label", NAMED, left_out=("user",), by="user"),
    },
    "kuairand_14days": {f"kuairand_{label}": _kuairand(label) for label in ("is_click", "liked")},
    "movietweetings_100k": {
        "movietweetings": Log(
            "label", _numbered("week_{:02}.parquet", 1, 24, 26, 28), ("release_year",),
            ("rating", "timestamp", "day", "hist_timestamps"), {"hist_items": "item_id", "hist_genres": "item_genre"},
        ),
    },
}  # fmt: skip
"""Logs by their folder, which is their source: names of data sets and their files."""


def _read(folder: Path, name: str, log: Log) -> Rows:
    tables = {
        split: pa.concat_tables([pq.read_table(path) for pattern in files for path in sorted(folder.glob(pattern))])
        for split, files in log.files.items()
    }
    if log.by:
        tables = split_by(pa.concat_tables(tables.values()), log.by)
    if (rows := tables["train"].num_rows) > MAX_ROWS:
        drawn = np.random.default_rng(0).choice(rows, MAX_ROWS, replace=False)
        tables["train"] = tables["train"].take(np.sort(drawn))
    names = [column for column in tables["train"].column_names if column not in (log.label, *log.left_out)]
    categories = tuple(column for column in names if column not in log.numbers)
    return Rows(name, log.label, log.numbers, categories, tables, log.tables)


def split_by(table: pa.Table, column: str) -> dict[str, pa.Table]:
    """Divide the rows by the values of a column, so that all rows with equal values are in one split. About a fifth of
    the values each, drawn with seed 0, go to validation and test."""
    codes_N = table.column(column).combine_chunks().dictionary_encode().indices.to_numpy()
    drawn_N = np.random.default_rng(0).random(codes_N.max() + 1)[codes_N]
    bounds = {"train": (0.4, 1.0), "validation": (0.2, 0.4), "test": (0.0, 0.2)}
    return {split: table.filter(pa.array((drawn_N >= low) & (drawn_N < high))) for split, (low, high) in bounds.items()}


def _planted(name: str, num_rows: int, num_columns: int, num_keys: int, rate: float, crossed: bool) -> Rows:
    """Rows whose logit is a sum of effects of Zipf-distributed keys and of two numbers, one of them skewed and mostly
    zero. If `crossed`, products of two keys' vectors replace the effects of single keys. A fifth of the rows each is
    for validation and test."""
    rng = np.random.default_rng([num_rows, num_columns, num_keys])
    total = num_rows * 5 // 3
    keys = np.minimum(rng.zipf(1.3, (total, num_columns)) - 1, num_keys - 1)
    keys = rng.permuted(np.tile(np.arange(num_keys), (num_columns, 1)), axis=1)[np.arange(num_columns), keys]
    skewed = np.where(rng.random(total) < 0.9, 0.0, np.floor(np.exp(rng.normal(5, 2, total))))
    even = rng.normal(40, 12, total)
    columns = np.arange(num_columns)
    if crossed:
        vectors = rng.normal(0, 1, (num_columns, num_keys, 4))[columns, keys]
        logits = (vectors.sum(1) ** 2 - (vectors**2).sum(1)).sum(1) / (4 * num_columns)
    else:
        logits = rng.normal(0, 1 / num_columns**0.5, (num_columns, num_keys))[columns, keys].sum(1)
    logits = logits + 0.8 * (skewed > 150) - 0.0015 * (even - 45) ** 2
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 / (1 + np.exp(-logits - middle))).mean() < rate else (low, middle)
    labels = (rng.random(total) < 1 / (1 + np.exp(-logits - low))).astype(np.int8)
    named = {"label": labels, "n0": skewed, "n1": even} | {f"c{c}": keys[:, c] for c in columns}
    table, cut = pa.table(named), (total - num_rows) // 2
    parts = (table.slice(0, num_rows), table.slice(num_rows, cut), table.slice(num_rows + cut))
    return Rows(name, "label", ("n0", "n1"), tuple(f"c{c}" for c in columns), dict(zip(SPLITS, parts, strict=True)))


def _first_rows(name: str, rows: Rows) -> Rows:
    """As many training rows as `init` uses to try candidates."""
    return replace(rows, name=name, splits={**rows.splits, "train": rows.splits["train"].slice(0, MAX_ROWS)})


PLANTED: Mapping[str, Mapping[str, Callable[[str], Rows]]] = {
    "planted_linear": {
        "linear_3k": lambda name: _planted(name, 3_000, 6, 50, 0.3, False),
        "linear_60k": lambda name: _planted(name, 60_000, 20, 20_000, 0.05, False),
    },
    "planted_rare": {"rare_100k": lambda name: _planted(name, 100_000, 8, 2_000, 0.002, False)},
    "planted_large": {
        "large_1m": lambda name: _planted(name, 1_000_000, 8, 20_000, 0.1, False),
        "large_1m_sample": lambda name: _first_rows(name, _planted(name, 1_000_000, 8, 20_000, 0.1, False)),
    },
    "planted_crossed": {
        "crossed_30k": lambda name: _planted(name, 30_000, 4, 1_000, 0.2, True),
        "crossed_200k": lambda name: _planted(name, 200_000, 8, 5_000, 0.5, True),
    },
}
"""Planted data sets by their kind, which is their source."""


def names_of(half: tuple[str, ...]) -> list[str]:
    """Names of the data sets of a half."""
    return [name for source in half for name in (*REAL.get(source, ()), *PLANTED.get(source, ()))]


def data_set(name: str, folder: Path) -> Rows:
    """Return the data set with this name. `folder`: contains the folders of the real logs. Raises SystemExit if there
    is no such data set, or if its folder is missing."""
    for planted in PLANTED.values():
        if name in planted:
            return planted[name](name)
    for source, logs in REAL.items():
        if name in logs:
            if not (folder / source).is_dir():
                raise SystemExit(f"{folder} lacks {source}: name the folder that holds it with --data")
            return _read(folder / source, name, logs[name])
    raise SystemExit(f"there is no data set {name}; there are {', '.join(names_of(CHOOSING + JUDGING))}")
