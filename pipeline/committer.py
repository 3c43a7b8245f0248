"""Taking a commit: everything that a drained pipeline holds becomes durable together."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pipeline.models.state import dense_bytes
from pipeline.monitor.history import DiskTotals
from pipeline.resources import Resources
from pipeline.storage.commits import ChunkState, Commits, Manifest
from pipeline.storage.files import checksum
from pipeline.storage.flush import flush
from pipeline.storage.log import metadata
from pipeline.storage.reopen import checksums


class Committer:
    """Belongs to the driver; only for a drained pipeline."""

    def __init__(self, resources: Resources, commits: Commits, newest: Manifest | None, totals: DiskTotals) -> None:
        self._resources = resources
        self._commits = commits
        self.newest = newest
        """The commit that a run would go on from now."""
        self.totals = totals
        self._hold_reserve()

    def commit(
        self, state: Callable[[], dict[str, Any]], name: str | None = None, at_least: int = 0, give_up: bool = False
    ) -> None:
        """Publish a commit, then delete what no kept one needs. OSError: `newest` stands, this one if it got so far.

        `state`: called once all rows are written. `at_least`: chunks that must fit in before the next commit.
        `give_up`: keep no older commit without a name.
        """
        start, r = time.perf_counter(), self._resources
        self._commits.release()
        flushed = flush(r.places, r.slab, r.host, r.log, r.chunk_RW)
        r.log.sync()
        number = self.newest.number + 1 if self.newest else 1
        dense = self._commits.write_dense(number, r.learner.save())
        self.totals.commits += 1
        self.totals.rows_changed += flushed.changed
        self.totals.rows_merged += flushed.merged
        self.totals.written_bytes += r.log.written_bytes
        r.log.written_bytes = 0
        manifest = self._manifest(number, name, dense, state())
        self._commits.publish(manifest)
        self.newest = manifest
        r.log.describe(r.places.chunks.tails)
        self._forget_others(give_up)
        r.places.begin_growth(at_least)
        self._hold_reserve()
        self.totals.commit_seconds += time.perf_counter() - start

    def _manifest(self, number: int, name: str | None, dense: str, state: dict[str, Any]) -> Manifest:
        r = self._resources
        chunks = r.places.chunks
        assert chunks.live_rows == len(r.places.map), "the log does not hold every row once"
        described = metadata(r.row, r.log.chunk_rows, chunks.tails, chunks.shards)
        return Manifest(
            number=number,
            name=name,
            num_shards=chunks.shards.num,
            tails=chunks.tails,
            live_rows=len(r.places.map),
            row=r.row.describe(),
            chunk_rows=r.log.chunk_rows,
            chunks=tuple(ChunkState(c, chunks.stale(c), *r.log.checksums[c]) for c in chunks.live().tolist()),
            metadata={file: checksum(content) for file, content in described.items()},
            dense=(dense,),
            state=state,
        )

    def _forget_others(self, give_up: bool) -> None:
        r = self._resources
        kept = self._commits.kept(give_up)
        self._commits.prune(kept)
        r.log.remove(r.log.checksums.keys() - checksums(kept).keys())
        r.places.chunks.present = len(r.log.checksums)

    def _hold_reserve(self) -> None:
        r = self._resources
        # Where less is left, `plan` takes no further block, and the next commit has less to write.
        chunks = min(r.places.commit_chunks, r.places.caps.disk_chunks - r.places.chunks.present)
        self._commits.reserve(max(0, chunks) * r.log.chunk_bytes + dense_bytes(r.learner.model))
