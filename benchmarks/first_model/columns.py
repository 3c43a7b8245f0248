"""Columns of numbers in the forms that the study compares, written as Parquet files that a workflow reads as they are.

All statistics are those of the training split.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.first_model.sets import SPLITS, Rows
from pipeline.records import Array
from pipeline.workflow import Category, Data, Number

Form = Literal["log", "standard", "buckets", "both"]
"""Form of numbers: log1p as `init` drafts it; the signed logarithm, standardized, with a flag of nulls; the number of a
bucket as a category; the last two together."""
NUM_BUCKETS = 32
WIDEST = 4.0
"""Standardized numbers are cut to at most so many standard deviations."""


def written(rows: Rows, form: Form, folder: Path) -> Data:
    """Write the splits of a data set in this form below `folder`, once, and return the `data` of a workflow for it."""
    root = folder / rows.name / form
    numbers: list[Number] = []
    buckets: list[str] = []
    made: dict[str, dict[str, Array]] = {split: {} for split in SPLITS}
    for name in rows.numbers:
        values = {split: _floats(rows.splits[split], name) for split in SPLITS}
        train = values["train"][np.isfinite(values["train"])]
        if form == "log":
            numbers.append(_drafted(name, np.concatenate([*values.values()])))
        if form in ("standard", "both"):
            mean, deviation = _signed_log(train).mean(), max(float(_signed_log(train).std()), 1e-6)
            numbers += [Number(name=f"{name}.scaled"), Number(name=f"{name}.null")]
            for split, of in values.items():
                scaled = np.nan_to_num((_signed_log(of) - mean) / deviation, nan=0.0)
                made[split][f"{name}.scaled"] = np.clip(scaled, -WIDEST, WIDEST).astype(np.float32)
                made[split][f"{name}.null"] = np.isnan(of).astype(np.float32)
        if form in ("buckets", "both"):
            buckets.append(f"{name}.bucket")
            edges = bucket_edges(train)
            for split, of in values.items():
                places = np.searchsorted(edges, of, "left") + np.searchsorted(edges, of, "right")
                made[split][f"{name}.bucket"] = np.where(np.isnan(of), -1, places).astype(np.int32)
    for split in SPLITS:
        path = root / f"{split}.parquet"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            table = rows.splits[split].select([rows.label, *rows.numbers, *rows.categories])
            for name, column in made[split].items():
                table = table.append_column(name, pa.array(column))
            pq.write_table(table, path)
    kinds = rows.splits["train"].schema
    categories = [
        Category(
            name=name,
            table=rows.tables.get(name),
            pooling="mean" if pa.types.is_list(kinds.field(name).type) else "sum",
        )
        for name in rows.categories
    ]
    return Data(
        root=root,
        train=("train.parquet",),
        validation=("validation.parquet",),
        test=("test.parquet",),
        labels=(rows.label,),
        numbers=tuple(numbers),
        categories=(*categories, *(Category(name=name) for name in buckets)),
    )


def _drafted(name: str, values: Array) -> Number:
    """A number as `init` drafts it by its range in all files (see `pipeline.prepare.draft.number_setting`)."""
    known = values[np.isfinite(values)]
    low, high = float(known.min(initial=0)), float(known.max(initial=0))
    if low >= 0:
        return Number(name=name, log1p=high > 1)
    is_whole = bool((known == np.trunc(known)).all())
    return Number(name=name, fill=low, shift=-low, log1p=True) if is_whole else Number(name=name)


def bucket_edges(values: Array) -> Array:
    """Edges of buckets of about as many values each, of those other than the most frequent one, which has a bucket by
    itself: quantiles of a column that is mostly 0 would all be 0."""
    different, counts = np.unique(values, return_counts=True)
    if not len(different):
        return np.empty(0)
    frequent = different[counts.argmax()]
    others = values[values != frequent]
    quantiles = np.quantile(others, np.linspace(0, 1, NUM_BUCKETS + 1), method="nearest") if len(others) else []
    return np.unique([frequent, *quantiles])


def _signed_log(values: Array) -> Array:
    return np.sign(values) * np.log1p(np.abs(values))


def _floats(table: pa.Table, name: str) -> Array:
    """[N] values of a column; null is NaN."""
    return np.asarray(table.column(name).cast(pa.float64()).to_numpy(), np.float64)
