"""Where tests write: into memory, where there is room. A run of a small workflow waits three times as long for a disk,
which has to keep every commit, as it computes."""

import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
NEEDED = 4 << 30
"""Bytes that must be free there: ten times what all tests together leave."""
DISK = "TESTS_DISK"
"""Variable that names the folder of temporary files before this, which is on a disk, for all processes of the tests."""


def use_memory() -> None:
    """Have this process, and those that it starts, put temporary files into memory."""
    if os.environ.setdefault(DISK, tempfile.gettempdir()) != tempfile.gettempdir() or not MEMORY.is_dir():
        return
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= NEEDED:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)
