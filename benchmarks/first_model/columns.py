"""Columns of numbers in the forms that the study compares, all made by features of this package.

All statistics are those of the training split.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.first_model.sets import SPLITS, Rows
from pipeline.api import Bucket, Category, Data, Number, Rare, Standardize
from pipeline.prepare.draft import MIN_BUCKETS
from pipeline.prepare.statistics import quantile_edges, write_statistics
from pipeline.records import Array

Form = Literal["log", "standard", "buckets", "both"]
"""Form of numbers: log1p as drafted by `init`; the signed logarithm, standardized; the number of a bucket as a
category; the last two together."""
WIDEST = 4.0
"""Standardized numbers are clipped to this many standard deviations."""


def with_last(rows: Rows) -> Rows:
    """The data set with the last value of each list as an additional column, which is what trees get from lists."""
    lists = [name for name in rows.categories if pa.types.is_list(rows.splits["train"].schema.field(name).type)]
    splits = dict(rows.splits)
    for split, table in splits.items():
        for name in lists:
            kind = table.schema.field(name).type.value_type
            last = [values[-1] if values else None for values in table[name].to_pylist()]
            splits[split] = table = table.append_column(f"{name}.last", pa.array(last, kind))
    return replace(rows, splits=splits, categories=(*rows.categories, *(f"{name}.last" for name in lists)))


def written(rows: Rows, form: Form, num_buckets: int, folder: Path, at_least: int = 0) -> Data:
    """Write the splits of a data set below `folder`, if not done yet, and return the `data` of a workflow that reads
    its numbers in this form, with this number of buckets. Category values that occur less than `at_least` times share
    one key."""
    root = folder / rows.name
    root.mkdir(parents=True, exist_ok=True)
    statistics = f"{form}, {num_buckets}, {at_least}.json"
    for split in SPLITS:
        if not (path := root / f"{split}.parquet").exists():
            pq.write_table(rows.splits[split].select([rows.label, *rows.numbers, *rows.categories]), path)
    numbers: list[Number] = []
    categories, features = list[Category](), list[Bucket | Standardize | Rare]()
    for name in rows.numbers:
        if form == "log":
            numbers.append(_drafted(name, np.concatenate([floats(rows.splits[split], name) for split in SPLITS])))
        if form in ("standard", "both"):
            features.append(Standardize(column=name, name=f"{name}.scaled", log1p=True, clip=WIDEST))
            numbers.append(Number(name=f"{name}.scaled"))
        if form in ("buckets", "both"):
            features.append(Bucket(column=name, name=f"{name}.bucket", quantiles=num_buckets))
            categories.append(Category(name=f"{name}.bucket"))
    kinds = rows.splits["train"].schema
    for name in rows.categories if at_least else ():
        counts = f"{rows.tables.get(name) or name}.counts.parquet"
        features.append(Rare(column=name, at_least=at_least, counts=counts))
    given = [
        Category(
            name=name,
            table=rows.tables.get(name),
            pooling="mean" if pa.types.is_list(kinds.field(name).type) else "sum",
        )
        for name in rows.categories
    ]
    data = Data(
        root=root,
        train=("train.parquet",),
        validation=("validation.parquet",),
        test=("test.parquet",),
        labels=(rows.label,),
        features=tuple(features),
        statistics=statistics if features else None,
        numbers=tuple(numbers),
        categories=(*given, *categories),
    )
    if features and not (root / statistics).exists():
        list(write_statistics(data))
    return data


def _drafted(name: str, values: Array) -> Number:
    """A number as drafted by `init` from its range in all files (see `pipeline.prepare.draft.number_setting`)."""
    known = values[np.isfinite(values)]
    low, high = float(known.min(initial=0)), float(known.max(initial=0))
    if low >= 0:
        return Number(name=name, log1p=high > 1)
    is_whole = bool((known == np.trunc(known)).all())
    return Number(name=name, fill=low, shift=-low, log1p=True) if is_whole else Number(name=name)


def bucket_edges(values: Array) -> Array:
    """Edges of buckets for other tools, by this package's rule for linear models."""
    return np.array(quantile_edges(values, MIN_BUCKETS))


def floats(table: pa.Table, name: str) -> Array:
    """[N] values of a column; null is NaN."""
    return np.asarray(table.column(name).cast(pa.float64()).to_numpy(), np.float64)
