"""Values of a table on disk, in sorted files (runs), from which those of a range of keys are read.

It sorts by keys, which are hashes: they compare fast whatever the values are, and are spread evenly, so that equal
ranges of keys have about as many values each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.prepare.counts import Counts, summed
from pipeline.records import RESERVED

RUN_BYTES = 64 << 20
"""Bytes of unsorted values at which they are sorted. What is then more than half of it becomes a run; the rest waits
for more, so the values of a table that is small are in one run, however often each occurs."""


def write_runs(folder: Path, parts: Iterable[Counts]) -> list[Path]:
    """Write values to runs in this folder, which must exist. Returns their paths. Memory: a few times RUN_BYTES, and a
    part. A run has each value once; several runs may have the same values."""
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
    """Values of these runs, at least one, with keys from `begin` to before `end`; each is there once."""
    return summed([_slice_of(path, begin, end) for path in paths])


def _slice_of(path: Path, begin: int, end: int) -> Counts:
    with pa.memory_map(str(path)) as file:
        values, keys, counts = pa.ipc.open_file(file).get_batch(0).columns
        run = Counts(values, keys.to_numpy(), counts.to_numpy())
        first = int(np.searchsorted(run.keys_U, np.uint64(begin)))
        last = run.size if end > int(RESERVED) else int(np.searchsorted(run.keys_U, np.uint64(end)))
        return run.slice(first, last)
