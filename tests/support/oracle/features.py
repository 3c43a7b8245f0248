"""Features computed one example after another, with plain values, dictionaries and loops."""

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow.parquet as pq

from pipeline.kernels.hashing import hash_bytes_reference, hash_integer_reference, missing_key, table_salt

PARTS = {
    "hour": lambda t: t.hour,
    "weekday": lambda t: t.weekday(),
    "weekend": lambda t: int(t.weekday() >= 5),
    "day": lambda t: t.day,
    "month": lambda t: t.month,
    "minute": lambda t: t.minute,
}
UNITS = {"s": 10**6, "ms": 10**3, "us": 1}


def number(value):
    """The number that a feature reads; None if null or NaN."""
    if value is None or value != value:
        return None
    return float(value) if value == int(value) else float(np.float32(value))


def hashed(value, space):
    if value is None:
        return int(missing_key(space))
    salt = int(table_salt(space))
    return hash_bytes_reference(value.encode(), salt) if isinstance(value, str) else hash_integer_reference(value, salt)


def bucket(feature, example):
    x = number(example[feature.column])
    if x is None or x == number(feature.missing):
        return {feature.name: None}
    if feature.squared_log:
        return {feature.name: math.floor(math.log(min(x, 2.0**64)) ** 2) if x > 2 else max(int(x), -(2**62))}
    return {feature.name: sum(x >= number(edge) for edge in feature.edges)}


def standardize(feature, example):
    x = number(example[feature.column])
    if x is None:
        return {feature.name: None}
    if feature.log1p:
        x = math.copysign(np.log1p(abs(x)), x)
    z = (x - feature.mean) / feature.std
    if feature.clip:
        z = max(-feature.clip, min(feature.clip, z))
    return {feature.name: float(np.float32(z))}


def cross(feature, example):
    crossed, *others = (hashed(example[name], "cross") for name in feature.columns)
    for other in others:
        crossed = hash_integer_reference((hashed(crossed, "cross") + other) % 2**64, int(table_salt("cross")))
    return {feature.name: crossed}


def lookup(feature, example, root):
    rows = {row[feature.key]: row for row in pq.read_table(Path(root) / feature.file).to_pylist()}
    row = rows.get(example[feature.column], {})
    return {made: row.get(name) for name, made in feature.take.items()}


def calendar(feature, example):
    time = example[feature.column]
    if time is None:
        return dict.fromkeys(feature.makes)
    if feature.form:
        time = datetime.strptime(str(time), feature.form)
    elif feature.unit:
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time * UNITS[feature.unit])
    if getattr(time, "tzinfo", None):
        time = time.astimezone(ZoneInfo(feature.zone or "UTC"))
    return {made: PARTS[part](time) for part, made in feature.take.items()}


MADE = {"bucket": bucket, "standardize": standardize, "cross": cross, "calendar": calendar}


def with_made(data, examples):
    """Add the features' columns to each example, a dict of its values."""
    for example in examples:
        for feature in data.features:
            if feature.kind == "lookup":
                example |= lookup(feature, example, data.root)
            elif feature.kind != "rare":
                example |= MADE[feature.kind](feature, example)
    return examples


class RareValues:
    """The values of each category that do not have a separate key."""

    def __init__(self, data):
        self.rules = {}
        for feature in data.features:
            if feature.kind == "rare":
                table = pq.read_table(Path(data.root) / feature.counts).to_pylist()
                self.rules[feature.column] = feature, {row["value"]: row["count"] for row in table}

    def shares(self, value, column):
        """True if the value has the key that rare values share."""
        if column not in self.rules:
            return False
        feature, counts = self.rules[column]
        if value is None:
            return feature.nulls
        return counts.get(value, 0 if feature.unseen else feature.at_least) < feature.at_least
