"""What `plan` knows: where every row is, which slots are free, where the log ends. No bytes of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.records import I32, RESERVED, U64
from pipeline.storage.key_map import KeyMap
from pipeline.storage.policies import POLICIES


class Slots:
    """The slots of a slab: which key each holds, and which are free."""

    def __init__(self, num_slots: int, policy: str) -> None:
        self.keys_S: U64 = np.full(num_slots, RESERVED, np.uint64)
        self.policy = POLICIES[policy](num_slots)
        self._free: I32 = np.arange(num_slots - 1, -1, -1, dtype=np.int32)
        self.num_free = num_slots

    @property
    def num_used(self) -> int:
        return len(self.keys_S) - self.num_free

    def occupied(self) -> NDArray[np.uint8]:
        """[S] 1 where a row lies, as a fresh array."""
        return (self.keys_S != RESERVED).view(np.uint8)

    def take(self, keys_U: U64) -> I32:
        """Give each key a free slot, of which there are enough."""
        assert len(keys_U) <= self.num_free
        slots_U = self._free[self.num_free - len(keys_U) : self.num_free].copy()
        self.num_free -= len(keys_U)
        self.keys_S[slots_U] = keys_U
        self.policy.touch(slots_U)
        return slots_U

    def release(self, slots_U: I32) -> None:
        """Free slots that hold rows."""
        self._free[self.num_free : self.num_free + len(slots_U)] = slots_U
        self.num_free += len(slots_U)
        self.keys_S[slots_U] = RESERVED


@dataclass(frozen=True, slots=True)
class Caps:
    """Hard limits that `plan` keeps."""

    disk_rows: int
    """Positions of the log, padding counted."""
    map_bytes: int
    chunk_rows: int

    def whole_chunks(self, num_rows: int) -> int:
        """The rows rounded up to whole chunks."""
        return -(-num_rows // self.chunk_rows) * self.chunk_rows


class Places:
    """Belongs to `plan`, and runs ahead of the bytes; true of them once the pipeline is drained."""

    def __init__(self, device_rows: int, host_rows: int, policy: str, caps: Caps) -> None:
        self.map = KeyMap()
        self.device = Slots(device_rows, policy)
        self.host = Slots(host_rows, policy)
        self.caps = caps
        self.tail = 0
        """Position of the log that is given out next; always the first of a chunk."""
