"""The files of a source of data: a file, a folder at all levels, or a pattern."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of data."""

    place: str
    """Absolute local path, or URI (see `stores`)."""
    partitions: tuple[tuple[str, str | None], ...] = ()
    """Columns that the folders of its path name ("day=2026-11-24/site=3"), decoded; None for a null. Every row of the
    file has these values."""

    def __str__(self) -> str:
        return self.place
