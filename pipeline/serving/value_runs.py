"""External sort of a table's values: sorted files (runs) on disk, from which ranges of keys are read.

The sort is by key. Keys are hashes: comparisons are fast whatever the values are, and keys are evenly distributed, so
equal ranges of keys have about the same number of values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.prepare.counts import Counts, summed
from pipeline.records import RESERVED

RUN_BYTES = 64 << 20
"""Size of buffered values, in bytes, that triggers a sort. If the merged result exceeds half of it, it becomes a run;
otherwise it stays in the buffer. A small table therefore has one run, however often each value occurs."""


def write_runs(folder: Path, parts: Iterable[Counts]) -> list[Path]:
    """Write values to runs in an existing folder. Returns the paths of the runs. Takes memory for a part and a few
    times RUN_BYTES. Each value occurs once per run, but may occur in several runs."""
    paths: list[Path] = []
    held: list[Counts] = []

    def flush() -> None:
        paths.append(folder / f"{len(paths):06}.run")
        _write(paths[-1], summed(held))
        held.clear()

    for part in parts:
        held.append(part)
        if sum(one.nbytes for one in held) >= RUN_BYTES:
            held[:] = [summed(held)]
            if held[0].nbytes > RUN_BYTES // 2:
                flush()
    if held:
        flush()
    return paths


def _write(path: Path, run: Counts) -> None:
    batch = pa.record_batch([run.values_U, pa.array(run.keys_U), pa.array(run.counts_U)], ["value", "key", "count"])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


def values_between(paths: Sequence[Path], begin: int, end: int) -> Counts:
    """Distinct values of one or more runs, with keys from `begin` to `end`, exclusive."""
    return summed([_slice_of(path, begin, end) for path in paths])


def _slice_of(path: Path, begin: int, end: int) -> Counts:
    with pa.memory_map(str(path)) as file:
        values, keys, counts = pa.ipc.open_file(file).get_batch(0).columns
        run = Counts(values, keys.to_numpy(), counts.to_numpy())
        first = int(np.searchsorted(run.keys_U, np.uint64(begin)))
        last = run.size if end > int(RESERVED) else int(np.searchsorted(run.keys_U, np.uint64(end)))
        return run.slice(first, last)
