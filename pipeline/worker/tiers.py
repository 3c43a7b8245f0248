"""The open state of one worker: its membership in a run with several, tiers, key map, model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.comm.collective import Collective
from pipeline.comm.group import Group
from pipeline.commits.manifest import Manifest
from pipeline.commits.reopen import open_log
from pipeline.data.source import Source
from pipeline.device.device import Device
from pipeline.machine.limits import aligned_empty
from pipeline.machine.threads import Threads, Whole, share_of
from pipeline.metrics.evaluation import Evaluation
from pipeline.preflight.sizes import Sizes
from pipeline.records import U32, Array, Rank
from pipeline.storage.chunks import Chunks
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.files import Files
from pipeline.storage.layout import RowLayout
from pipeline.storage.places import Caps, Places
from pipeline.storage.shards import ONE_SHARD, Shards
from pipeline.storage.tier import Slab
from pipeline.training.build import Shape
from pipeline.training.learner import Learner
from pipeline.training.shares import Together
from pipeline.workflow import Workflow


@dataclass(frozen=True, slots=True)
class Membership:
    """Rank, shard owners and process groups of one of several workers."""

    rank: Rank
    owner_of_shard: tuple[int, ...]
    """Rank of the owner of each shard of the table."""
    group: Group
    key_group: Group
    """Group for key requests, used by the thread of `unite`; the thread of `train` uses the other groups."""
    levels: Collective | None = None
    """The same workers grouped by machine, if the dense part is merged on two levels."""
    on_gpus: Group | None = None
    """Group for the exchanges of training steps between GPUs, queued on the stream `train`. `group` is then used only
    for agreement between hosts."""

    @property
    def for_steps(self) -> Group:
        """Group for rows and gradients."""
        return self.on_gpus or self.group

    @property
    def collective(self) -> Collective:
        """Collective for the dense part."""
        return self.levels or self.for_steps


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Arguments for opening a worker."""

    sizes: Sizes
    row: RowLayout
    steps_of_epoch: int
    largest_batch: int
    run_dir: Path
    """Run directory on the worker's machine, with its part of the table."""
    speed: DiskSpeed
    kept: tuple[Manifest, ...]
    """The kept commits, reduced to the shards of this worker."""
    dense: Mapping[str, Array] | None
    """Initial dense part, as returned by `Worker.dense` for the last kept commit; None without a commit."""
    shards: Shards = ONE_SHARD
    scores: bool = False
    """True when scoring, which only reads the run directory; False when training, which writes to it."""


class Tiers:
    """Tiers, places, log and learner of one worker. Opened once per run. Commits use them while no block is in flight;
    otherwise they belong to `StageRunner`."""

    def __init__(
        self, workflow: Workflow, config: WorkerConfig, source: Source, device: Device, files: Files,
        membership: Membership | None = None,
    ) -> None:  # fmt: skip
        """Open the last kept commit with the dense part of `config`; without a commit, start with an empty table.
        Raises MemoryError if the tiers do not fit, and ValueError or Damaged if the commit cannot be opened."""
        self.device, self.row, self.sizes = device, config.row, config.sizes
        sizes, words, storage = config.sizes, config.row.num_words, workflow.storage
        self.threads = Whole() if device.on_gpu else Threads(workflow.schedule.threads)
        self.slab = Slab(sizes.device_rows, words, self.threads, device=device)
        self.host = Slab(sizes.host_rows, words, name="host")
        self.chunk_RW: U32 = aligned_empty((sizes.chunk_rows, words), np.uint32)
        """Buffer of one chunk for `write_back`. Commits use it while nothing is in flight."""
        chunks = Chunks(sizes.chunk_rows, storage.log_multiple, storage.log_growth, config.shards)
        caps = Caps(sizes.disk_chunks, sizes.map_bytes)
        policies = (storage.device_policy, storage.host_policy)
        self.foresees = storage.foresees and not config.scores
        """True if policies use the keys of coming blocks; False when scoring, which moves no rows."""
        threads = share_of(workflow.schedule.threads)
        self.places = Places(sizes.device_rows, sizes.host_rows, policies, caps, chunks, threads)
        self.log = open_log(
            config.run_dir / "table.zarr", self.row, self.places, config.kept, config.speed, files, storage.direct,
            writes=not config.scores,
        )  # fmt: skip
        shape = Shape(source.layout, self.row, config.largest_batch, config.steps_of_epoch)
        together = Together(membership.for_steps, membership.collective) if membership else Together()
        self.learner = Learner(workflow, shape, self.slab, Evaluation.of(workflow), self.threads, device, together)
        self.learner.block_metrics.returns_scores = config.scores
        if config.dense is not None:
            self.learner.load(config.dense)

    def close(self) -> None:
        """Release threads, files and memory. May be called twice."""
        self.threads.close()
        for tier in (self.slab, self.host, self.log):
            tier.close()
        self.learner.close()
        self.chunk_RW = self.chunk_RW[:0].copy()
