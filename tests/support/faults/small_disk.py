"""A preparation in a separate process that writes to a small disk, mounted in a private namespace."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from support.data.preparations import ROOT, command


def need_namespaces():
    tried = subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True)
    if tried.returncode:
        pytest.skip(f"needs private mount namespaces: {tried.stderr.decode()}")


class Disk:
    """A disk mounted in a namespace. Other processes reach it through the process that keeps the namespace alive."""

    def __init__(self, folder, size):
        folder.mkdir()
        self.folder = folder
        script = f'mount -t tmpfs -o size={size} none "$0" && echo mounted && cat > /dev/null'
        self._holder = subprocess.Popen(
            ["unshare", "-rm", "sh", "-c", script, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout.readline() == "mounted\n"
        self.seen = Path(f"/proc/{self._holder.pid}/root{folder}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._holder.communicate()

    def run(self, *argv, **options):
        enter = ["nsenter", "--user", "--mount", "--preserve-credentials", "-t", str(self._holder.pid), "--wd=/"]
        return subprocess.Popen([*enter, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)

    def prepare(self, format, source, *more):
        # The lock is next to the disk: a disk with a file open for writing cannot be remounted read-only.
        argv = command(format, source, self.folder, *more)
        return self.run(sys.executable, "-m", "pipeline", "prepare", *argv, env=os.environ | {"PYTHONPATH": str(ROOT)})

    def remount(self, how):
        """Remount the disk "ro" or "rw". Retries, since "ro" fails while a file is open for writing."""
        script = 'until mount -o "remount,$0" "$1" 2> /dev/null; do :; done'
        process = self.run("timeout", "20", "sh", "-c", script, how, str(self.folder))
        _, err = process.communicate()
        assert process.returncode == 0, err

    def fill(self):
        with open(self.seen / "filler", "wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                with suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def free(self):
        (self.seen / "filler").unlink()
