"""Memory of a server by number of keys, and the time to open its table.

`python -m benchmarks.serve.size FOLDER MEMORY_BYTES` opens a servable in a separate process, as the server does it, and
prints the seconds.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.common import in_own_process
from benchmarks.serve.load import body_of, closed_loop
from benchmarks.serve.requests import CANDIDATES
from benchmarks.serve.servables import NUM_FIELDS, check_space, write_servable
from benchmarks.serve.server import Server
from pipeline.serving.http.request import probe
from pipeline.serving.servable import OpenedServable
from pipeline.serving.served_model import open_served

MIB = 1 << 20


def size(small: OpenedServable, folder: Path, sizes: tuple[int, ...], memory_bytes: int) -> dict[str, float]:
    """Write a servable of each size, serve it until its cache is full, and print memory and time. Returns those of the
    last."""
    filled, seconds = 0, 0.0
    for wanted in sizes:
        num_keys = check_space(folder, wanted, small.page_format)
        table = write_servable(small, folder / f"keys-{num_keys}", num_keys, keep_keys=False)
        seconds = in_own_process("serve.size", table.folder, memory_bytes)
        with Server(table.folder, memory_bytes) as server:
            fill(server, len(table.fences_N), memory_bytes // small.page_format.page_bytes)
            filled = server.memory("RssAnon")
        print(
            f"{table.num_keys:,} keys, --memory {memory_bytes / MIB:,.0f} MiB: {filled / MIB:,.0f} MiB when the cache "
            f"is full, opened in {seconds:.2f} s",
            flush=True,
        )
        shutil.rmtree(table.folder)
    return {"memory_mib": filled / MIB, "opened_s": seconds}


def fill(server: Server, num_pages: int, num_slots: int) -> None:
    """Send random keys until the cache is full: any key costs a read of a page, even if it has no row."""
    rng = np.random.default_rng(0)
    num_keys = 2 * min(num_pages, num_slots)
    for _ in range(0, num_keys, 50 * NUM_FIELDS * CANDIDATES):
        bodies = [body_of(rng.integers(-(2**63), 2**63 - 1, (NUM_FIELDS, CANDIDATES))) for _ in range(50)]
        closed_loop(server.address, bodies, len(bodies), 4)


def main() -> None:
    folder, memory_bytes = Path(sys.argv[1]), int(sys.argv[2])
    begun = time.perf_counter()
    served = open_served(folder, memory_bytes, None, None)
    probe(served)
    print(time.perf_counter() - begun)
    served.close()


if __name__ == "__main__":
    main()
