"""A run's directory: where it is, how anything gets into it, how fast its disk reads."""

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
    """As far as it is known."""

    @property
    def measured(self) -> DiskSpeed:
        """The speed, where it was measured."""
        assert self.speed
        return self.speed
