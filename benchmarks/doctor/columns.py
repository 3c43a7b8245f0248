"""Faults of the kinds `constant_column` and `copied_column`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.doctor.copies import Copy, Trace, pick
from pipeline.records import I64
from pipeline.workflow import Category

ODD = 0x9E3779B97F4A7C15
"""Multiplication by an odd number renames 64-bit integers one to one."""


def _fill(copy: Copy, name: str, value: object, share: float, among: I64, rng: np.random.Generator) -> Trace:
    """Set the column to one value in a share of the rows."""
    rows = pick(rng, among, share)
    copy.put(name, pa.array([value] * len(rows), copy.table.schema.field(name).type), rows)
    return Trace((name,), len(rows), len(among))


def failed_join(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """Null in `share` of the rows of test: the join found no partner."""
    return _fill(copy, copy.fields()[1], None, share, copy.rows("test"), rng)


def default_value(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """-1 in `share` of the rows of the last train file: the service that has the value did not answer."""
    return _fill(copy, copy.fields()[2], -1, share, copy.files[copy.splits["train"][-1]], rng)


def stale_snapshot(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """The value that is most frequent in train, in `share` of the rows of validation and test: the features of these
    days come from a snapshot that did not change."""
    name = copy.fields()[0]
    counts = pc.value_counts(copy.table[name].take(pa.array(copy.rows("train"))))
    value = counts.field("values")[int(np.argmax(counts.field("counts")))]
    return _fill(copy, name, value.as_py(), share, copy.rows("validation", "test"), rng)


def zero_number(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """0 in `share` of the rows of one train file: a counter was reset."""
    train = copy.splits["train"]
    return _fill(copy, copy.numbers()[0].name, 0, share, copy.files[train[len(train) // 2]], rng)


def _copied_in(copy: Copy, source: str, share: float, rng: np.random.Generator) -> tuple[pa.Array, int]:
    """Values of a column: in `share` of all rows those of `source`, in the others those that it has in other rows."""
    own = np.setdiff1d(copy.everything(), pick(rng, copy.everything(), share))
    at_N = copy.everything()
    at_N[own] = rng.permutation(own)
    return copy.table[source].combine_chunks().take(pa.array(at_N)), len(at_N) - len(own)


def same_values(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """A second column of the largest field, equal in `share` of all rows."""
    source = copy.fields()[0]
    values, affected = _copied_in(copy, source, share, rng)
    copy.add(Category(name=f"{source}_v2"), values)
    return Trace((f"{source}_v2", source), affected, len(copy.table))


def renamed_values(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """The third largest field as hashed text, with another value for each of its values, in `share` of all rows."""
    source = copy.fields()[2]
    values, affected = _copied_in(copy, source, share, rng)
    hashed_N = values.to_numpy().astype(np.uint64) * np.uint64(ODD)
    copy.add(Category(name=f"{source}_hash"), pa.array([f"{value:016x}" for value in hashed_N.tolist()]))
    return Trace((f"{source}_hash", source), affected, len(copy.table))


def scaled_number(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """A number in another unit, a hundredth, in `share` of all rows."""
    source = copy.numbers()[0]
    values, affected = _copied_in(copy, source.name, share, rng)
    new = source.model_copy(update={"name": f"{source.name}_scaled"})
    copy.add(new, pc.multiply(values.cast(pa.float32()), pa.scalar(0.01, pa.float32())))
    return Trace((new.name, source.name), affected, len(copy.table))


def coalesced(copy: Copy, share: float, rng: np.random.Generator) -> Trace:
    """A field that has the value of another one in `share` of all rows, where its own was missing."""
    source, name = copy.fields()[0], copy.fields()[3]
    rows = pick(rng, copy.everything(), share)
    copy.put(name, copy.table[source].combine_chunks().take(pa.array(rows)), rows)
    return Trace((name, source), len(rows), len(copy.table))
