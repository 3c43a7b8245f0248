"""A run's directory: its path, the writer of its files, and the speed of its disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.files import Files


@dataclass(frozen=True, slots=True)
class Folder:
    path: Path
    files: Files
    speed: DiskSpeed | None = None
    """None if not measured."""

    @property
    def measured(self) -> DiskSpeed:
        """The disk's speed, which must have been measured."""
        assert self.speed
        return self.speed
