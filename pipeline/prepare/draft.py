"""Text of a workflow file for data of a known size: a starting point that trains well unchanged.

Batch size, layer sizes and number of epochs follow rules of thumb based on the number of rows, tested on public data
sets of 10^4 to 10^8 rows. Memory and disk are chosen when a run starts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.messages.terminal import visible
from pipeline.prepare.layout import STATISTICS
from pipeline.settings import SPLITS

LARGE_ROWS = 4_000_000
"""Minimum number of training rows for which one epoch is enough: with this much data, a CTR model overfits in the
second."""
STEPS_PER_EPOCH = 200
MIN_BATCH, MAX_BATCH = 128, 4096
MAX_EPOCHS = 20
L2_OF_ALL = 50.0
"""L2 on every row at every step, in units of 1 / training rows, for logs trained for several epochs."""
SMALL_STD = 1e-3
"""Standard deviation of new embeddings for such logs: rare keys start near 0."""
MIN_GAIN = 1e-4
"""Minimum logloss improvement that justifies another epoch."""
LR_FACTOR = 0.2
"""Learning rate factor after an epoch that improved less: the weights then average over smaller steps."""
MIN_BUCKETS, MAX_BUCKETS, ROWS_OF_BUCKET = 32, 128, 400
"""Minimum and maximum number of buckets of a number, and training rows per bucket between these limits."""
WIDEST = 4.0
"""Maximum absolute value of a scaled number."""

BEGINNING = """\
A beginning: `help(pipeline.api)` lists all settings and models. A run chooses how much memory and disk it
takes; storage=Storage(memory="8 GiB") sets a limit."""
OF_NUMBERS = """\
# Each number is read in two forms: its logarithm with mean 0 and deviation 1, and the bucket that it falls in, with
# about as many rows in each. {} has means, deviations and edges of the training rows."""
OF_SEQUENCES = """\
        # Lists that the model reads value by value, oldest first. They share the rows of the categories named here.
        sequences=("""
GUARD = 'guard=0.1, guard_then="hold"'
REGULARIZATION = """\
        # L2 on every row at every step, {:g} / training rows: what one click says of a rare key is forgotten until
        # more follow. Of all settings it decides most."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings in which the candidates for a draft's workflow differ."""

    is_linear: bool
    lr: float
    """Learning rate of the rows: Adagrad's for a linear model, Adam's for others."""
    l2: float = L2_OF_ALL
    """L2 on every row at every step, in units of 1 / training rows."""
    reads_sequences: bool = False
    """True if the model reads the draft's sequences value by value; other models pool the lists."""
    softmax: bool = True
    """False if attention sums the values instead of taking a weighted mean, so that their number matters."""

    def __str__(self) -> str:
        kind = "linear" if self.is_linear else "attention" if self.reads_sequences else "deep"
        kind += "" if self.softmax else " without softmax"
        return f"{kind}, rows' rate {self.lr:g}, L2 {self.l2:g} / rows"


LINEAR, FREER, DEEP, FAST = Recipe(True, 0.2, 10.0), Recipe(True, 0.2, 2.0), Recipe(False, 1e-3), Recipe(False, 3e-3)
ATTENTIVE = Recipe(False, 1e-3, reads_sequences=True)
ADDING = Recipe(False, 3e-3, reads_sequences=True, softmax=False)


@dataclass(frozen=True, slots=True)
class DraftedCategory:
    """Category of the workflow."""

    name: str
    table: str = ""
    """Column whose rows a list shares, if any. A linear model keeps separate rows: a value in a history means something
    different from the same value as the candidate."""
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class DraftedSequence:
    """Sequence of the workflow. Its lists are categories of the draft."""

    name: str
    items: Mapping[str, str]
    """Name of each list column -> category with the same values."""
    max_length: int | None = None
    """None: the default."""


@dataclass(frozen=True, slots=True)
class DraftedTime:
    """Time of which the workflow makes categories by `Calendar`."""

    column: str
    take: Mapping[str, str]
    """Part of the time, such as hour -> name of the category."""
    settings: Mapping[str, str]
    """Other settings of `Calendar`: unit, form or zone."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Complete input for writing a workflow file."""

    name: str
    what: str
    """Description of the data, which ends the file's first sentence."""
    root: str
    """Python expression for `data.root`."""
    splits: Mapping[str, Sequence[str]]
    """File patterns of each split."""
    labels: Sequence[str]
    numbers: Sequence[str]
    """Names of the numbers. Each must have at least two distinct values in the training rows."""
    categories: Sequence[DraftedCategory]
    statistics: str
    """Name of the file with the numbers' statistics, in the workflow's folder."""
    columns: Collection[str]
    """Names of all columns of the files."""
    num_rows: int
    """Number of training rows."""
    rates: Mapping[str, float]
    """Positive rate of each label in the training rows."""
    weight: str = ""
    """Column of row weights, if any."""
    group: str = ""
    """Column that defines groups for per-group metrics, if any."""
    sequences: Sequence[DraftedSequence] = ()
    time: DraftedTime | None = None
    recipe: Recipe = DEEP
    epochs: int | None = None
    """Number of epochs of a workflow without a validation split; None: the rule of thumb."""
    notes: Sequence[str] = ()
    """Lines of a comment in the file."""
    days: str = ""
    """Python expression for `data.time`, if each day is trained on once."""

    @property
    def kind(self) -> str:
        """Name of the model."""
        if len(self.labels) > 1:
            return "SharedBottom"
        return "LR" if self.recipe.is_linear else "DIN" if self.recipe.reads_sequences else "DeepFM"

    @property
    def num_buckets(self) -> int:
        """Number of buckets of each number."""
        return num_buckets_of(self.num_rows, self.recipe.is_linear)

    @property
    def rule(self) -> str:
        """Name of the row optimizer."""
        return "Adagrad" if self.recipe.is_linear else "Adam"

    @property
    def again(self) -> bool:
        """True for a log small enough to train on for several epochs."""
        return not self.days and self.num_rows < LARGE_ROWS

    @property
    def stops(self) -> bool:
        """True if training stops at the best epoch, which requires a validation split."""
        return self.again and bool(self.splits.get("validation"))

    @property
    def read(self) -> Sequence[DraftedSequence]:
        """Sequences that the model reads value by value."""
        return self.sequences if self.recipe.reads_sequences else ()


def with_sequences(draft: Draft, sequences: Sequence[DraftedSequence]) -> Draft:
    """Return the draft of a model that reads sequences, or the same draft if there are no sequences or several labels:
    no such model is drafted for several labels. Without softmax, a sum over the history counts the items that match the
    candidate; a weighted mean cannot."""
    if not sequences or len(draft.labels) > 1:
        return draft
    return replace(draft, sequences=sequences, recipe=ADDING)


def workflow_text(draft: Draft) -> str:
    """Text of a Python file for `pipeline run`."""
    return "".join(f"{line}\n" for part in (_head, _data, _model, _training) for line in part(draft))


def _head(draft: Draft) -> Iterator[str]:
    used = ["Category", "Data", "DenseAdam", "Model", "Optimizer", "Schedule", "Workflow", draft.kind, draft.rule]
    used += [*(["Bucket", "Number", "Standardize"] * bool(draft.numbers)), *(["Plateau"] * draft.stops)]
    used += ["Metrics"] * bool(draft.group or draft.days) + ["Storage", "Time"] * bool(draft.days)
    used += ["Sequence"] * bool(draft.read) + ["Calendar"] * bool(draft.time)
    yield f'"""{draft.kind} on {draft.what}.\n\n{BEGINNING}\n"""\n\nfrom pathlib import Path\n'
    yield "from pipeline.api import ("
    yield from (f"    {name}," for name in sorted(used))
    yield ")\n"
    yield from (f"# {note}" for note in draft.notes)
    if draft.numbers:
        yield OF_NUMBERS.format(draft.statistics)
        yield "NUMBERS = ("
        yield from (f"    {quoted(name)}," for name in draft.numbers)
        yield ")\n"


def _data(draft: Draft) -> Iterator[str]:
    yield f"workflow = Workflow(\n    name={quoted(draft.name)},\n    data=Data(\n        root={draft.root},"
    for split in SPLITS:
        if patterns := draft.splits.get(split):
            yield f"        {split}=({', '.join(map(quoted, patterns))},),"
    yield f"        labels=({', '.join(map(quoted, draft.labels))}{',' if len(draft.labels) == 1 else ''}),"
    if draft.days:
        yield f'        time={draft.days}, late="take",'
    if draft.weight:
        yield f"        weight={quoted(draft.weight)},"
    scaled, bucket = suffixes(draft.columns)
    made = list[str]()
    if time := draft.time:
        settings: dict[str, str | dict[str, str]] = {"column": time.column, **time.settings, "take": dict(time.take)}
        made.append(f"Calendar({', '.join(f'{name}={quoted(value)}' for name, value in settings.items())})")
    if draft.numbers:
        log, ranges = f"log1p=True, clip={WIDEST}", f"quantiles={draft.num_buckets}"
        made.append(f'*(Standardize(column=name, name=f"{{name}}{scaled}", {log}) for name in NUMBERS)')
        made.append(f'*(Bucket(column=name, name=f"{{name}}{bucket}", {ranges}) for name in NUMBERS)')
    if made:
        yield "        features=("
        yield from (f"            {feature}," for feature in made)
        yield "        ),"
    if draft.numbers:
        yield f"        statistics=Path(__file__).parent / {quoted(draft.statistics)},"
        yield f'        numbers=tuple(Number(name=f"{{name}}{scaled}") for name in NUMBERS),'
    listed = {name for sequence in draft.read for name in sequence.items}
    yield "        categories=("
    for category in (category for category in draft.categories if category.name not in listed):
        shares = category.table and not draft.recipe.is_linear
        more = f", table={quoted(category.table)}" if shares else ""
        more += ', pooling="mean"' if category.is_list else ""
        yield f"            Category(name={quoted(category.name)}{more}),"
    for name in draft.time.take.values() if draft.time else ():
        yield f"            Category(name={quoted(name)}),"
    if draft.numbers:
        yield f'            *(Category(name=f"{{name}}{bucket}") for name in NUMBERS),'
    yield "        ),"
    if draft.read:
        yield OF_SEQUENCES
        for sequence in draft.read:
            length = f", max_length={sequence.max_length}" if sequence.max_length else ""
            yield f"            Sequence(name={quoted(sequence.name)}, items={quoted(dict(sequence.items))}{length}),"
        yield "        ),"
    yield "    ),"


def _model(draft: Draft) -> Iterator[str]:
    several = f'"num_labels": {len(draft.labels)}, ' if len(draft.labels) > 1 else ""
    deep = f"embedding_dim=16, {f'init_std={SMALL_STD}, ' if draft.again else ''}"
    attention = ', "attention": (64, 32)' + ("" if draft.recipe.softmax else ', "softmax": False')
    deep += f'args={{{several}"hidden": (400, 400), "dropout": 0.2{attention if draft.read else ""}}}'
    yield f"    model=Model(\n        kind={draft.kind}, {'embedding_dim=0' if draft.recipe.is_linear else deep},"
    # The logit of a label with a single value is infinite.
    if draft.rates and all(0 < rate < 1 for rate in draft.rates.values()):
        biases = {label: f"{math.log(rate / (1 - rate)):.2f}" for label, rate in draft.rates.items()}
        each = ", ".join(f"{quoted(label)}: {bias}" for label, bias in biases.items())
        shares = ", ".join(f"{rate:.2%}" for rate in draft.rates.values())
        yield f"        # Training begins at the positive rate, {shares}, instead of at 50 %."
        yield f"        initial_bias={f'{{{each}}}' if len(biases) > 1 else next(iter(biases.values()))},"
    yield "    ),"


def _training(draft: Draft) -> Iterator[str]:
    l2 = f', l2={draft.recipe.l2 / max(1, draft.num_rows):.2g}, semantics="dense"' if draft.again else ""
    yield "    optimizer=Optimizer("
    if draft.again:
        yield REGULARIZATION.format(draft.recipe.l2)
    yield f"        rows={draft.rule}(lr={draft.recipe.lr:g}{l2}),"
    yield f"        dense=DenseAdam(lr={3e-3 if draft.recipe.is_linear else 1e-3:g}),\n    ),"
    if draft.stops:
        yield f"    schedule=Schedule(\n        batch_size={batch_size_of(draft.num_rows)}, epochs={MAX_EPOCHS},"
        plateau = f'metric="logloss", min_gain={MIN_GAIN}, lr_factor={LR_FACTOR}, stop_after=3'
        yield f"        plateau=Plateau({plateau}),\n    ),"
    else:
        epochs = draft.epochs or (3 if draft.again else 1)
        yield f"    schedule=Schedule(batch_size={batch_size_of(draft.num_rows)}, epochs={epochs}),"
    if draft.days:
        yield "    storage=Storage(keep_spans=7),"
    metrics = [f"group={quoted(draft.group)}"] * bool(draft.group) + [GUARD] * bool(draft.days)
    if metrics:
        yield f"    metrics=Metrics({', '.join(metrics)}),"
    yield ")"


def suffixes(columns: Collection[str], ends: Sequence[str] = ("_scaled", "_bucket")) -> list[str]:
    """Name suffixes for derived columns, by default those of numbers. No column of the files has one of them."""
    found = []
    for end in ends:
        while any(name.endswith(end) for name in columns):
            end = f"_{end}"
        found.append(end)
    return found


def batch_size_of(num_rows: int) -> int:
    """Batch size for `num_rows` training rows: about STEPS_PER_EPOCH steps per epoch, from MIN_BATCH to MAX_BATCH."""
    power_of_two = 1 << max(0, num_rows // STEPS_PER_EPOCH - 1).bit_length()
    return min(MAX_BATCH, max(MIN_BATCH, power_of_two))


def num_buckets_of(num_rows: int, is_linear: bool) -> int:
    """Number of buckets of a number for `num_rows` training rows. A deep model benefits from narrow buckets, since it
    starts their rows near 0. A linear model does not: its weights of neighbouring buckets are unrelated."""
    return MIN_BUCKETS if is_linear else min(MAX_BUCKETS, max(MIN_BUCKETS, num_rows // ROWS_OF_BUCKET))


def workflow_name(stem: str) -> str:
    """Name of a workflow and of its run's folder, derived from the name of a file or folder."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", stem).lstrip("._-") or "workflow"


def draft_of(summary: Mapping[str, Any], name: str, root: str, with_nulls: Collection[str] = ()) -> Draft:
    """Draft of the workflow of a prepared data set. `summary`: as in _prepared.json; `root`: Python expression for the
    data's folder; `with_nulls`: list columns that contain null values, which sequences must not."""
    columns, splits = summary["columns"], summary["splits"]
    names = {role: [n for n, c in columns.items() if c["role"] == role] for role in ("label", "number", "category")}
    # A history shares the embeddings of the column that it lists, if that column is a category.
    listed = {n: c["history"] for n, c in columns.items() if c.get("history") in names["category"]}
    rates = splits["train"]["positive_rate"]
    rate = ", ".join(f"{rate:.4f}" for rate in rates.values())
    rows = sum(split["rows"] for split in splits.values())
    draft = Draft(
        name=name,
        what=f"{rows:,} rows that pipeline.prepare made: positive rate {rate}",
        root=root,
        splits={split: (split,) for split in SPLITS if splits[split]["rows"]},
        labels=names["label"],
        numbers=names["number"],
        categories=[DraftedCategory(n, listed.get(n, ""), "history" in columns[n]) for n in names["category"]],
        statistics=STATISTICS,
        columns=list(columns),
        num_rows=splits["train"]["rows"],
        rates=rates,
    )
    items = {n: candidate for n, candidate in listed.items() if n not in with_nulls}
    return with_sequences(
        draft, [DraftedSequence("history", items, summary.get("options", {}).get("last"))] if items else []
    )


def quoted(value: str | dict[str, str]) -> str:
    """Python literal of the value."""
    return visible(json.dumps(value, ensure_ascii=False))
