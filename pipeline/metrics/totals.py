"""Totals of a run: hits and traffic of each tier, and writes to the log (`tiers` and `disk` of result.json)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from pipeline.records import Moves

COUNTS = tuple(field.name for field in fields(Moves) if field.name != "arrives")


@dataclass(slots=True)
class DiskTotals:
    """Totals of a run's writes to the log, over all its sessions."""

    commits: int = 0
    commit_seconds: float = 0.0
    rows_changed: int = 0
    """Number of rows of the device and host slabs that commits wrote."""
    rows_merged: int = 0
    """Number of live rows of sparse chunks that commits rewrote."""
    written_bytes: int = 0
    """Number of bytes written to all files of the log, including padding and keys."""

    def report(self, row_bytes: int, evicted_rows: int) -> dict[str, float]:
        """Return the totals and the write amplification. `evicted_rows`: rows written because they left the slabs."""
        needed = row_bytes * (evicted_rows + self.rows_changed)
        return {
            **asdict(self),
            "rewritten_bytes": row_bytes * self.rows_merged,
            "write_amplification": self.written_bytes / needed if needed else math.nan,
        }


class TierTotals:
    """Sums of the `Moves` of all planned blocks, in rows, separately for training and evaluation.

    With several workers, a block that one of them refuses is planned again. Other workers may have planned it, and
    later blocks, in vain. How many depends on time, and these plans are counted, too.
    """

    def __init__(self) -> None:
        self._trained = dict.fromkeys(COUNTS, 0)
        self._evaluated = dict.fromkeys(COUNTS, 0)

    def add(self, moves: Moves) -> None:
        """Add the counts of one block."""
        totals = self._trained if moves.arrives else self._evaluated
        for name in COUNTS:
            totals[name] += getattr(moves, name)

    def counts(self) -> dict[str, dict[str, int]]:
        """All counts, for a commit."""
        return {"trained": self._trained, "evaluated": self._evaluated}

    def load(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Restore what `counts` returned."""
        self._trained |= counts["trained"]
        self._evaluated |= counts["evaluated"]

    @property
    def written(self) -> int:
        """Number of rows that went to disk and had to be written because the log had no unchanged copy."""
        rows = self._trained
        return rows["device_to_disk"] + rows["host_to_disk"] - rows["unchanged"]

    def report(
        self, capacity_rows: Mapping[str, int], row_bytes: int, disk_bytes: int, disk_capacity_bytes: int
    ) -> dict[str, dict[str, float]]:
        """Per tier, "device", "host" and "disk":

        capacity_rows   rows that fit (device, host)
        capacity_bytes  cap of the disk;  used_bytes: `disk_bytes`, the current size of its log
        hits            keys found in this tier, in training and evaluation
        hit_rate        hits / keys not found in a faster tier; nan if there were no such keys. New keys count as
                        misses of the device and the host. They are not looked up on disk, so the disk's rate is 1 or
                        nan
        rows_in         rows that moved into the tier: device: arrivals (host, disk, new); host: victims of the
                        device; disk: victims of the device and the host (padding not counted)
        rows_out        rows that left the tier: device: victims; host: arrivals on the device, and victims to disk;
                        disk: arrivals on the device
        rows_read       rows that evaluation read without moving them
        bytes           (rows_in + rows_out) * row_bytes; excludes rows_read
        """
        hits, moved = self._hits(), self._rows()
        capacity: dict[str, dict[str, int]] = {
            "device": {"capacity_rows": capacity_rows["device"]},
            "host": {"capacity_rows": capacity_rows["host"]},
            "disk": {"capacity_bytes": disk_capacity_bytes, "used_bytes": disk_bytes},
        }
        report: dict[str, dict[str, float]] = {}
        for tier in capacity:
            rows_in, rows_out = moved[tier]
            traffic = {"rows_in": rows_in, "rows_out": rows_out, "bytes": (rows_in + rows_out) * row_bytes}
            read = {"rows_read": self._evaluated[f"{tier}_hits"]}
            report[tier] = {**capacity[tier], **hits[tier], **traffic, **read}
        return report

    def _hits(self) -> dict[str, dict[str, float]]:
        """Hits and hit rate per tier, over training and evaluation."""
        total = {name: self._trained[name] + self._evaluated[name] for name in COUNTS}
        found = lookups_of(total)
        return {tier: {"hits": hits, "hit_rate": hits / of if of else math.nan} for tier, (hits, of) in found.items()}

    def _rows(self) -> dict[str, tuple[int, int]]:
        """Rows in and rows out per tier. Evaluation moves none."""
        rows = self._trained
        arrived = rows["host_hits"] + rows["disk_hits"] + rows["new"]
        return {
            "device": (arrived, rows["device_to_host"] + rows["device_to_disk"]),
            "host": (rows["device_to_host"], rows["host_hits"] + rows["host_to_disk"]),
            "disk": (rows["device_to_disk"] + rows["host_to_disk"], rows["disk_hits"]),
        }


def lookups_of(counts: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Hits of each tier, and the number of keys looked up in it: those not found in a faster tier."""
    device, host, disk = (counts.get(f"{tier}_hits", 0) for tier in ("device", "host", "disk"))
    keys, new = counts.get("keys", 0), counts.get("new", 0)
    return {"device": (device, keys), "host": (host, keys - device), "disk": (disk, keys - device - host - new)}
