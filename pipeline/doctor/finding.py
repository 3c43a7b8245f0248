"""Finding: one thing that the doctor says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["fault", "remark"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong (a fault), or worth a look (a remark)."""

    kind: str
    """One of KINDS of `diagnose.py`, which is also the name of the file that finds it."""
    level: Level
    columns: tuple[str, ...]
    """Columns concerned; empty if it is not about columns."""
    text: str
    """One to three lines: what, where, how much, and what to do."""
