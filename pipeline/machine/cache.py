"""Folder for files that can be regenerated."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

CACHE_FOLDER = "PIPELINE_CACHE"
"""Environment variable that names the folder."""


def cache_folder() -> Path:
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    within = os.path.expanduser(os.environ.get(CACHE_FOLDER) or caches / "pipeline")
    # Without a home folder, use the folder for temporary files.
    return Path(tempfile.gettempdir() if within.startswith("~") else within).absolute()
