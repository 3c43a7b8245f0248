"""Roles of columns that the user gives, or that names and values show: above all, the label."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.init.columns import Column, Look, described_column, words_of
from pipeline.prepare.draft import quoted
from pipeline.prepare.schema import Role

LABEL_NAMES = (
    "label", "click", "clicked", "is_click", "is_clicked", "target", "y", "conversion", "converted", "is_conversion",
    "purchase", "purchased", "like", "outcome", "response",
)  # fmt: skip
"""Names that identify a column of 0 and 1 as the label; the first one present is taken."""
PAIRS = (("no", "yes"), ("n", "y"), ("false", "true"), ("f", "t"), ("-1", "1"))
"""Pairs of label values, in lower case, that mean 0 and 1."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Role of a column, and the reason."""

    column: Column
    role: Role
    why: str
    warning: str = ""
    after_label: bool = False
    """True if the column's name suggests that it is known only after the label; its warning is then shown first."""
    either: bool = False
    """True for whole numbers that may be ids or amounts, judging by name and values."""
    given: str = ""
    """Role given by the user, if any. For "weight", `role` is "number"; for "group", it is "category"."""
    values: tuple[str, str] | None = None
    """Values of a label that mean 0 and 1, unless they are 0 and 1."""


HOLDS: dict[str, tuple[Role, tuple[str, ...]]] = {
    "number": ("number", ("integers", "numbers")),
    "category": ("category", ("integers", "text", "whole numbers")),
    "list": ("category", ("lists of integers", "lists of text")),
    "time": ("time", ("integers", "text", "time")),
    "group": ("category", ("integers", "text", "whole numbers")),
    "weight": ("number", ("integers", "numbers")),
    "nothing": ("skip", ()),
}
"""Roles that a user may give, except label -> role in `prepare`, and the allowed kinds of values; none: any."""


def split_role(text: str, look: Look) -> tuple[str, str]:
    """Parse COLUMN=ROLE into column and role. Raises ValueError if there is no such column or role."""
    name, _, role = text.rpartition("=")
    names = [column.name for column in look.columns]
    if name not in names or role not in ("label", *HOLDS):
        what, there = ("role", ["label", *HOLDS]) if name in names else ("column", names)
        raise ValueError(f"--as {text}: there is no such {what}; there are {', '.join(there)}; write COLUMN=ROLE")
    return name, role


def given_role(column: Column, role: str, is_whole: bool) -> Choice:
    """Choice of the user. `is_whole`: True for floats without fractions. Raises ValueError if the values do not fit."""
    chosen, kinds = HOLDS[role]
    if kinds and column.kind is None and column.note:
        raise ValueError(f"--as {column.name}={role}: {column.note}")
    kind = "whole numbers" if is_whole and column.kind == "numbers" and "whole numbers" in kinds else str(column.kind)
    if (kinds and kind not in kinds) if not column.types else chosen not in (*column.types, "skip", "category"):
        raise ValueError(
            f"--as {column.name}={role}: this column has type {column.type}, and a {role} holds {' or '.join(kinds)}; "
            "give it another role, or convert it in the files"
        )
    return Choice(column, chosen, "named by --as", given=role)


def as_option(column: Column, role: str) -> str:
    """Command-line option that assigns a role to a column."""
    return f"--as {shlex.quote(f'{column.name}={role}')}"


def label_options(labels: Sequence[Choice]) -> str:
    """Command-line options that name these columns as labels."""
    texts = [f"{one.column.name}={one.values[1]}" if one.values else one.column.name for one in labels]
    return " ".join(f"--label {shlex.quote(text)}" for text in texts)


def of_role(choices: Sequence[Choice], role: str) -> list[Choice]:
    """Choices with this role in `prepare`, except the weight."""
    return [choice for choice in choices if choice.role == role and choice.given != "weight"]


def given_to(choices: Sequence[Choice], role: str) -> str:
    """Name of the column to which the user gave this role; "" if none. Raises ValueError if there are several."""
    names = [choice.column.name for choice in choices if choice.given == role]
    if len(names) > 1:
        raise ValueError(f"--as: {' and '.join(names)} are given as {role}; a workflow has one {role}")
    return names[0] if names else ""


def named_label(label: str, look: Look) -> Choice:
    columns = {column.name: column for column in look.columns}
    name, _, positive = (label, "", "") if label in columns else label.partition("=")
    if name not in columns:
        raise ValueError(f"--label {name}: there is no such column; there are {', '.join(columns)}")
    column = columns[name]
    values = _values_of(column, look, positive)
    if not values and not is_binary(column):
        nulls = int(without_value(look, name).sum())
        way = "add a column of 0 and 1 to the files"
        if nulls:
            share = math.ceil(1000 * nulls / column.num_rows) / 1000
            way = (
                "write 0 or 1 instead of null; or leave these rows out of a copy, by --skip-bad with a share such as "
                f"{min(1, 2 * share):g}, since it counts for each part of the files"
            )
        elif column.num_different == 2 and column.kind in ("integers", "numbers", "text"):
            way = f"name the value that is to be 1: --label {shlex.quote(f'{name}={column.examples[1]}')}"
        elif column.kind in ("integers", "numbers") and column.num_different > 2:
            way += (
                f", such as whether {name} is above some limit, and name that; a model of the number itself is not "
                f"drafted: change a workflow to data.labels=({quoted(name)},) and data.tasks=(Task(label="
                f'{quoted(name)}, loss="squared"),), as "Labels that are any number" in docs/models.md says'
            )
        there = f"{column.num_different:,} different values such as {', '.join(str(x)[:40] for x in column.examples)}"
        there += f" and {nulls:,} nulls" if nulls else ""
        raise ValueError(f"--label {name}: a label holds only 0 and 1, and this column has {there}; {way}")
    return _label(column, "named by --label", values)


def found_label(look: Look, others: Container[str] = ()) -> Choice:
    """Find the label by its name, or as the only column with two suitable values. `others`: columns to ignore. Raises
    ValueError if there is no such column, or several are possible."""
    columns = [column for column in look.columns if column.name not in others]
    binary = [column for column in columns if is_binary(column)]
    paired = [column for column in columns if column not in binary and _values_of(column, look)]
    by_name = {words_of(column.name): column for column in reversed(binary + paired)}
    if named := [by_name[name] for name in LABEL_NAMES if name in by_name]:
        return _label(named[0], "0 and 1, and its name says so", _values_of(named[0], look))
    if len(found := binary or paired) == 1:
        return _label(found[0], "the only column of 0 and 1", _values_of(found[0], look))
    if not found and (unfit := [column for column in columns if words_of(column.name) in LABEL_NAMES]):
        # The error for this column says what is wrong with it.
        return named_label(unfit[0].name, look)
    names = ", ".join(column.name for column in binary + paired)
    there = f"columns of 0 and 1 are {names}" if names else "no column holds only 0 and 1"
    raise ValueError(f"which column is the label? {there}; name it with --label COLUMN")


def _label(column: Column, why: str, values: tuple[str, str] | None) -> Choice:
    if values:
        why = f"{why.replace('0 and 1', ' and '.join(values))}; {values[0]} becomes 0 and {values[1]} 1"
    return Choice(column, "label", why, values=values)


def _values_of(column: Column, look: Look, positive: str = "") -> tuple[str, str] | None:
    """Values of a label that become 0 and 1, as in the files but in lower case; None if they are 0 and 1, or not a
    known pair. `positive`: value that becomes 1. Raises ValueError if there is no such value."""
    if column.num_nulls or column.num_different != 2 or column.kind not in ("integers", "numbers", "text"):
        return None
    pair = [str(value).strip().lower() for value in column.examples]
    if positive:
        if positive.lower() not in pair or pair[0] == pair[1]:
            raise ValueError(f"--label {column.name}={positive}: the values of this column are {' and '.join(pair)}")
        return pair[pair[0] == positive.lower()], positive.lower()
    if is_binary(column) and (column.whole or look.delimiter is None):
        return None
    known = (*PAIRS, ("-1", "+1"), ("0", "1"), ("0.0", "1.0"), ("-1.0", "1.0"))
    return next((one for one in known if sorted(one) == sorted(pair)), None)


def without_value(look: Look, name: str) -> NDArray[np.bool_]:
    """[N] True for rows of the sample with a null or NaN value."""
    return np.asarray(pc.is_null(look.sample.column(name), nan_is_null=True))


def labelled_rows(look: Look, labels: Collection[str]) -> Look:
    """Return the sample without the rows that lack a label, as `--skip-bad` omits them. `labels`: names of the labels;
    if empty, the first column with a label name."""
    by_name = {words_of(column.name): column.name for column in reversed(look.columns)}
    first = [by_name[name] for name in LABEL_NAMES if name in by_name][:1]
    names = [column.name for column in look.columns if column.name in (labels or first)]
    kept_N = ~np.any([without_value(look, name) for name in names], axis=0)
    if not names or kept_N.all():
        return look
    sample = look.sample.filter(pa.array(kept_N))
    columns = list(look.columns)
    for number, column in enumerate(columns):
        if column.name in names:
            found = described_column(column.name, sample.column(column.name))
            columns[number] = replace(column, num_nulls=0, num_different=found.num_different, examples=found.examples)
    return replace(look, sample=sample, file_of=look.file_of[kept_N], columns=tuple(columns))


def label_of_rows(look: Look, choice: Choice) -> NDArray[np.float64]:
    """[N] label of each row of the sample, 0 or 1."""
    values = look.sample.column(choice.column.name)
    if choice.values:
        return np.array([str(value).strip().lower() == choice.values[1] for value in values.to_pylist()], np.float64)
    return np.asarray(values.cast(pa.float64(), safe=False))


def is_binary(column: Column) -> bool:
    """True if a column contains both 0 and 1, and nothing else."""
    return (
        column.kind in ("integers", "numbers") and column.num_nulls == 0 and column.num_different == 2
        and (float(column.minimum), float(column.maximum)) == (0.0, 1.0)
    )  # fmt: skip
