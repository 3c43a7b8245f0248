"""Sizes in settings and messages, such as "512 MiB"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def parse_size(value: object) -> object:
    """Convert a size such as "512 MiB" to bytes; values that are not text are returned unchanged, for pydantic."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]iB|B)\s*", value)
    if match is None:
        raise ValueError(f'expected a size such as "{_probable(value)}" (units {", ".join(UNITS)}), got {value!r}')
    return int(Decimal(match[1]) * UNITS[match[2]])


def bytes_of_memory(memory: str | int) -> int:
    """Number of bytes in a size such as "512 MiB". Raises ValueError if it is not a size."""
    num_bytes = parse_size(memory)
    if not isinstance(num_bytes, int) or isinstance(num_bytes, bool) or num_bytes <= 0:
        raise ValueError(f'memory is {memory!r}; expected a size such as "512 MiB", or a number of bytes')
    return num_bytes


def _probable(text: str) -> str:
    """Most likely meaning of a malformed size."""
    match = re.match(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)", text, re.I)
    if not match or len(match[1]) > 9 or not match[1].strip("0."):
        return "512 MiB"
    return f"{match[1]} {match[2].upper() or 'M'}iB"


def format_size_up(num_bytes: int) -> str:
    """Format a size with at least two digits, rounded up: a setting that provides at least this many bytes."""
    for unit, scale in reversed(UNITS.items()):
        # A value that rounds up to 1024 of a unit is written as 1 of the next unit.
        if num_bytes > scale - (scale >> 10):
            whole = -(-num_bytes // scale)
            tenths = -(-10 * num_bytes // scale)
            return f"{whole} {unit}" if tenths > 99 or tenths % 10 == 0 else f"{tenths // 10}.{tenths % 10} {unit}"
    return f"{num_bytes} B"


def format_size_down(num_bytes: int) -> str:
    """Format an available size: exactly if four digits suffice, else with at least two digits, rounded down."""
    if len((exact := format_size(num_bytes)).partition(" ")[0]) <= 4:
        return exact
    unit, scale = next((unit, scale) for unit, scale in reversed(UNITS.items()) if num_bytes >= scale)
    whole, tenths = num_bytes // scale, 10 * num_bytes // scale % 10
    return f"{whole} {unit}" if whole > 9 or tenths == 0 else f"{whole}.{tenths} {unit}"


def format_size(num_bytes: int) -> str:
    """Format a size in the largest unit that divides it; `parse_size` returns exactly the same number."""
    for unit, scale in reversed(UNITS.items()):
        if num_bytes and num_bytes % scale == 0:
            return f"{num_bytes // scale} {unit}"
    return f"{num_bytes} B"


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """A share of the memory that is free when a run starts; written "80 %"."""

    of_free: float

    def of(self, free_bytes: int) -> int:
        """Share of `free_bytes`, in bytes."""
        return int(self.of_free * free_bytes)

    def __str__(self) -> str:
        return f"{100 * self.of_free:.12g} %"


def parse_size_or_share(value: object) -> object:
    """Convert a size as `parse_size` does; "80 %", or a float above 0 and up to 1, becomes a `MemoryShare`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", value) if isinstance(value, str) else None
    if not match and not isinstance(value, float):
        return parse_size(value)
    share = float(Decimal(match[1]) / 100) if match else value
    if not (isinstance(share, float) and 0 < share <= 1):
        raise ValueError(f'expected a share of memory above 0 and up to "100 %", got {value!r}')
    return MemoryShare(share)


def format_size_or_share(value: int | MemoryShare) -> str:
    return str(value) if isinstance(value, MemoryShare) else format_size(value)
