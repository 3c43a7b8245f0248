"""Rows as an evaluation of a commit reads them, but without tiers: from the log, through a key map."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np

from pipeline.commits.flush import live_at
from pipeline.commits.reading import HeldCommit
from pipeline.commits.reopen import read_commit
from pipeline.kernels.key_map import UNKNOWN
from pipeline.messages.sizes import format_size_down, format_size_up
from pipeline.records import F32, U32, U64
from pipeline.serving.caught_up import CaughtUp, Known
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.key_map import bytes_for
from pipeline.storage.layout import RowLayout
from pipeline.storage.tier import check_keys


class CommitRows:
    """Rows of a commit. The constructor builds the key map from the key column of the log."""

    def __init__(self, held: HeldCommit, speed: DiskSpeed, caught_up: CaughtUp, memory: int, direct: bool) -> None:
        """`memory`: maximum bytes of the key map. Raises ValueError, with the numbers, if the map needs more, and
        Damaged if the commit is damaged."""
        manifest = held.manifest
        if (needed := bytes_for(manifest.live_rows)) > memory:
            raise ValueError(
                f"commit {manifest.number} has {manifest.live_rows:,} keys, whose map takes {format_size_up(needed)}, "
                f'and memory is {format_size_down(memory)}; give memory="{format_size_up(needed)}", or read rows '
                "without a map: `pipeline export`, then pipeline.open_servable"
            )
        self._held, self._caught_up, self._layout = held, caught_up, RowLayout.of(manifest.row)
        with held.explaining():
            self._places, self._log = read_commit(held.run_dir, manifest, speed, direct, memory)
        self._lock = threading.Lock()

    def stored(self, keys_U: U64) -> tuple[U32, Known]:
        """Rows [U, W] of distinct keys as stored in the commit, not caught up, and whether each key has a row. A key
        without a row gets its first row."""
        places_U = self._places.map.find(keys_U)
        known_U = places_U != UNKNOWN
        rows_UW = self._caught_up.first_rows(keys_U)
        if known_U.any():
            at_N, found_NW = self._places.chunks.positions_of(places_U[known_U]), rows_UW[known_U]
            # The log's reader serves one call at a time.
            with self._held.explaining(), self._lock:
                self._held.check()
                self._log.gather(at_N, found_NW)
                check_keys(self._log, at_N, found_NW, keys_U[known_U])
                # If the chunk was deleted meanwhile, another with later rows of the same keys may have replaced it.
                self._held.check()
            rows_UW[known_U] = found_NW
        return rows_UW, known_U

    def weights(self, keys_U: U64, weights_UC: F32) -> Known:
        rows_UW, known_U = self.stored(keys_U)
        weights_UC[:] = self._caught_up.catch_up(rows_UW)
        return known_U

    def chunks(self) -> Iterator[tuple[U64, F32]]:
        """Yield the keys [N] and the weights [N, C] of all rows, a chunk of the log at a time."""
        chunk_RW: U32 = np.empty((self._log.chunk_rows, self._layout.num_words), np.uint32)
        for chunk in self._places.chunks.live().tolist():
            with self._held.explaining(), self._lock:
                self._held.check()
                at_N, keys_N = live_at(self._places, self._log, chunk)
                rows_NW = chunk_RW[: len(at_N)]
                self._log.gather(at_N, rows_NW)
                check_keys(self._log, at_N, rows_NW, keys_N)
                self._held.check()
            yield keys_N, self._caught_up.catch_up(rows_NW).copy()

    def close(self) -> None:
        """Release the commit, and close the log's files when no call reads them."""
        with self._lock:
            self._held.close()
            self._log.close()
