"""Hit rate for every size of device and host, from the keys of a run that is about to start; nothing is trained.

A use is a key in a training block. It is a hit if the row is in device or host before the block. If the least recently
used rows leave first, this takes as many rows as there are keys whose last use is not earlier than this key's (stack
distance; Mattson et al., 1970), so one pass gives the hits of all sizes. Distances in a sample of the keys by hash,
divided by the share of the sample, are distributed as those of all keys (SHARDS; Waldspurger et al., FAST 2015).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.data.agenda import START
from pipeline.data.identity import Begun
from pipeline.data.side_files import SideFiles
from pipeline.kernels.key_map import UNKNOWN
from pipeline.machine.limits import cpus
from pipeline.messages.sizes import format_size_up
from pipeline.preflight.checked import Checked
from pipeline.preflight.setup import Setup
from pipeline.preflight.sizes import guessed_keys
from pipeline.records import F64, I64, U64
from pipeline.stages.unique_keys import KeyReader
from pipeline.storage.key_map import KeyMap

MAX_VALUES, MAX_SECONDS, SAMPLED_KEYS = 50_000_000, 20.0, 1 << 16
"""Number of key values (cells of examples) to read at most, time after which no further block is read, and approximate
number of keys in the sample at most."""
SIZES = {"quarter": 0.25, "half": 0.5, "chosen": 1.0, "twice": 2.0}
STEPS = 20
"""Sizes in JSON below that of all keys, each smaller by a factor of the square root of 2."""


@dataclass(frozen=True, slots=True)
class HitCurve:
    """Uses in the blocks that were read."""

    rows_D: F64
    """[D] minimum number of rows of device and host with which each sampled use is a hit, ascending; without first
    uses."""
    first: int
    """Number of sampled first uses."""
    uses: int
    """Number of all uses, sampled or not."""
    share: float
    """Share of the keys that are in the sample."""
    looked_at: float
    """Share of the examples to train whose keys were read."""

    def hit_rate(self, rows: float) -> float:
        """Share of the uses that are hits if device and host have this many rows; nan if there are no uses."""
        expected = self.share * self.uses
        # What the sample has too few of are uses of frequent keys, which are hits (SHARDS-adj).
        hits = float(np.searchsorted(self.rows_D, rows, "right")) + expected - self.first - len(self.rows_D)
        return max(0.0, hits) / expected if expected else math.nan

    @property
    def keys(self) -> float:
        """Number of keys that were used."""
        return self.first / self.share

    def lines(self, setup: Setup) -> list[str]:
        """Describe the hit rates of some sizes, relative to those of the run."""
        device, both = rows_of(setup)
        if not self.uses:
            return ["hits:     not known, since no block was looked at"]
        lines = [
            "hits:     a use is a key in a training block, a hit if its row is in device or host before the block",
            f"          (with policy lru); the first uses of keys, {1 - self.hit_rate(math.inf):.1%}, are never hits",
        ]
        sizes = {name: both * of for name, of in SIZES.items() if name == "chosen" or both * of < self.keys}
        # Larger sizes than that of all rows have its rate.
        for name, rows in (sizes | ({"all rows": self.keys} if both < self.keys else {})).items():
            size = format_size_up(int(rows) * setup.row.num_bytes)
            alone = f", {self.hit_rate(device):.1%} in device alone" if name == "chosen" else ""
            lines.append(f"          {name:8} {size:>10} {self.hit_rate(rows):7.1%}{alone}")
        sampled = "" if self.share == 1 else f", and there at one key in {round(1 / self.share):,}"
        return [*lines, f"          looked at the first {self.looked_at:.0%} of the examples to train{sampled}"]

    def as_json(self, setup: Setup) -> dict[str, Any] | None:
        """Hit rates as JSON values; None if there are no uses."""
        device, both = rows_of(setup)
        sizes = dict.fromkeys(math.ceil(self.keys / 2 ** (step / 2)) for step in range(STEPS, -1, -1))
        curve = [{"rows": n, "bytes": n * setup.row.num_bytes, "hit_rate": self.hit_rate(n)} for n in sizes]
        rates = {"device": self.hit_rate(device), "device_and_host": self.hit_rate(both), "curve": curve}
        share = {"looked_at": self.looked_at, "sample": self.share, "first_uses": 1 - self.hit_rate(math.inf)}
        return share | rates if self.uses else None


def rows_of(setup: Setup) -> tuple[int, int]:
    """Rows of the device tier, and of device and host together, of all workers."""
    sizes = setup.fit.sizes
    return setup.world * sizes.device_rows, setup.world * (sizes.device_rows + sizes.host_rows)


def hit_curve(
    checked: Checked, setup: Setup, max_values: int = MAX_VALUES, max_seconds: float = MAX_SECONDS,
    sampled_keys: int = SAMPLED_KEYS,
) -> HitCurve:  # fmt: skip
    """Read the keys of the training blocks to come, up to the limits. Raises ValueError if the data is invalid."""
    begin, data, agenda, fit = time.monotonic(), setup.workflow.data, setup.agenda, setup.fit
    # The run has no copies of side files yet.
    begun = Begun(checked.source.identity, sides=SideFiles(done=checked.source.sides.done))
    reader = KeyReader(data, setup.workflow.seed, cpus(), begun)
    num_columns, of_block = max(1, len(data.categories)), fit.block_batches * setup.workflow.schedule.batch_size
    examples = min(agenda.num_examples["train"], max_values // num_columns)
    keys = setup.world * guessed_keys(fit.window, of_block, examples)
    bits = max(0, math.ceil(math.log2(max(1, keys) / sampled_keys)))
    # In keys of the sample, the highest bits are 0.
    stack, last, depths, uses, seen = LruStack(), np.uint64((1 << (64 - bits)) - 1), [np.empty(0, np.int64)], 0, 0
    try:
        for block in checked.first_blocks(None, fit.block_batches):
            if block.trains:
                expected = block.num_examples * (reader.num_values / seen if seen else num_columns)
                if reader.num_values + expected > max_values or time.monotonic() - begin > max_seconds:
                    break
                keys_U = reader.distinct_keys(block)
                depths.append(stack.use(keys_U[keys_U <= last]))
                uses, seen = uses + len(keys_U), seen + block.num_examples
    finally:
        reader.close()
    at = (checked.begun and checked.begun.at) or START
    to_come = agenda.trained_before(agenda.end) - agenda.trained_before(at)
    rows_D = np.sort(np.concatenate(depths)) * np.float64(1 << bits)
    return HitCurve(rows_D, len(stack), uses, 0.5**bits, seen / max(1, seen, to_come))


class LruStack:
    """Keys in the order of their last uses, the latest first."""

    def __init__(self) -> None:
        self._numbers = KeyMap()
        self._stack_K: I64 = np.empty(0, np.int64)
        """[K] number of each key."""

    def __len__(self) -> int:
        return len(self._stack_K)

    def use(self, keys_U: U64) -> I64:
        """Use distinct keys at once. Returns the depths, from 1, of those that were in the stack before, ascending."""
        numbers_U = self._numbers.find(keys_U)
        new_U = numbers_U == UNKNOWN
        numbers_U[new_U] = len(self._stack_K) + np.arange(np.count_nonzero(new_U))
        self._numbers.insert(keys_U[new_U], numbers_U[new_U])
        used_K = np.zeros(len(self._numbers), np.bool_)
        used_K[numbers_U] = True
        found_K = used_K[self._stack_K]
        self._stack_K = np.concatenate([numbers_U, self._stack_K[~found_K]])
        return np.flatnonzero(found_K) + 1
