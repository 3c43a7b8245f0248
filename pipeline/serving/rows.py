"""Rows of keys as an evaluation of a commit reads them, without tiers: from the log, through a key map."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.commits.manifest import Manifest
from pipeline.commits.reading import HeldCommit
from pipeline.commits.reopen import read_log
from pipeline.device.device import RAM
from pipeline.kernels.init_rows import init_rows
from pipeline.kernels.key_map import UNKNOWN
from pipeline.machine.threads import Whole
from pipeline.optim.row_optimizer import RowOptimizer
from pipeline.optimizer import Optimizer
from pipeline.records import F32, U32, U64, Array
from pipeline.serving.features import Features
from pipeline.storage.chunks import Chunks
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.files import Files
from pipeline.storage.key_map import bytes_for, row_of
from pipeline.storage.layout import WEIGHTS_AT, RowLayout
from pipeline.storage.places import Caps, Places
from pipeline.storage.reader import allow_many_files
from pipeline.storage.slab import Slab
from pipeline.storage.tier import check_keys
from pipeline.workflow import format_size

Known = NDArray[np.bool_]
"""[U] True for each key that has a row."""


class RowReader(Protocol):
    """Source of rows' weights. Thread-safe."""

    def weights(self, keys_U: U64, weights_UC: F32) -> Known:
        """Write the weights of distinct keys; a key without a row has those of its first row. Raises Damaged if a row
        is damaged."""

    def close(self) -> None: ...


class CaughtUp:
    """Catches rows up to a step, and makes the first rows of keys, as an evaluation after that step does."""

    def __init__(
        self, optimizer: Optimizer, layout: RowLayout, features: Features, saved: Mapping[str, Array], step: int
    ) -> None:
        """`saved`: the dense part of the commit, which has the history of rates."""
        slab = Slab(0, layout.num_words)
        self._rows = RowOptimizer(optimizer, layout, features.init_std, slab, Whole(), RAM, False)
        self._rows.rates.load(saved)
        self._layout, self._features, self._step = layout, features, step
        # The lifespan of first rows is looked for once; afterwards catching up changes nothing but its rows.
        self.catch_up(np.zeros((1, layout.num_words), np.uint32))

    def catch_up(self, rows_UW: U32) -> None:
        """Catch rows up in place. Only their weights are valid afterwards, not their state."""
        self._rows.catch_up_copy(rows_UW, self._step)

    def first_rows(self, keys_U: U64) -> U32:
        """[U, W] first rows of these keys, not caught up."""
        rows_UW = np.empty((len(keys_U), self._layout.num_words), np.uint32)
        features = self._features
        init_rows(keys_U, np.uint64(features.seed), features.init_std, features.embedding_dim, rows_UW)
        return rows_UW

    def first_weights(self, keys_U: U64) -> F32:
        """[U, C] weights of keys that have no row."""
        rows_UW = self.first_rows(keys_U)
        self.catch_up(rows_UW)
        return self.weights_of(rows_UW)

    def weights_of(self, rows_UW: U32) -> F32:
        """[U, C] weights in these rows, a view."""
        weights_UC: F32 = rows_UW.view(np.float32)[:, WEIGHTS_AT : WEIGHTS_AT + self._layout.num_weights]
        return weights_UC


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of keys, as a commit stores them: not caught up."""

    rows_UW: U32
    known_U: Known


class CommitRows:
    """Rows of a commit. The key map is built when this object is made, from the log's column of keys."""

    def __init__(self, held: HeldCommit, speed: DiskSpeed, caught_up: CaughtUp, memory: int, direct: bool) -> None:
        """`memory`: maximum bytes of the key map. Raises ValueError, with the numbers, if it takes more, and Damaged if
        the commit is damaged."""
        manifest = held.manifest
        if (needed := bytes_for(manifest.live_rows)) > memory:
            raise ValueError(
                f"commit {manifest.number} has {manifest.live_rows:,} keys, whose map takes {needed:,} bytes, and "
                f"memory is {format_size(memory)}; raise it, or read rows without a map: `pipeline export`, then "
                "pipeline.open_servable"
            )
        allow_many_files()
        self._held, self._caught_up, self._layout = held, caught_up, RowLayout.of(manifest.row)
        self._places = places_of(manifest, memory)
        with held.explaining():
            self._log = read_log(
                held.run_dir / "table.zarr", self._layout, self._places, [manifest], speed, Files(), direct
            )
        self._lock = threading.Lock()

    def stored(self, keys_U: U64) -> StoredRows:
        """Read the rows of distinct keys; a key without a row has its first row."""
        places_U = self._places.map.find(keys_U)
        known_U = places_U != UNKNOWN
        rows_UW = self._caught_up.first_rows(keys_U)
        if known_U.any():
            at_N, found_NW = row_of(places_U[known_U]), rows_UW[known_U]
            # The log's reader uses many threads for one call, and serves one call at a time.
            with self._held.explaining(), self._lock:
                self._log.gather(at_N, found_NW)
            check_keys(self._log, at_N, found_NW, keys_U[known_U])
            rows_UW[known_U] = found_NW
        return StoredRows(rows_UW, known_U)

    def weights(self, keys_U: U64, weights_UC: F32) -> Known:
        found = self.stored(keys_U)
        self._caught_up.catch_up(found.rows_UW)
        weights_UC[:] = self._caught_up.weights_of(found.rows_UW)
        return found.known_U

    def close(self) -> None:
        self._log.close()


def places_of(manifest: Manifest, map_bytes: int) -> Places:
    """Empty places of a table that is only read."""
    table = manifest.table
    return Places(0, 0, "clock", Caps(1 << 62, map_bytes), Chunks(table.chunk_rows, 2.0, 0.0, table.shards))
