"""Table of memory and disk space by purpose, for --explain and for out-of-memory messages."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.device.device import Device
from pipeline.messages.sizes import format_size_down, format_size_up
from pipeline.preflight.sizes import Sizes, log_chunk_bytes

MARK_BYTES = 34
"""Bytes of metadata per slot."""

Line = tuple[str, int, str]
"""Name, bytes, explanation."""


def table(sizes: Sizes, look_ahead: int, others: Sequence[Line] = ()) -> list[Line]:
    """Lines for everything that a run allocates; `others`: further lines."""
    row = sizes.row_bytes
    outgoing, staging = (_ring(rows, row, look_ahead) for rows in (sizes.outgoing_rows, sizes.staging_rows))
    both = [("host outgoing ring", *outgoing), ("host staging ring", *staging)]
    return [
        *device_table(sizes, look_ahead),
        ("host slab", sizes.host_rows * row, f"{sizes.host_rows:,} rows"),
        *(both if sizes.on_gpu else both[1:]),
        ("host chunk buffer", sizes.chunk_rows * row, f"{sizes.chunk_rows:,} rows"),
        (
            "disk log",
            sizes.disk_chunks * log_chunk_bytes(sizes.chunk_rows, row),
            f"at most; {sizes.disk_chunks:,} chunks of {sizes.chunk_rows:,} rows, with space for one whole commit",
        ),
        ("read ring", sizes.read_ring_bytes, f"at most; {2 * look_ahead + 1} buffers"),
        ("shuffle window", sizes.window_bytes, "with the row group being read"),
        *([("known keys", sizes.known_bytes, "at most; keys of coming blocks")] if sizes.known_bytes else []),
        ("key map", sizes.map_bytes, f"at most; 12 to 16 bytes a key, so {sizes.map_bytes // 16:,} keys or more"),
        *others,
        (
            "slot marks",
            MARK_BYTES * (sizes.device_rows + sizes.host_rows),
            "key, copy, free list, uses and policy of each slot",
        ),
    ]


def device_table(sizes: Sizes, look_ahead: int) -> list[Line]:
    """Lines for device memory, excluding the dense model and the current batch."""
    row = sizes.row_bytes
    lines = [
        ("device slab", sizes.device_rows * row, f"{sizes.device_rows:,} rows of {row} bytes"),
        ("device outgoing ring", *_ring(sizes.outgoing_rows, row, look_ahead)),
    ]
    if sizes.on_gpu:
        lines.append(("device staging ring", *_ring(sizes.staging_rows, row, look_ahead)))
        indices = "at most; copies of the read buffers, their indices, dedup's table"
        lines.append(("device indices", sizes.gpu_bytes, indices))
    return lines


def _ring(rows: int, row_bytes: int, look_ahead: int) -> tuple[int, str]:
    return rows * row_bytes, f"{look_ahead + 1} buffers of {rows // (look_ahead + 1):,} rows"


def no_room(error: BaseException, sizes: Sizes, look_ahead: int, device: Device) -> str:
    """Out-of-memory message, with the table; with a GPU, the table covers only GPU memory."""
    planned = (device_table if device.on_gpu else table)(sizes, look_ahead)
    lines = "\n".join(printed(planned))
    of_tier = {
        tier: sum(num_bytes for name, num_bytes, _ in planned if name.startswith(tier)) for tier in ("device", "host")
    }
    tier = max(of_tier, key=lambda name: of_tier[name])
    # The size of the shortfall is unknown.
    less = format_size_down(of_tier[tier] * 3 // 4)
    return (
        f"out of memory ({error})\n{lines}\nplus the dense model, its gradients and the activations of a batch; "
        f"{format_size_down(device.free_bytes())} are free; lower storage.{tier} for more, such as --set "
        f"'storage.{tier}={less}'"
    )


def printed(lines: Sequence[Line]) -> list[str]:
    """Lines of a table as text, with sizes in the units of settings."""
    return [f"{name:22} {format_size_up(num_bytes):>10}   {what}" for name, num_bytes, what in lines]
