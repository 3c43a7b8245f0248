"""A sample of the rows of a commit: how often their keys were used, and how long their embeddings are.

N rows of the sample
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.commits.manifest import ChunkState, Manifest
from pipeline.commits.reading import hold
from pipeline.records import RESERVED, U32
from pipeline.storage.layout import WEIGHTS_AT, row_keys
from pipeline.storage.log import rows_file
from pipeline.storage.wide_rows import widened

MAX_CHUNKS = 64
SEED = 20231


@dataclass(frozen=True, slots=True)
class RowSample:
    """Rows of some chunks of the log, as they were written there."""

    counts_N: U32
    """How often the key was in a batch."""
    norms_N: NDArray[np.float32]
    """Euclidean norm of the embedding; of the first-order weight if the rows have no embedding."""
    num_chunks: int
    all_chunks: int
    stale: float
    """Share of these rows that a later version replaces."""
    commit: int

    @property
    def told(self) -> str:
        """How the sample was taken, in words."""
        which = (
            "all"
            if self.num_chunks == self.all_chunks
            else f"{self.num_chunks} of {self.all_chunks:,}, drawn with a seed,"
        )
        stale = f"; {100 * self.stale:.0f} % of them have a later version elsewhere" if self.stale >= 0.005 else ""
        return f"{len(self.counts_N):,} rows of {which} chunks of commit {self.commit}{stale}."


def sample_rows(run_dir: Path) -> RowSample:
    """Read a sample of at most 64 chunks of a run's newest commit, the same one each time. Training beside it goes on.
    Raises ValueError if there is no commit, OSError or Damaged if a file cannot be read."""
    with hold(run_dir, "last") as held, held.explaining():
        manifest = held.manifest
        chosen = _choose(manifest)
        parts = list(_read(run_dir / "table.zarr", manifest, chosen))
        held.check()
    counts_N = np.concatenate([counts for counts, _ in parts]) if parts else np.zeros(0, np.uint32)
    norms_N = np.concatenate([norms for _, norms in parts]) if parts else np.zeros(0, np.float32)
    # Padding counts as stale in a manifest, and is not in the sample.
    live = sum(manifest.chunk_rows - chunk.stale for chunk in chosen)
    stale = 1 - live / len(counts_N) if len(counts_N) else 0.0
    return RowSample(counts_N, norms_N, len(chosen), len(manifest.chunks), stale, manifest.number)


def _choose(manifest: Manifest) -> list[ChunkState]:
    if len(manifest.chunks) <= MAX_CHUNKS:
        return list(manifest.chunks)
    rng = np.random.default_rng(SEED)
    return [manifest.chunks[n] for n in sorted(rng.choice(len(manifest.chunks), MAX_CHUNKS, replace=False))]


def _read(table: Path, manifest: Manifest, chosen: list[ChunkState]) -> Iterator[tuple[U32, NDArray[np.float32]]]:
    """Yield counts and norms of each chunk."""
    layout = manifest.table.layout
    wide = layout.wide
    width = layout.embedding_dim or layout.num_weights
    for chunk in chosen:
        rows_RW = np.fromfile(rows_file(table, chunk.number, manifest.num_shards), np.uint32).reshape(
            -1, layout.num_words
        )
        rows_NX = widened(layout, np.ascontiguousarray(rows_RW[row_keys(rows_RW) != RESERVED]))
        weights_NC = np.ascontiguousarray(rows_NX[:, WEIGHTS_AT : WEIGHTS_AT + width]).view(np.float32)
        yield rows_NX[:, wide.last_step_at + 1].copy(), np.linalg.norm(weights_NC, axis=1)
