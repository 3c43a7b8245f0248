"""Realistic faults by kind and variant, and planting them in a copy of a data set."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.doctor import columns, epochs, labels, leaks, rows, scales
from benchmarks.doctor.copies import Copy, Trace, load, write
from benchmarks.doctor.times import add_times
from pipeline.workflow import Workflow

FORMS = ("plain", "hour", "timestamp", "event_time", "small")
"""Forms of a clean copy: the files as they are; with a column of times and files of days; or a sample that trains in
seconds."""
STRENGTHS = (1.0, 0.1, 0.01)
CONSTANT = ("constant_column",)


@dataclass(frozen=True)
class Variant:
    """One kind of mistake. Its function changes a copy; the docstring says which rows."""

    plant: Callable[[Copy, float, np.random.Generator], Trace]
    form: str = "plain"
    """Form of the clean copy in which it is planted."""
    also: tuple[str, ...] = ()
    """Other kinds of faults that may correctly be reported for the planted columns."""
    needs_numbers: bool = False
    """True if it changes a number of the workflow."""
    control: bool = False
    """True if it adds a column that is faultless at strength 0."""


VARIANTS: dict[str, dict[str, Variant]] = {
    "leak": {
        "after_click": Variant(leaks.after_click, also=CONSTANT),
        "own_click_counted": Variant(leaks.own_click_counted, control=True),
        "id_of_positives": Variant(leaks.id_of_positives, also=CONSTANT),
        "target_encoding": Variant(leaks.target_encoding, control=True),
    },
    "shared_rows": {
        "sampled_from_all": Variant(rows.sampled_from_all),
        "validation_in_train": Variant(rows.validation_in_train),
        "logged_twice": Variant(rows.logged_twice, "timestamp"),
    },
    "time_order": {
        "random_split": Variant(rows.random_split, "hour"),
        "shuffled_days": Variant(rows.shuffled_days, "event_time"),
        "before_train": Variant(rows.before_train, "timestamp"),
        "mixed_units": Variant(rows.mixed_units, "timestamp"),
    },
    "constant_column": {
        "failed_join": Variant(columns.failed_join),
        "default_value": Variant(columns.default_value, "hour"),
        "stale_snapshot": Variant(columns.stale_snapshot),
        "zero_number": Variant(columns.zero_number, "event_time", needs_numbers=True),
    },
    "copied_column": {
        "same_values": Variant(columns.same_values, control=True),
        "renamed_values": Variant(columns.renamed_values, control=True),
        "scaled_number": Variant(columns.scaled_number, needs_numbers=True, control=True),
        "coalesced": Variant(columns.coalesced),
    },
    "unscaled_number": {
        "raw_counts": Variant(scales.raw_counts, control=True),
        "nanoseconds": Variant(scales.nanoseconds),
        "overflow": Variant(scales.overflow, control=True),
        "minus_999": Variant(scales.minus_999, control=True),
    },
    # A file or hour without clicks has one value in the column of the label.
    "label_rate": {
        "zero_file": Variant(labels.zero_file, "hour", CONSTANT),
        "lost_hours": Variant(labels.lost_hours, "timestamp", CONSTANT),
        "negatives_dropped": Variant(labels.negatives_dropped, "event_time", CONSTANT),
        "delayed_clicks": Variant(labels.delayed_clicks, "timestamp", CONSTANT),
    },
    "second_epoch": {
        "request_id": Variant(epochs.request_id, "small"),
        "session_id": Variant(epochs.session_id, "small"),
    },
}


@dataclass(frozen=True)
class Planted:
    kind: str
    variant: str
    strength: float
    columns: tuple[str, ...]
    """Columns that have the fault; empty if rows have it."""
    also: tuple[str, ...]
    """Other kinds of faults that may correctly be reported for these columns."""
    affected: int
    of: int
    """Number of changed rows, and number of rows from which they were drawn; for lost_hours, hours."""
    workflow: Workflow
    """Workflow to diagnose."""


def variants_for(workflow: Workflow) -> Iterator[tuple[str, str, Variant]]:
    """Kind, name and variant of all faults that can be planted in data with these columns."""
    for kind, variants in VARIANTS.items():
        for name, variant in variants.items():
            if variant.needs_numbers and not workflow.data.numbers:
                continue
            if variant.form == "small" and workflow.name not in epochs.LEARNED:
                continue
            yield kind, name, variant


def make_clean(data: Workflow, form: str, out: Path, seed: int) -> Workflow:
    """Write a clean copy of a data set in one of FORMS, and return its workflow."""
    source = load(data)
    copy = source.twin()
    rng = np.random.default_rng([seed, FORMS.index(form)])
    if form == "small":
        epochs.shrink(copy, rng)
    elif form != "plain":
        add_times(copy, form, rng)
    return write(copy, out, source)


def plant(kind: str, variant: str, strength: float, data: Workflow, out: Path, seed: int) -> Planted:
    """Copy the files of `data`, a clean copy in the variant's form, to `out`, with a fault in a share of the rows.

    Files and columns without the fault stay as they are. The same seed makes the same files, byte by byte. Strength 0
    is the control: the columns that the fault adds, without the fault.
    """
    one = VARIANTS[kind][variant]
    source = load(data)
    copy = source.twin()
    assert one.form in ("plain", "small", *source.table.column_names), f"{variant} needs a copy of form {one.form}"
    rng = np.random.default_rng([seed, zlib.crc32(f"{kind}/{variant}".encode())])
    trace = one.plant(copy, strength, rng)
    return Planted(kind, variant, strength, trace.columns, one.also, trace.affected, trace.of, write(copy, out, source))
