"""Finding: one result of the doctor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Level = Literal["fault", "remark"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong (a fault) or worth checking (a remark)."""

    kind: str
    """Name of the module in this folder that finds it."""
    level: Level
    columns: tuple[str, ...]
    """Columns concerned; empty if it is not about columns."""
    text: str
    """One to three lines: what, where, how much, and what to do."""


def listed(items: Sequence[str], others: str = "others") -> str:
    """List the first ten items, and the number of others."""
    return ", ".join(items[:10]) + (f" and {len(items) - 10} {others}" if len(items) > 10 else "")
