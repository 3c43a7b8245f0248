"""Memory and disk space of a run, as far as it is touched."""

from __future__ import annotations

from pipeline.metrics.auc import SCORE_BYTES, SPILL_BOUND
from pipeline.planner.basis import KEY_BYTES, Basis
from pipeline.preflight.guesses import DEDUP_BYTES, MARK_BYTES, PLANNED_BYTES
from pipeline.storage.key_map import bytes_for
from pipeline.storage.reads import BUFFERS_BYTES

MEASURED_BYTES = 32 << 20
"""RAM with which a new run measures the disk, 64 MiB, which the C allocator keeps and uses again in part."""


def ram_of_all(of: Basis) -> float:
    """Peak bytes of RAM of all workers and, if they have processes of their own, of the driver."""
    driver = of.work.process_bytes if of.setup.world > 1 else 0
    return of.setup.world * sum(ram_of_worker(of).values()) + driver


def ram_of_worker(of: Basis) -> dict[str, float]:
    """Peak bytes of RAM of one worker, by purpose; of arrays only what is touched."""
    setup, work, forecast = of.setup, of.work, of.forecast
    sizes, ahead, row = setup.fit.sizes, forecast.look_ahead, of.row_bytes
    keys, block_keys = forecast.keys / setup.world, max(setup.fit.window.keys_of_blocks, default=0)
    block_examples = forecast.block_batches * setup.workflow.schedule.batch_size / setup.world
    device_rows = min(keys, sizes.device_rows)
    leave, go_to_disk = keys > sizes.device_rows, keys > sizes.device_rows + sizes.host_rows
    rings = min(sizes.staging_rows, (ahead + 1) * block_keys)
    rings += min(sizes.outgoing_rows, (ahead + 1) * block_keys) if leave else 0
    evaluated = max((setup.agenda.num_examples.get(split, 0) for split in ("validation", "test")), default=0)
    of_ring = min(sizes.read_ring_bytes, (2 * ahead + 1) * block_examples * work.example_bytes)
    return {
        "process": work.process_bytes + MEASURED_BYTES + (0 if of.serial else of.machine.dask_bytes),
        "device": 0.0 if sizes.on_gpu else device_rows * row,
        "host": min(max(0.0, keys - sizes.device_rows), sizes.host_rows) * row,
        "rings": rings * row,
        "chunk": sizes.chunk_rows * row,
        "slots": MARK_BYTES * (sizes.device_rows + sizes.host_rows),
        "read": of_ring + sizes.window_bytes,
        "map": bytes_for(int(keys)),
        "keys": block_keys * (DEDUP_BYTES + PLANNED_BYTES * (2 * ahead + 1)),
        "log readers": BUFFERS_BYTES if go_to_disk else 0.0,
        "scores": len(setup.workflow.data.labels) * SCORE_BYTES * min(evaluated, SPILL_BOUND),
    }


def disk_at_end(of: Basis, commits: int) -> float:
    """Bytes of the run directory after the run: the log with the commits that are kept, the space that is reserved for
    one more, and dense models."""
    kept = min(commits, of.setup.workflow.commit.keep)
    model = of.dense_bytes / (1 + of.setup.workflow.optimizer.numbers_a_parameter)
    rows = of.forecast.log_rows + of.forecast.reserved_rows
    return rows * (of.row_bytes + KEY_BYTES) + (kept + 1) * of.dense_bytes + model
