"""Role that is chosen for a column of data files."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.init.columns import Column, Look
from pipeline.prepare.schema import Role


@dataclass(frozen=True, slots=True)
class Choice:
    """Role of a column, and why."""

    column: Column
    role: Role
    why: str
    warning: str = ""
    after_label: bool = False
    """True if the warning is of a column that by its name is known only after the label; such warnings come first."""
    is_suspect: bool = False
    """True if it alone predicts the label, so that it may be known only after the label; `warning` says so."""
    either: bool = False
    """True for whole numbers that may be ids as well as amounts, as far as names and values show."""
    given: str = ""
    """Role that the user gives, if any; of a "weight" `role` is "number", of a "group" it is "category"."""
    values: tuple[str, str] | None = None
    """Values of a label that mean 0 and 1, if it has others."""


HOLDS: dict[str, tuple[Role, tuple[str, ...]]] = {
    "number": ("number", ("integers", "numbers")),
    "category": ("category", ("integers", "text", "whole numbers")),
    "list": ("category", ("lists of integers", "lists of text")),
    "time": ("time", ("integers", "text", "time")),
    "group": ("category", ("integers", "text", "whole numbers")),
    "weight": ("number", ("integers", "numbers")),
    "nothing": ("skip", ()),
}
"""Roles that a user gives but for labels -> role in `prepare`, and the kinds of values that it has; none: any."""


def split_role(text: str, look: Look) -> tuple[str, str]:
    """Column and role of COLUMN=ROLE. Raises ValueError if there is no such column or role."""
    name, _, role = text.rpartition("=")
    names = [column.name for column in look.columns]
    if name not in names or role not in ("label", *HOLDS):
        what, there = ("role", ["label", *HOLDS]) if name in names else ("column", names)
        raise ValueError(f"--as {text}: there is no such {what}; there are {', '.join(there)}; write COLUMN=ROLE")
    return name, role


def given_role(column: Column, role: str, is_whole: bool) -> Choice:
    """Choice of a user. `is_whole`: true of floats without fractions. Raises ValueError if the values do not fit."""
    chosen, kinds = HOLDS[role]
    kind = "whole numbers" if is_whole and column.kind == "numbers" and "whole numbers" in kinds else str(column.kind)
    if (kinds and kind not in kinds) if not column.types else chosen not in (*column.types, "skip", "category"):
        raise ValueError(
            f"--as {column.name}={role}: this column has type {column.type}, and a {role} holds {' or '.join(kinds)}; "
            "give it another role, or convert it in the files"
        )
    return Choice(column, chosen, "named by --as", given=role)


def as_option(column: Column, role: str) -> str:
    """Option that gives a column a role."""
    return f"--as {shlex.quote(f'{column.name}={role}')}"


def of_role(choices: Sequence[Choice], role: str) -> list[Choice]:
    """Choices of a role in `prepare`, but for the weight."""
    return [choice for choice in choices if choice.role == role and choice.given != "weight"]


def given_to(choices: Sequence[Choice], role: str) -> str:
    """Name of the column that the user gave this role; "" if none has it. Raises ValueError if several have it."""
    names = [choice.column.name for choice in choices if choice.given == role]
    if len(names) > 1:
        raise ValueError(f"--as: {' and '.join(names)} are given as {role}; a workflow has one {role}")
    return names[0] if names else ""
