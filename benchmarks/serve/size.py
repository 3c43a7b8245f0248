"""Memory of a server by number of keys, and the time to open its table."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np

from benchmarks.common import in_own_process
from benchmarks.serve.load import body_of, closed_loop
from benchmarks.serve.requests import CANDIDATES
from benchmarks.serve.servables import NUM_FIELDS, check_space, write_servable
from benchmarks.serve.server import Server
from pipeline.serving.servable import OpenedServable

MIB = 1 << 20
ALLOWED_MIB = 64
BYTES_A_KEY = 0.1
OPENING_SECONDS, SECONDS_A_PAGE = 2.0, 20e-9


def size(small: OpenedServable, folder: Path, sizes: tuple[int, ...], memory_bytes: int) -> dict[str, float]:
    """Write a servable of each size, serve it until its cache is full, and print memory and time."""
    with Server(small.folder, memory_bytes) as server:
        interpreter = server.memory("RssAnon")
    print(f"\nsize: --memory {memory_bytes / MIB:,.0f} MiB; RssAnon with a tiny servable {interpreter / MIB:,.0f} MiB")
    columns = ("keys", "pages", "disk / rows", "MiB opened", "MiB filled", "MiB limit", "s to open", "s limit")
    print(" ".join(f"{column:>12}" for column in columns))
    ratios: dict[str, float] = {}
    for wanted in sizes:
        num_keys = check_space(folder, wanted, small.page_format)
        begun = time.perf_counter()
        table = write_servable(small, folder / f"keys-{num_keys}", num_keys, keep_keys=False)
        written, pages = time.perf_counter() - begun, len(table.fences_N)
        seconds = in_own_process("serve.opening", table.folder, memory_bytes)
        with Server(table.folder, memory_bytes) as server:
            opened = server.memory("RssAnon")
            fill(server, pages, memory_bytes // small.page_format.page_bytes)
            filled = server.memory("RssAnon")
        limit = interpreter + memory_bytes + ALLOWED_MIB * MIB + BYTES_A_KEY * table.num_keys
        of_time = OPENING_SECONDS + SECONDS_A_PAGE * pages
        disk = pages * small.page_format.page_bytes / (table.num_keys * small.page_format.row_bytes)
        memory = " ".join(f"{num_bytes / MIB:12,.0f}" for num_bytes in (opened, filled, limit))
        print(f"{table.num_keys:12,} {pages:12,} {disk:12.4f} {memory} {seconds:12.2f} {of_time:12.2f}", flush=True)
        print(
            f"   written in {written:,.0f} s; of the limits: memory {filled / limit:.2f}, time {seconds / of_time:.2f}"
        )
        name = f"{wanted // 10**6}m" if wanted >= 10**6 else f"{wanted // 1000}k"
        ratios |= {f"memory_vs_limit_{name}": filled / limit, f"opening_vs_limit_{name}": seconds / of_time}
        ratios[f"disk_vs_rows_{name}"] = disk
        shutil.rmtree(table.folder)
    return ratios


def fill(server: Server, num_pages: int, num_slots: int) -> None:
    """Send random keys until the cache is full: any key costs a read of a page, even if it has no row."""
    rng = np.random.default_rng(0)
    num_keys = 2 * min(num_pages, num_slots)
    for _ in range(0, num_keys, 50 * NUM_FIELDS * CANDIDATES):
        bodies = [body_of(rng.integers(-(2**63), 2**63 - 1, (NUM_FIELDS, CANDIDATES))) for _ in range(50)]
        closed_loop(server.address, bodies, len(bodies), 4)
