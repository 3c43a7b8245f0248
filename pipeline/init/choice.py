"""Role chosen for a column of the data files."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.init.columns import Column, Look
from pipeline.prepare.schema import Role


@dataclass(frozen=True, slots=True)
class Choice:
    """Role of a column, and the reason."""

    column: Column
    role: Role
    why: str
    warning: str = ""
    after_label: bool = False
    """True if the column's name suggests that it is known only after the label; its warning is then shown first."""
    is_suspect: bool = False
    """True if the column is kept though it may be known only after the label; see `warning`."""
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
