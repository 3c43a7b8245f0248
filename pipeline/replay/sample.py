"""Sample of a trace's keys by hash (SHARDS; Waldspurger et al., FAST 2015), and estimates for the whole trace.

Either all uses of a key are in the sample or none, so reuse distances in the sample, relative to a cache scaled down by
the same factor, are those of the whole trace. The sample has four parts, each simulated separately; the standard error
follows from the differences between their results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import stdev

import numpy as np

from pipeline.records import U64, Block
from pipeline.replay.belady import Bound
from pipeline.replay.totals import Totals
from pipeline.replay.trace import Extent, Recent, Trace, extent_of

PARTS = 4


class Sample:
    """Sample of the keys of a trace, in PARTS parts."""

    def __init__(self, trace: Trace, share: float) -> None:
        """`share`: share of all keys that are in the sample."""
        self.trace = trace
        self._width = np.uint64(share / PARTS * 2**64)
        """Number of mixed hashes per part."""
        self._num_keys: dict[Extent, int] = {}
        self.split = Recent(self._split)
        """Returns the sampled keys of a block: for each worker, the keys of each part."""
        self.parts = [SampledTrace(self, part, share / PARTS) for part in range(PARTS)]

    def _split(self, block: Block) -> tuple[U64, ...]:
        whole = self.trace.keys(block)
        self._num_keys[extent_of(block)] = sum(map(len, whole))
        return tuple(part_U for keys_U in whole for part_U in self.parts_of(keys_U))

    def parts_of(self, keys_U: U64) -> list[U64]:
        """Divide keys among the parts. Keys outside the sample are omitted."""
        part_U = mix(keys_U) // self._width
        keys_U, part_U = keys_U[part_U < PARTS], part_U[part_U < PARTS]
        return [keys_U[part_U == part] for part in range(PARTS)]

    def num_keys(self, block: Block) -> int:
        """Number of keys of a block, sampled or not. The block must have been split before."""
        return self._num_keys[extent_of(block)]


class SampledTrace(Trace):
    """Trace of the keys of one part of a sample."""

    def __init__(self, sample: Sample, part: int, share: float) -> None:
        self.sample, self.share = sample, share
        self.agenda, self.shards = sample.trace.agenda, sample.trace.shards
        self._part = part

    def keys(self, block: Block) -> tuple[U64, ...]:
        """See `Trace.keys`."""
        return self.sample.split(block)[self._part :: PARTS]


def mix(keys_U: U64) -> U64:
    """Hash of keys, independent of the bits that determine their shard and their position in the map: the finalizer of
    SplitMix64."""
    mixed_U = keys_U + np.uint64(0x9E3779B97F4A7C15)
    mixed_U = (mixed_U ^ (mixed_U >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed_U = (mixed_U ^ (mixed_U >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed_U ^ (mixed_U >> np.uint64(31))


RowCounts = dict[str, dict[str, int]]
"""Row counts in the form of `TierTotals.counts`."""


def estimate_counts(parts: Sequence[tuple[SampledTrace, Totals]]) -> tuple[RowCounts, dict[str, float]]:
    """Estimate the counts of the whole trace from those of two or more parts. Also returns the standard errors of the
    hit rates of "device" and of "memory" (device or host), as shares of all keys."""
    scaled = [scale(trace, totals) for trace, totals in parts]
    counts = {
        of: {name: round(sum(part[of][name] for part in scaled) / len(scaled)) for name in scaled[0][of]}
        for of in scaled[0]
    }
    shares = [hit_shares(part) for part in scaled]
    return counts, {tier: stdev(part[tier] for part in shares) / math.sqrt(len(shares)) for tier in shares[0]}


def scale(trace: SampledTrace, totals: Totals) -> RowCounts:
    """Estimate the counts of the whole trace from one part. The true number of keys of the blocks is known; the
    difference from the estimate is attributed to frequent keys, which are found on the device (SHARDS-adj)."""
    counts = {of: {name: round(n / trace.share) for name, n in names.items()} for of, names in totals.counts().items()}
    for of, trains in (("trained", True), ("evaluated", False)):
        known = sum(trace.sample.num_keys(one.block) for one in totals.series if one.block.trains == trains)
        counts[of]["device_hits"] = max(0, counts[of]["device_hits"] + known - counts[of]["keys"])
        counts[of]["keys"] = known
    return counts


def scale_bound(bound: Bound, share: float, known: int) -> Bound:
    """Scale the bound of a sample to the whole trace. `known`: number of keys of all blocks."""
    keys, hits, first = (round(n / share) for n in (bound.keys, bound.hits, bound.first))
    return Bound(known, max(0, hits + known - keys), first)


def hit_shares(counts: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """Shares of all keys that were found on the device, and in memory (on the device or the host)."""
    keys, device, host = (sum(counts[of][name] for of in counts) for name in ("keys", "device_hits", "host_hits"))
    return {"device": device / max(1, keys), "memory": (device + host) / max(1, keys)}
