"""Capacities of one worker's tiers, as far as `plan` and commits depend on them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.preflight.sizes import Sizes
from pipeline.workflow import Storage

NO_LIMIT = 1 << 48


@dataclass(frozen=True, slots=True)
class Capacities:
    """Rows of one worker's slabs and rings, and its caps of disk and map."""

    device_rows: int
    host_rows: int
    staging_rows: int = NO_LIMIT
    """Rows of the whole ring, divided among L + 1 buffers."""
    outgoing_rows: int = NO_LIMIT
    chunk_rows: int = 8192
    disk_chunks: int = NO_LIMIT
    map_bytes: int = NO_LIMIT
    log_multiple: float = 2.0
    log_growth: float = 1.0
    known_examples: int = 0
    known_bytes: int = 0
    """Number of examples after a block whose keys the policy "foresight" reads ahead, and the bytes that these keys may
    take."""

    @classmethod
    def of(cls, sizes: Sizes, storage: Storage) -> Capacities:
        """Capacities of a run with these sizes."""
        return cls(
            sizes.device_rows, sizes.host_rows, sizes.staging_rows, sizes.outgoing_rows, sizes.chunk_rows,
            sizes.disk_chunks, sizes.map_bytes, storage.log_multiple, storage.log_growth, storage.known_examples,
            storage.known,
        )  # fmt: skip

    def sampled(self, share: float) -> Capacities:
        """Capacities scaled to this share of all keys. The map is unlimited, since a small map takes more bytes per
        key."""
        rows = {
            name: max(1, round(share * getattr(self, name)))
            for name in ("device_rows", "host_rows", "staging_rows", "outgoing_rows", "chunk_rows")
        }
        return replace(self, **rows, map_bytes=NO_LIMIT, known_bytes=round(share * self.known_bytes))
