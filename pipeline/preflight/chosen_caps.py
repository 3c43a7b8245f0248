"""Choice of the caps that a workflow omits, within a RAM budget, from the keys of the first window.

The budget first covers everything but rows: the process, the read ring, and a key map with room for KEY_MARGIN times
the guessed number of keys. The rest is for rows, up to the size of the table. Blocks are as large as the workflow
allows, provided that an epoch has at least BLOCKS_OF_EPOCH of them and that some rows fit in addition to the rings:
small blocks cost more than misses.

Without a GPU, device and host share the same RAM, so nearly all rows are in the device's slab, and the host gets little
more than its ring: moving a row to a host slab would cost two more copies and gain nothing. With a GPU, the device gets
up to GPU_SHARE of the free GPU memory, but no more than the size of the table, and the host gets the rest of the
budget.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipeline.machine import limits
from pipeline.machine.limits import resident_bytes
from pipeline.messages.sizes import format_size_down, format_size_up
from pipeline.preflight.checked import Budget, Checked
from pipeline.preflight.first_window import first_window
from pipeline.preflight.sizes import (
    DEDUP_BYTES,
    MARK_BYTES,
    PLANNED_BYTES,
    SLACK,
    DoesNotFit,
    FirstWindow,
    gpu_bytes,
    guessed_keys,
    other_buffers,
)
from pipeline.settings.caps import CAP_NAMES, CapSizes, Storage, caps_of
from pipeline.storage.key_map import bytes_for, most_bytes_for

SHARE_OF_FREE = 0.7
"""Share of the free RAM that a run uses if storage.memory is omitted; the run's workers on one machine share it."""
GPU_SHARE = 0.8
"""Share of the GPU's free memory for the device tier; the rest is for the model."""
DISK_SHARE = 0.9
"""Share of the disk's free space that a run may use."""
KEY_MARGIN = 2.0
"""Number of keys to make room for, per guessed key."""
ROOM = 0.5
"""Minimum number of spare rows per row that a pace needs."""
BLOCKS_OF_EPOCH = 8
UNLIMITED_DISK = 1 << 60
LATER_BYTES = 128 << 20
"""RAM that a process takes after the checks, in addition to the listed buffers: Dask, compiled kernels, freed memory
that the allocator keeps."""
READ_SLACK = 1.25
"""Bytes of a read ring buffer per predicted byte of a block."""


def budget_of(c: Checked) -> int:
    """Bytes of RAM that a worker's process may use. Raises ValueError if this is unknown, because the workers are on
    other machines."""
    if c.storage.memory is not None:
        return c.storage.memory
    if not c.here:
        raise ValueError(
            f"{_names(c)} left out, and how much memory of the workers' machines is free is not known here; set "
            "storage.memory to the RAM that each worker may take"
        )
    return resident_bytes() + int(SHARE_OF_FREE * limits.free_memory() / c.world)


def free_disk(run_dir: Path | None) -> int:
    """Bytes of disk that the run may use, including what it already uses; UNLIMITED_DISK if its folder is unknown."""
    if run_dir is None:
        return UNLIMITED_DISK
    there = next(path for path in (run_dir.absolute(), *run_dir.absolute().parents) if path.is_dir())
    taken = sum(path.stat().st_blocks * 512 for path in run_dir.rglob("*") if path.is_file())
    return int(DISK_SHARE * (shutil.disk_usage(there).free + taken))


def choose_caps(c: Checked) -> Checked:
    """Choose the omitted caps and the maximum pace that goes with them; `c.say` is called with both. Raises DoesNotFit
    if the memory is too small for one batch, and ValueError if the amount of memory is unknown."""
    needs = _Needs(c, budget_of(c), free_disk(c.run_dir) // c.world)
    schedule = c.workflow.schedule
    steps = -(-needs.examples // schedule.batch_size)
    batches, ahead = min(schedule.block_batches, max(1, steps // BLOCKS_OF_EPOCH)), schedule.look_ahead
    # A small block costs more than a short look-ahead, but without look-ahead nothing overlaps.
    while batches > 1 and not needs.of(batches, ahead).is_roomy:
        batches, ahead = (batches, ahead - 1) if ahead > 1 else (batches // 2, schedule.look_ahead)
    while ahead > 0 and not needs.of(batches, ahead).fits:
        ahead -= 1
    of = needs.of(batches, ahead)
    if not of.fits:
        raise DoesNotFit(of.too_small())
    caps = of.caps()
    # Scoring writes no rows, so the disk is unlimited.
    names = [name for name in CAP_NAMES if name != "disk" or caps.disk < UNLIMITED_DISK // c.world]
    sizes = ", ".join(f"{name} {format_size_down(getattr(caps, name))}" for name in names)
    if any(getattr(c.storage, name) is None for name in names):
        c.say(
            f"storage: {sizes}; {_names(c, names)} chosen within {format_size_down(needs.budget)} of RAM"
            f"{'' if c.world == 1 else ' a worker'}, for about {needs.guess(batches):,} keys; blocks of {batches} "
            f"{'batch' if batches == 1 else 'batches'}, look-ahead {ahead}"
        )
    return replace(c, storage=caps, budget=Budget(needs.budget, of.planned(caps)), pace=(ahead, batches))


def _names(c: Checked, names: Sequence[str] = CAP_NAMES) -> str:
    *first, last = [f"storage.{name}" for name in names if getattr(c.storage, name) is None]
    return f"{', '.join(first)} and {last} are" if first else f"{last} is"


@dataclass(frozen=True, slots=True)
class _Needs:
    """Everything that the choice depends on."""

    c: Checked
    budget: int
    disk: int
    windows: dict[int, FirstWindow] = field(default_factory=dict)
    """First windows, by batches per block."""

    @property
    def examples(self) -> int:
        """Number of examples of the largest split."""
        return max(self.c.agenda.num_examples.values())

    def block_bytes(self, batches: int) -> int:
        """Bytes of the read ring for a block, with some slack."""
        examples = min(batches * self.c.workflow.schedule.batch_size, self.examples)
        return int(READ_SLACK * self.c.source.block_bytes(-(-examples // self.c.world), batches)) + 4096

    def window(self, batches: int) -> FirstWindow:
        if batches not in self.windows:
            num_blocks, bytes_of_block = self.c.workflow.schedule.look_ahead + 1, self.block_bytes(batches)
            blocks = self.c.first_blocks(num_blocks, batches)
            self.windows[batches] = first_window(self.c.source, blocks, bytes_of_block * self.c.world, self.c.world)
        return self.windows[batches]

    def guess(self, batches: int) -> int:
        """Guess of a worker's final number of keys."""
        examples = batches * self.c.workflow.schedule.batch_size
        return guessed_keys(self.window(batches), examples, self.examples) + self.c.rows_before // self.c.world

    def of(self, batches: int, look_ahead: int) -> _Shares:
        """Division of the budget for this pace."""
        c, window, schedule = self.c, self.window(batches), self.c.workflow.schedule
        keys = max(window.keys_of_blocks)
        union = window.union_of_first[min(look_ahead, len(window.union_of_first) - 1)]
        # A single batch gets no slack.
        slack = SLACK if look_ahead or batches > 1 else 1.0
        ring = c.source.window_bytes(schedule.batch_size) + (2 * look_ahead + 1) * self.block_bytes(batches)
        of_batch = int(2 * c.dense.activation_bytes * schedule.batch_size / c.world)
        others = other_buffers(c.workflow, c.agenda, c.row, keys)
        indices = keys * (DEDUP_BYTES + PLANNED_BYTES * (2 * look_ahead + 1))
        process = resident_bytes() + LATER_BYTES + 2 * c.dense.num_bytes + of_batch + indices
        return _Shares(
            needs=self,
            look_ahead=look_ahead,
            keys_of_block=keys,
            union=union,
            ring_rows=(look_ahead + 1) * int(slack * keys),
            num_keys=max(union, int(KEY_MARGIN * self.guess(batches))),
            process_bytes=process + sum(size for _, size, _ in others) + c.storage.known_bytes,
            read_bytes=ring if c.storage.read is None else c.storage.read,
        )


@dataclass(frozen=True, slots=True)
class _Shares:
    """Division of the budget for one pace."""

    needs: _Needs
    look_ahead: int
    keys_of_block: int
    union: int
    ring_rows: int
    """Rows of one ring."""
    num_keys: int
    """Number of keys to make room for."""
    process_bytes: int
    read_bytes: int

    @property
    def given(self) -> Storage:
        return self.needs.c.storage

    @property
    def map_bytes(self) -> int:
        """Bytes for the key map. The guessed keys take precedence over spare rows, since a full map may end a
        run, whereas rows can be on disk. For the margin of KEY_MARGIN, the map may take at most half of the rest."""
        if self.given.map is not None:
            return self.given.map
        left = self.needs.budget - self.process_bytes - self.read_bytes - self.in_ram
        guessed = min(left, most_bytes_for(int(self.num_keys / KEY_MARGIN)))
        least = bytes_for(max(self.union, self.needs.c.keys_before))
        return max(least, guessed, min(most_bytes_for(self.num_keys), left // 2))

    @property
    def least(self) -> tuple[int, int]:
        """Bytes of device and host: the given cap or, if omitted, the minimum for this pace."""
        row, rings = self.needs.c.row.num_bytes, self.ring_rows * (2 if self.needs.c.device.on_gpu else 1)
        device, host = self.given.device, self.given.host
        assert device is None or isinstance(device, int)
        copies = gpu_bytes(self.read_bytes, 2 * self.look_ahead + 1) if self.needs.c.device.on_gpu else 0
        return (
            copies + (rings + self.union) * row if device is None else device,
            (rings + self.given.chunk_rows) * row if host is None else host,
        )

    @property
    def in_ram(self) -> int:
        """Bytes of RAM for the minimum device and host, including the metadata of their slots."""
        device, host = self.least
        return self._with_marks(host if self.needs.c.device.on_gpu else device + host)

    @property
    def spare(self) -> int:
        """Bytes of RAM for rows beyond the minimum; negative if even the minimum does not fit."""
        left = self.needs.budget - self.process_bytes - self.read_bytes - self.map_bytes - self.in_ram
        # A commit of all rows must fit on the disk in addition to the log.
        on_disk = (self.needs.disk if self.given.disk is None else self.given.disk) // 3
        return min(self._without_marks(left), max(0, on_disk - sum(self.least))) if left >= 0 else left

    @property
    def table_bytes(self) -> int:
        """Bytes of the whole table; more bytes for rows would be useless."""
        return self.num_keys * self.needs.c.row.num_bytes

    @property
    def fits(self) -> bool:
        return self.spare >= 0

    @property
    def is_roomy(self) -> bool:
        """True if all rows fit, or if there is some room in addition to the rings."""
        return self.spare >= min(self.table_bytes, int(ROOM * sum(self.least)))

    def caps(self) -> CapSizes:
        """All caps, given and chosen."""
        (device, host), spare = self.least, max(0, min(self.spare, self.table_bytes))
        if self.needs.c.device.on_gpu:
            if self.given.device is None:
                device = min(int(GPU_SHARE * self.needs.c.device.free_bytes()), device + self.table_bytes)
            if self.given.host is None:
                host += min(spare, max(0, self.least[0] + self.table_bytes - device))
        elif self.given.device is None:
            device += spare
        elif self.given.host is None:
            host += spare
        disk = self.needs.disk if self.given.disk is None else self.given.disk
        return caps_of(self.given, device=device, host=host, disk=disk, read=self.read_bytes, map=self.map_bytes)

    def planned(self, caps: CapSizes) -> int:
        """Bytes of RAM that the process takes with these caps."""
        rows = caps.host + (0 if self.needs.c.device.on_gpu else caps.device)
        return self.process_bytes + caps.read + caps.map + self._with_marks(rows)

    def too_small(self) -> str:
        """Error message for a budget that is too small for one batch."""
        needed = self.process_bytes + self.read_bytes + self.in_ram
        needed += bytes_for(self.union) if self.given.map is None else self.given.map
        given = self.given.memory is not None
        return (
            f"{'storage.memory is' if given else f'{SHARE_OF_FREE:.0%} of the free RAM are'} "
            f"{format_size_down(self.needs.budget)}; the process takes {format_size_up(self.process_bytes)}, reading "
            f"{format_size_up(self.read_bytes)}, and rows, with one batch of {self.keys_of_block:,} keys, "
            f'{format_size_up(self.in_ram)}; set storage.memory to "{format_size_up(needed)}", or lower '
            "schedule.batch_size or data.shuffle_window"
        )

    def _with_marks(self, num_bytes: int) -> int:
        return num_bytes + num_bytes * MARK_BYTES // self.needs.c.row.num_bytes

    def _without_marks(self, num_bytes: int) -> int:
        row = self.needs.c.row.num_bytes
        return num_bytes * row // (row + MARK_BYTES)
