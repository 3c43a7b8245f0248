"""A real S3 server on loopback: `rclone serve s3` on a folder, with a bucket for each subfolder."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

KEY, SECRET = "AKIDOFTHETESTS", "planted-secret-7f3c91"
CACHE_SECONDS = 0.05
"""Time until the server sees what a test has written to the folder."""
RCLONE = Path(sys.executable).parent / "rclone"


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


@contextmanager
def serving_s3():
    """Yield the folder of bucket `b`, and the port of its server, which requires the keys of this module. The folder is
    in memory: the server makes each object durable, which takes seconds on a busy disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        (Path(folder) / "b").mkdir()
        with _serving(folder) as port:
            yield Path(folder) / "b", port


@contextmanager
def _serving(folder):
    port = free_port()
    server = subprocess.Popen(
        [RCLONE, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}", "--config", os.devnull,
         "--dir-cache-time", f"{CACHE_SECONDS}s", str(folder)],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for _ in range(500):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.02)
        yield port
    finally:
        server.terminate()
        server.wait()


def environment(port):
    """Environment variables with which a command uses the server at this port, directly or through a proxy."""
    return {
        "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
