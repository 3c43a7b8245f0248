"""Machine constants that predictions use, measured by `calibrate.py`."""

from __future__ import annotations

from pipeline.settings import Amount, Count, Strict
from pipeline.settings.caps import Size
from pipeline.settings.optimizer import Positive


class Machine(Strict):
    """Constants of a machine. Costs in CPU time are those of one thread."""

    name: str
    cores: Count
    ram: Size
    price_per_hour: Amount | None = None
    """Price of an hour, in any currency; None: unknown."""
    scattered_read_seconds: Positive
    """Marginal time of a scattered page read while many are in flight (`DiskSpeed`)."""
    disk_read_bytes_per_second: Positive
    disk_write_bytes_per_second: Positive
    """Throughput of writing chunk files with checksums, excluding `fsync_seconds`."""
    fsync_seconds: Amount
    """Seconds until a file is durable, regardless of its size."""
    cached_read_seconds: Positive
    """CPU seconds per row read from the page cache."""
    copy_bytes_per_second: Positive
    """Throughput of one thread that copies scattered rows."""
    find_seconds: Positive
    """Seconds per lookup in a key map of a million keys."""
    plan_key_seconds: Positive
    """Seconds of `plan` per key of a block whose row is on the device."""
    plan_row_seconds: Positive
    """Additional seconds of `plan` per key whose row replaces another row on the device."""
    victim_seconds: Positive
    """Seconds per slot that `plan` scans to choose victims."""
    block_seconds: Amount
    """CPU seconds per block for empty tasks under Dask."""
    dask_bytes: Size
    """RAM that Dask takes in a process, in bytes."""
    process_bytes: Size
    """RAM of a process with all libraries loaded, before it opens a run, in bytes."""
    network_bytes_per_second: Positive
    """Throughput between two workers, in each direction."""
    message_seconds: Amount
    """Latency of a small message from one worker to another."""
