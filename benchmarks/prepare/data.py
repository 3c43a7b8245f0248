"""Synthetic click logs in Criteo's layout: tab-separated, counts with gaps, categories of 8 hex digits, some empty."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
from numpy.typing import NDArray

from benchmarks.cases import CARDINALITIES
from pipeline.kernels.hashing import mix_reference

NUM_NUMBERS = 13
ROWS_AT_ONCE = 1 << 18
ZIPF = 1.05
NULLS = 0.1
"""Share of empty values in every column except the label and the first numbers and categories, similar to the real
logs."""
DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


def ensure(path: Path, num_rows: int, seed: int = 0) -> Path:
    """Make the file with `num_rows` lines, unless it exists, and return its path."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.partial")
        options = pyarrow.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
        with open(partial, "wb") as file:
            for begin in range(0, num_rows, ROWS_AT_ONCE):
                table = make(min(ROWS_AT_ONCE, num_rows - begin), np.random.default_rng([seed, begin]))
                pyarrow.csv.write_csv(table, file, options)
        os.replace(partial, path)
    return path


def make(num_rows: int, rng: np.random.Generator) -> pa.Table:
    """Make columns label, i1 .. i13 and c1 .. c26 of `num_rows` rows."""
    columns: dict[str, pa.Array] = {"label": pa.array((rng.random(num_rows) < 0.26).astype(np.int8))}
    for n in range(1, NUM_NUMBERS + 1):
        values = np.floor(rng.lognormal(1.0 + 0.3 * n, 1.5, num_rows)).astype(np.int32) - 3 * (n == 2)
        columns[f"i{n}"] = pa.array(values, mask=_empty(rng, num_rows, n))
    for n, cardinality in enumerate(CARDINALITIES, 1):
        columns[f"c{n}"] = _texts(_zipf(rng, cardinality, num_rows), n, _empty(rng, num_rows, n))
    return pa.table(columns)


def _zipf(rng: np.random.Generator, cardinality: int, size: int) -> NDArray[np.uint64]:
    """Draw from the density x ** -ZIPF on [1, cardinality + 1), rounded down."""
    power = 1.0 - ZIPF
    top = (cardinality + 1.0) ** power
    return np.floor((1.0 + rng.random(size) * (top - 1.0)) ** (1.0 / power)).astype(np.uint64)


def _texts(values: NDArray[np.uint64], column: int, empty: NDArray[np.bool_]) -> pa.Array:
    """Eight hexadecimal digits for each value, multiplied by an odd number: a bijection of 32 bits."""
    scattered = values * np.uint64(mix_reference(column) | 1) & np.uint64(0xFFFFFFFF)
    nibbles = scattered[:, None] >> np.arange(28, -4, -4, dtype=np.uint64) & np.uint64(15)
    texts = DIGITS[nibbles.astype(np.intp)].reshape(-1)
    offsets = np.arange(0, 8 * len(values) + 8, 8, dtype=np.int32)
    array = pa.Array.from_buffers(pa.string(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(texts)])
    return pa.compute.if_else(pa.array(empty), pa.scalar(None, pa.string()), array)


def _empty(rng: np.random.Generator, size: int, column: int) -> NDArray[np.bool_]:
    return rng.random(size) < (NULLS if column % 3 == 0 else 0.0)
