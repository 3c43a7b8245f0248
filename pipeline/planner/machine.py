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
    """Time that one more scattered read of a page costs while many are in flight (`DiskSpeed`)."""
    disk_read_bytes_per_second: Positive
    disk_write_bytes_per_second: Positive
    """Throughput of chunk files with their checksums, without the time of `fsync_seconds`."""
    fsync_seconds: Amount
    """Seconds that each file takes until it is durable, however short it is."""
    cached_read_seconds: Positive
    """CPU seconds of one row that is read from the page cache."""
    copy_bytes_per_second: Positive
    """Bytes of scattered rows that one thread copies in a second."""
    find_seconds: Positive
    """Seconds of a key that is looked up in a key map of a million keys."""
    plan_key_seconds: Positive
    """Seconds of `plan` for a key of a block whose row is on the device."""
    plan_row_seconds: Positive
    """Seconds of `plan` beyond that for a key whose row comes to the device, where another leaves it."""
    victim_seconds: Positive
    """Seconds per slot that `plan` scans to choose victims."""
    block_seconds: Amount
    """CPU seconds of a block's empty tasks under Dask."""
    dask_bytes: Size
    """RAM that Dask takes in a process."""
    process_bytes: Size
    """RAM of a process with all libraries, before it opens a run."""
    network_bytes_per_second: Positive
    """Throughput between two workers, in each direction."""
    message_seconds: Amount
    """Seconds of a small message from one worker to another."""
