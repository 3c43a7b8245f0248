"""Cache policies on traces of keys: plans alone, without rows, model or disk.

    python -m benchmarks.policies [--shared FOLDER] [--quick]

A hit is a key of a block that is on device or host before the block is planned. Shares are relative to the keys that
occurred before; first uses are counted separately. The first half of each trace warms up the tiers. Half of the cache
is the device, half the host, L = 2. Cells are traces and sizes, in per cent of the distinct keys of the trace. Cells in
which a window does not fit the device are listed and omitted.

Aims, in the worst cell: foresight at F = 64 blocks has at least 97 % of Belady's hits, saves at least 45 % of the disk
reads that Belady saves over lfu, and is at most 0.1 points below lfu in hits; the chain (lru over lfu) is not below
lru. The last line is JSON: `foresight_vs_belady`, `saved_vs_lfu`, `foresight_less_lfu` (points), `chain_vs_lru`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import arguments, finish
from benchmarks.policies.belady import Uses, belady_hits, uses_of
from benchmarks.policies.traces import Trace, all_traces
from pipeline.records import U64, Block, Moves, Plan, Unique
from pipeline.stages.plan import RingRows, plan
from pipeline.storage.chunks import Chunks
from pipeline.storage.places import Caps, Places

SHARES = (0.05, 0.10, 0.20, 0.40)
LOOK_AHEAD = 2
ALL_ROWS = 1 << 40
HOST_CHUNKS = 64
"""Minimum size of the host in chunks, since rows of the host fill a block's last chunk."""
SINGLE = ("clock", "lru", "lfu", "lfu_aged")
CHAIN = "lru over lfu"
AHEAD = (4, 16, 64)


def block_of(number: int) -> Block:
    return Block(number, "train", 0, number, 1, number, 1, 1, number, False, agenda_batch=number)


def moves_of(
    blocks: Sequence[U64], device_rows: int, host_rows: int, policies: tuple[str, str], known: int = 0
) -> list[Moves] | None:
    """Moves of each block, with the keys of the next `known` blocks; None if a window does not fit the device."""
    chunks = Chunks(max(1, min(8192, host_rows // HOST_CHUNKS)), 2.0, 1e9)
    places = Places(device_rows, host_rows, policies, Caps(2 * ALL_ROWS, ALL_ROWS), chunks)
    chunks.allowance = ALL_ROWS
    uniques = [Unique(block_of(n), keys_U, ()) for n, keys_U in enumerate(blocks)]
    moves, scanned = [], 0
    for n in range(len(blocks)):
        while known and scanned < min(len(blocks), n + known + 1):
            places.next_uses.add(uniques[scanned].block, blocks[scanned])
            scanned += 1
        planned = plan(uniques[n : n + LOOK_AHEAD + 1], places, RingRows(ALL_ROWS, ALL_ROWS))
        if not isinstance(planned, Plan):
            assert planned.cap == "device_rows", planned.message
            return None
        moves.append(planned.moves)
    return moves


class Cell:
    """One trace and one size: hits after the warm-up of every policy, as shares of the keys that occurred before."""

    def __init__(self, trace: Trace, uses: Uses, share: float) -> None:
        self.uses = uses
        self.blocks = trace.blocks
        self.rows = int(share * uses.num_keys)
        self.device, self.warm = self.rows // 2, len(trace.blocks) // 2
        self.device_hits: dict[str, float] = {}
        self.hits: dict[str, float] = {}

    def measure(self) -> bool:
        """Measure all policies; False if a window does not fit."""
        for name in SINGLE:
            if not self._note(name, (name, name)):
                return False
        self._note(CHAIN, ("lru", "lfu"))
        for known in AHEAD:
            self._note(f"foresight {known}", ("foresight", "foresight"), known)
        hits, on_device = (sum(belady_hits(self.uses, rows)[self.warm :]) for rows in (self.rows, self.device))
        self.hits["Belady"], self.device_hits["Belady"] = hits / self.known, on_device / self.known
        return True

    def _note(self, name: str, policies: tuple[str, str], known: int = 0) -> bool:
        moves = moves_of(self.blocks, self.device, self.rows - self.device, policies, known)
        if moves is None:
            return False
        late = moves[self.warm :]
        self.known = sum(m.keys - m.new for m in late)
        self.new = sum(m.new for m in late)
        self.device_hits[name] = sum(m.device_hits for m in late) / self.known
        self.hits[name] = self.device_hits[name] + sum(m.host_hits for m in late) / self.known
        return True

    @property
    def ratios(self) -> dict[str, float]:
        hits, last = self.hits, f"foresight {AHEAD[-1]}"
        saved = hits["Belady"] - hits["lfu"]
        return {
            "foresight_vs_belady": hits[last] / hits["Belady"],
            # If lfu is within a thousandth of the optimum, there is nothing to save.
            "saved_vs_lfu": (hits[last] - hits["lfu"]) / saved if saved > 1e-3 else 1.0,
            "foresight_less_lfu": 100 * (hits[last] - hits["lfu"]),
            "chain_vs_lru": hits[CHAIN] / hits["lru"],
        }


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shared", type=Path, help="folder with criteo_1tb_sample and frappe_x1; default: without")


def main() -> None:
    args = arguments("policies", __doc__ or "", options)
    worst: dict[str, float] = {}
    for trace in all_traces(args.shared, args.quick):
        uses = uses_of(trace.blocks)
        keys = sum(map(len, trace.blocks)) // len(trace.blocks)
        print(f"\n{trace.name}: {len(trace.blocks)} blocks of {keys:,} keys, {uses.num_keys:,} different ones")
        for share in SHARES:
            cell = Cell(trace, uses, share)
            if not cell.measure():
                print(f"  {share:4.0%}: a window does not fit {cell.device:,} rows of the device")
                continue
            print(f"  {share:4.0%}, {cell.rows:,} rows; {cell.new / (cell.new + cell.known):.1%} first uses")
            for name, hits in cell.hits.items():
                print(f"      {name:14} {hits:7.2%} of known keys; device alone {cell.device_hits[name]:7.2%}")
            for name, ratio in cell.ratios.items():
                worst[name] = min(ratio, worst.get(name, ratio))
            print("      " + ", ".join(f"{name} {ratio:.3f}" for name, ratio in cell.ratios.items()), flush=True)
    finish(args, worst)


if __name__ == "__main__":
    main()
