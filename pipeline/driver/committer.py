"""Taking a commit: everything that a drained pipeline holds becomes durable together.

Two phases: every worker writes its part under names that no commit names; then the driver renames one manifest that
names them all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pipeline.cluster.team import Crew
from pipeline.commits.manifest import Commits, Manifest, join
from pipeline.commits.reopen import checksums
from pipeline.monitor.history import DiskTotals


class Committer:
    """Belongs to the driver; only for a drained pipeline."""

    def __init__(self, crew: Crew, commits: Commits, newest: Manifest | None, totals: DiskTotals) -> None:
        self._crew = crew
        self._commits = commits
        self.newest = newest
        """The commit that a run would go on from now."""
        self.totals = totals

    def commit(
        self, state: Callable[[], dict[str, Any]], name: str | None = None, at_least: int = 0, give_up: bool = False
    ) -> None:
        """Publish a commit, then delete what no kept one needs. OSError: `newest` stands, this one if it got so far.

        `state`: called once all rows are written. `at_least`: chunks that must fit in before the next commit.
        `give_up`: keep no older commit without a name.
        """
        start = time.perf_counter()
        number = self.newest.number + 1 if self.newest else 1
        flushed = self._crew.each("flush", number)
        replicas = self._crew.replicas()
        dense = tuple(self._commits.write_dense(number, arrays, replica) for replica, arrays in enumerate(replicas))
        self.totals.commits += 1
        for part in flushed:
            self.totals.rows_changed += part.changed
            self.totals.rows_merged += part.merged
            self.totals.written_bytes += part.written_bytes
        manifest = replace(join([part.part for part in flushed]), name=name, dense=dense, state=state())
        self._commits.publish(manifest)
        self.newest = manifest
        kept = self._commits.kept(give_up)
        self._commits.prune(kept)
        self._crew.each("settle", list(checksums(kept)), at_least)
        self.totals.commit_seconds += max(0.0, time.perf_counter() - start)
