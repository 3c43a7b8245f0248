"""Location of temporary files of tests: in memory if there is room. A run of a small workflow on disk, which must make
every commit durable, spends three times as long waiting as computing."""

import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
NEEDED = 4 << 30
"""Minimum free bytes in MEMORY: ten times the total size of the files that all tests leave."""
DISK = "TESTS_DISK"
"""Environment variable that passes the original temporary folder, which is on disk, to all test processes."""


def use_memory() -> None:
    """Make this process and its children put temporary files in memory."""
    if os.environ.setdefault(DISK, tempfile.gettempdir()) != tempfile.gettempdir() or not MEMORY.is_dir():
        return
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= NEEDED:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)
