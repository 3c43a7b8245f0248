"""Taking commits: the entire state of a drained pipeline becomes durable atomically.

A commit has two phases: every worker writes its part to files that no manifest names yet; then the driver publishes,
with a rename, one manifest that names them all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pipeline.cluster.crew import Crew
from pipeline.commits.manifest import FORMAT, WITH_SPANS, Commits, Manifest, join_parts
from pipeline.commits.reopen import checksums
from pipeline.data.agenda import START, Position
from pipeline.errors import PipelineError
from pipeline.metrics.totals import DiskTotals
from pipeline.spans.passes import SPAN
from pipeline.worker.worker import Worker


def place_of(at: Position) -> str:
    """Name of the epoch or span of a position, for messages."""
    return f"epoch {at.epoch + 1}" if at.span is None else f"span {at.span + 1}"


class Committer:
    """Takes commits. Belongs to the driver; use it only while the pipeline is drained."""

    def __init__(
        self, crew: Crew, commits: Commits, kept: Sequence[Manifest], totals: DiskTotals, position: Position = START
    ) -> None:
        """`kept`: the existing commits. `totals`: counters that every commit adds to. `position`: where the run goes on
        from the newest commit."""
        self._crew = crew
        self._commits = commits
        self.newest = kept[-1] if kept else None
        """Commit from which a resumed run would start; None if there is none."""
        self.opened = self.newest
        """Commit that was opened or taken last."""
        self.began = 0.0
        """Start time of the last commit of this session, from `time.perf_counter`."""
        self.totals = totals
        self.position = position
        """Position at which a run resumes from the newest commit."""

    @property
    def number(self) -> int:
        """Number of the next commit."""
        return self.newest.number + 1 if self.newest else 1

    def what_is_kept(self, is_over: bool, best_is_tested: bool, command: str) -> str:
        """Describe the newest commit for the user, and what `command` does. `is_over`: training is finished.
        `best_is_tested`: the best epoch is tested after training."""
        if self.newest is None:
            return f"nothing is committed yet: {command} starts over"
        number, at = self.newest.number, self.position
        if not is_over:
            where = f"{place_of(at)}, {at.split}, batch {at.batch}" if at.split != SPAN else place_of(at)
            return f"commit {number} is kept, up to {where}: {command} resumes from there"
        on = "name more data with --extend" if at.span is not None else "raise schedule.epochs"
        others = f"writes missing results; {on} to train on from it, or start over with --fresh"
        then = "tests the best epoch" if best_is_tested else others
        return f"commit {number} holds all of the training: {command} {then}"

    def commit(
        self, state: Callable[[], dict[str, Any]], name: str | None = None, at_least: int = 0, give_up: bool = False
    ) -> list[int]:
        """Publish a commit, then delete all files that no kept commit needs. Returns the numbers of the commits before
        spans that were given up. Raises OSError if a write fails; `newest` is then the last published commit, possibly
        the new one.

        `state`: called after all rows are written. `at_least`: number of chunks by which the log must be able to grow
        before the next commit. `give_up`: see `Commits.kept`.
        """
        self.began = start = time.perf_counter()
        number = self.number
        flushed = self._crew.each(Worker.flush, number)
        replicas = self._crew.replicas()
        dense = tuple(self._commits.write_dense(number, arrays, replica) for replica, arrays in enumerate(replicas))
        self.totals.commits += 1
        for part in flushed:
            self.totals.rows_changed += part.changed
            self.totals.rows_merged += part.merged
            self.totals.written_bytes += part.written_bytes
        joined, of_run = join_parts([part.part for part in flushed]), state()
        written = FORMAT if of_run["position"].get("span") is None else WITH_SPANS
        manifest = replace(joined, name=name, dense=dense, state=of_run, format=written)
        self._commits.publish(manifest)
        self.newest = self.opened = manifest
        self.position = Position(**of_run["position"])
        kept = self._commits.kept(give_up)
        given_up = [m.number for m in self._commits.kept_spans() if m not in kept]
        self._commits.prune(kept)
        self._crew.each(Worker.settle, list(checksums(kept)), at_least)
        self.totals.commit_seconds += max(0.0, time.perf_counter() - start)
        return given_up

    def reopen(self, manifest: Manifest) -> None:
        """Open this commit on all workers, unless it is the newest, which is already open. Raises PipelineError if it
        cannot be opened."""
        if manifest == self.newest:
            return
        try:
            self._crew.open([manifest])
        except ValueError as error:
            raise PipelineError(str(error)) from error
        self.opened = manifest
