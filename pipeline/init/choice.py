"""Role that is chosen for a column of data files."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.init.look import Column
from pipeline.prepare.schema import Role


@dataclass(frozen=True, slots=True)
class Choice:
    """Role of a column, and why."""

    column: Column
    role: Role
    why: str
    warning: str = ""
    either: bool = False
    """True for whole numbers that may be names of things as well as amounts, by all that is seen."""
    values: tuple[str, str] | None = None
    """Values of a label that mean 0 and 1, if it has others."""
