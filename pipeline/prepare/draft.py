"""Text of a workflow file for data of a known size, as a starting point that trains well without changes.

The sizes of batch, layers and epochs are rules of thumb by the number of rows, tried on public data of 10^4 to 10^8
rows. Memory and disk are chosen when a run begins.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.data.files import SPLITS
from pipeline.messages.terminal import visible

LARGE_ROWS = 4_000_000
"""Number of training rows from which on one epoch is enough: a CTR model of so many rows overfits in the second one."""
STEPS_PER_EPOCH = 200
MIN_BATCH, MAX_BATCH = 128, 4096
MAX_EPOCHS = 20
L2_OF_EXAMPLE, SMALL_STD = 0.3, 1e-3
"""L2 of a row, in units of the weight of one example in a batch, and standard deviation of new embeddings, for logs
that are read several times. Both keep rare keys from learning their few examples by heart."""
MIN_GAIN = 1e-4
"""Least gain of logloss for which another epoch is worth its time."""
DIM, SMALL_DIM, DROPOUT = 16, 8, 0.2
LR, SMALL_LR = 3e-3, 1e-3
SMALL_ROWS = 200_000
"""Number of training rows below which embeddings and layers are narrow, and rows learn at SMALL_LR."""

TEXT = '''"""{kind} on {what}.

A beginning: pipeline/workflow.py has all settings, pipeline/models other models. A run chooses how much memory and disk
it takes; storage=Storage(memory="8 GiB") sets a limit.
"""

from pathlib import Path

from pipeline.models import {kind}
from pipeline.settings.optimizer import Adam, DenseAdam, Optimizer{plateau_import}
from pipeline.workflow import Category, Data, {metrics_import}Model, {number_import}Schedule, Workflow

{notes}workflow = Workflow(
    name={name},
    data=Data(
        root={root},
{splits}
        labels=({labels}),
{weight}{numbers}        categories=(
{categories}
        ),
    ),
    model=Model(
        kind={kind}, {model},
{bias}    ),
    optimizer=Optimizer(rows=Adam({rows}), dense=DenseAdam(lr=1e-3)),
    schedule=Schedule({schedule}),
{metrics})
'''


@dataclass(frozen=True, slots=True)
class Recipe:
    """What candidates for the workflow of a draft differ in."""

    kind: str
    """Name of the model."""
    l2: float | None
    """L2 of all rows at every step, in units of the weight of one of the training rows; None: of the rows of a batch,
    by the rule of thumb."""

    def __str__(self) -> str:
        return f"{self.kind}, " + ("L2 of a batch's rows" if self.l2 is None else f"L2 {self.l2:g} / rows")


@dataclass(frozen=True, slots=True)
class Draft:
    """Everything that a workflow file is written from."""

    name: str
    what: str
    """End of the file's first sentence: what the data is."""
    root: str
    """Expression of `data.root` in Python."""
    splits: Mapping[str, Sequence[str]]
    """Patterns of the files of each split."""
    labels: Sequence[str]
    numbers: Sequence[str]
    """Expressions in Python of the numbers."""
    categories: Sequence[str]
    """The same of the categories."""
    num_rows: int
    """Number of training rows."""
    rates: Mapping[str, float]
    """Positive rate of each label in the training rows."""
    weight: str = ""
    """Column of the rows' weights, if any."""
    group: str = ""
    """Column within whose groups metrics are also taken, if any."""
    recipe: Recipe | None = None
    """None: DeepFM, or of several labels SharedBottom, as by the rules of thumb."""
    epochs: int | None = None
    """Epochs of a workflow without a validation split; None: by the rule of thumb."""
    notes: Sequence[str] = ()
    """Lines of a comment."""

    @property
    def default_kind(self) -> str:
        return "SharedBottom" if len(self.labels) > 1 else "DeepFM"


def workflow_text(draft: Draft) -> str:
    """Text of a Python file that `pipeline run` can train."""
    batch, again = batch_size_of(draft.num_rows), draft.num_rows < LARGE_ROWS
    small = draft.num_rows < SMALL_ROWS
    stops = again and bool(draft.splits.get("validation"))
    # Without a validation split nothing says when to stop.
    epochs = MAX_EPOCHS if stops else draft.epochs or (3 if again else 1)
    schedule = f"batch_size={batch}, epochs={epochs}"
    if stops:
        # The rate stays: the logloss of a small validation split is noisy, and one worse epoch is no plateau.
        plateau = f'Plateau(metric="logloss", min_gain={MIN_GAIN}, stop_after=3)'
        schedule = f"\n        {schedule},\n        plateau={plateau},\n    "
    several = len(draft.labels) > 1
    recipe = draft.recipe or Recipe(draft.default_kind, None)
    linear = recipe.kind == "LR"
    lr, l2 = (SMALL_LR if small and not linear else LR), f"{L2_OF_EXAMPLE / batch:.1g}"
    if recipe.l2 is not None:
        l2 = f'{recipe.l2 / draft.num_rows:.2g}, semantics="dense"'
    args = f'"hidden": {"(64, 32)" if small else "(400, 400)"}, "dropout": {DROPOUT}'
    args = f'"num_labels": {len(draft.labels)}, {args}' if several else args
    model = f"embedding_dim={SMALL_DIM if small else DIM}, "
    model += f"init_std={SMALL_STD}, " if again else ""
    return TEXT.format(
        kind=recipe.kind,
        model="embedding_dim=0" if linear else f"{model}args={{{args}}}",
        notes="".join(f"# {line}\n" for line in draft.notes),
        what=draft.what,
        plateau_import=", Plateau" if stops else "",
        number_import="Number, " if draft.numbers else "",
        metrics_import="Metrics, " if draft.group else "",
        metrics=f"    metrics=Metrics(group={quoted(draft.group)}),\n" if draft.group else "",
        weight=f"        weight={quoted(draft.weight)},\n" if draft.weight else "",
        name=quoted(draft.name),
        root=draft.root,
        splits="\n".join(
            f"        {split}=({', '.join(map(quoted, draft.splits[split]))},),"
            for split in SPLITS
            if draft.splits.get(split)
        ),
        labels=", ".join(map(quoted, draft.labels)) + ("" if several else ","),
        numbers=f"        numbers=(\n{_lines(draft.numbers)}        ),\n" if draft.numbers else "",
        categories=_lines(draft.categories).rstrip("\n"),
        rows=f"lr={lr}, l2={l2}" if again or recipe.l2 is not None else "lr=1e-3",
        bias=_bias(draft.rates),
        schedule=schedule,
    )


def _bias(rates: Mapping[str, float]) -> str:
    """Line of the initial bias: the logit of each label's positive rate; empty if a label has one value alone."""
    if not rates or not all(0 < rate < 1 for rate in rates.values()):
        return ""
    biases = {label: f"{math.log(rate / (1 - rate)):.2f}" for label, rate in rates.items()}
    several = ", ".join(f"{quoted(label)}: {bias}" for label, bias in biases.items())
    value = f"{{{several}}}" if len(biases) > 1 else next(iter(biases.values()))
    shares = ", ".join(f"{rate:.2%}" for rate in rates.values())
    why = f"# Training begins at the positive rate, {shares}, instead of at 50 %."
    return f"        {why}\n        initial_bias={value},\n"


def batch_size_of(num_rows: int) -> int:
    """Batch size for so many training rows: about STEPS_PER_EPOCH steps in an epoch, within MIN_BATCH and MAX_BATCH."""
    power_of_two = 1 << max(0, num_rows // STEPS_PER_EPOCH - 1).bit_length()
    return min(MAX_BATCH, max(MIN_BATCH, power_of_two))


def number_setting(name: str, minimum: float, maximum: float, whole: bool) -> str:
    """Expression of a number column: as it is if it is small, else its logarithm. Whole numbers that may be negative
    are shifted by their minimum first, and null becomes the minimum."""
    if minimum >= 0:
        return f"Number(name={quoted(name)}, log1p=True)" if maximum > 1 else f"Number(name={quoted(name)})"
    if whole:
        return f"Number(name={quoted(name)}, fill={float(minimum)}, shift={float(-minimum)}, log1p=True)"
    return f"Number(name={quoted(name)})"


def workflow_name(stem: str) -> str:
    """Name of a workflow, and of its run's folder, from that of a file or folder."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", stem).lstrip("._-") or "workflow"


def draft_of(summary: Mapping[str, Any], name: str, root: str) -> Draft:
    """Draft of the workflow of a prepared data set. `summary`: as in _prepared.json; `root`: expression of the data's
    folder."""
    columns, splits = summary["columns"], summary["splits"]
    names = {role: [n for n, c in columns.items() if c["role"] == role] for role in ("label", "number", "category")}
    rates = splits["train"]["positive_rate"]
    rate = ", ".join(f"{rate:.4f}" for rate in rates.values())
    rows = sum(split["rows"] for split in splits.values())
    return Draft(
        name=name,
        what=f"{rows:,} rows that pipeline.prepare made: positive rate {rate}",
        root=root,
        splits={split: (split,) for split in SPLITS if splits[split]["rows"]},
        labels=names["label"],
        numbers=[_number(name, columns[name]) for name in names["number"]],
        categories=[_category(name, columns[name], names["category"]) for name in names["category"]],
        num_rows=splits["train"]["rows"],
        rates=rates,
    )


def _number(name: str, column: Mapping[str, Any]) -> str:
    return number_setting(name, column.get("least", 0), column.get("greatest", 2), column["type"].startswith("int"))


def _category(name: str, column: Mapping[str, Any], known: Sequence[str]) -> str:
    """Expression of a category. A history shares the embeddings of the column that it lists, if this is a category."""
    if not (listed := column.get("history")):
        return f"Category(name={quoted(name)})"
    table = f"table={quoted(listed)}, " if listed in known else ""
    return f'Category(name={quoted(name)}, {table}pooling="mean")'


def _lines(items: Sequence[str]) -> str:
    return "".join(f"            {item},\n" for item in items)


def quoted(text: str) -> str:
    """The text as a literal in Python."""
    return visible(json.dumps(text, ensure_ascii=False))
