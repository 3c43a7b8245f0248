"""Sums of the epoch that a commit interrupts: those of the progressive metrics with their scores, and the counts of
clipped gradients. With them, a resumed epoch reports what an uninterrupted one would.

RUN_DIR/commits/000007.sums contains the sums of each worker, in float64, followed by the entries of all workers, table
by table. Entries are in no particular order; the words of an entry are contiguous (see `Evaluation.tables`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pipeline.cluster.crew import Crew
from pipeline.commits.manifest import DETAILS, Commits, Manifest
from pipeline.commits.run_state import SavedSums
from pipeline.storage.durable import size_of
from pipeline.storage.files import Damaged, checksum_of
from pipeline.worker.worker import Worker
from pipeline.workflow import Metrics

ENTRIES_AT_ONCE = 1 << 17


def write_sums(crew: Crew, commits: Commits, number: int, metrics: Metrics) -> dict[str, Any]:
    """Write the sums of an unfinished epoch as part of commit `number`. Returns the fields to add to the commit's
    state. The pipeline must be drained. Raises OSError if the disk fails or is full."""
    sums = [part for part in crew.each(Worker.epoch_sums) if part is not None]
    if not any(part.any() for part in sums):
        return {}
    entries: list[int] = []

    def buffers() -> Iterator[bytes]:
        yield np.stack(sums).tobytes()
        for table in range(crew.first(Worker.num_tables)):
            entries.append(0)
            piece = 0
            while any(found := crew.each(Worker.epoch_entries, table, piece)):
                yield from found
                entries[-1] += sum(map(len, found)) // 8
                piece += 1

    digest = commits.files.write(commits.sums_file(number), buffers())
    saved = SavedSums(
        workers=len(sums), sums=len(sums[0]), words=tuple(entries), checksum=digest, group=metrics.group,
        progressive=metrics.progressive,
    )  # fmt: skip
    return {"sums": saved.model_dump(mode="json")}


def read_sums(crew: Crew, commits: Commits, kept: Sequence[Manifest], metrics: Metrics) -> None:
    """Give the workers the sums of the last of `kept`, if it has any: each worker gets its own, or the first gets all
    if the number of workers changed. The first also gets the entries. Sums of other metrics are ignored; the metrics
    then cover only the rest of the epoch. Raises Damaged if the file is not as it was written."""
    state = kept[-1].state.get("sums") if kept else None
    if state is None:
        return
    saved, file = SavedSums.model_validate_json(json.dumps(state)), commits.sums_file(kept[-1].number)
    if (saved.group, saved.progressive) != (metrics.group, metrics.progressive):
        return
    num_bytes = 8 * (saved.workers * saved.sums + sum(saved.words))
    if size_of(file) != num_bytes or checksum_of(file) != saved.checksum:
        raise Damaged(f"{file}: its checksum is not that of commit {kept[-1].number}; {DETAILS}")
    with open(file, "rb") as opened:
        sums_WS = np.fromfile(opened, np.float64, saved.workers * saved.sums).reshape(saved.workers, saved.sums)
        crew.each(Worker.add_epoch_sums, sums_WS)
        for table, num_words in enumerate(saved.words):
            for begin in range(0, num_words, ENTRIES_AT_ONCE):
                words = np.fromfile(opened, np.uint64, min(ENTRIES_AT_ONCE, num_words - begin))
                crew.first(Worker.add_epoch_entries, table, words)
