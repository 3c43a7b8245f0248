"""The preparation as a whole: the steps, what is left of each, progress, and what is left behind at the end."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipeline.cluster.tasks import Tasks
from pipeline.data.files import SPLITS
from pipeline.failures import PipelineError
from pipeline.monitor.row_progress import RowProgress
from pipeline.prepare.durable import PARTIAL
from pipeline.prepare.manifest import COMMAND, summarize, write_manifest
from pipeline.prepare.parts import Made, Records
from pipeline.prepare.pieces import Piece
from pipeline.prepare.steps import Job, do_piece
from pipeline.prepare.stub import STUB, workflow_text
from pipeline.prepare.uniques import counts, fold
from pipeline.prepare.vocabulary import merge, path_of
from pipeline.storage.files import Files

TICK_SECONDS = 0.5


def begin(job: Job) -> None:
    """Folders, and nothing in them that a killed process left under temporary names."""
    steps = ("count", "counts") if job.vocabulary else ()
    folders = [*(job.out / split for split in SPLITS), *(job.kept / kept for kept in (*steps, "write", "uniques"))]
    for folder in folders:
        Files().make_folder(folder)
    for folder in (*folders, job.out, path_of(job.out, "any").parent):
        for path in folder.glob(f"*{PARTIAL}"):
            Files().remove(path)
    job.stop.unlink(missing_ok=True)


def run(job: Job, pieces: Sequence[Piece], command: dict[str, Any], tasks: Tasks, stop: threading.Event) -> bool:
    """Do what is left; False: it was stopped. ValueError, OSError or PipelineError: what is done stays, and the same
    again goes on."""
    if job.vocabulary:
        if not run_step(job, "count", "counting", pieces, tasks, stop):
            return False
        check_skipped(job, "count")
        merging = partial(merge_one, job)
        for _ in tasks.each("merge", merging, job.vocabulary, TICK_SECONDS):
            if stop.is_set():
                return False
    if not run_step(job, "write", "writing", pieces, tasks, stop):
        return False
    finish(job, pieces, command)
    return True


def merge_one(job: Job, column: str) -> None:
    merge(job.kept / "counts", column, job.minimum, path_of(job.out, column))


def run_step(
    job: Job, step: str, what: str, pieces: Sequence[Piece], tasks: Tasks, stop: threading.Event
) -> bool:  # fmt: skip
    """Whether it was finished; else it was stopped."""
    records, categories = job.records(step), job.of_role("category")
    bytes_of = weights(pieces)
    left = unfinished(pieces, records)
    done = sum(bytes_of.values()) - sum(bytes_of[piece] for piece in left)
    seen = records.names()
    rows, streams = so_far(records, seen)
    for piece in set(pieces) - set(left):
        del streams[piece.file]
    progress = RowProgress(what, sum(bytes_of.values()))
    progress.begin_at(done + streams.total(), rows)
    with progress:
        for ended in tasks.each(step, partial(do_piece, job, step), left, TICK_SECONDS):
            fresh = records.names() - seen
            seen |= fresh
            more, further = so_far(records, fresh)
            rows, streams = rows + more, streams | further
            for piece in ended:
                done += bytes_of[piece]
                del streams[piece.file]
            progress.update(done + streams.total(), rows)
            if step == "write":
                fold(job.kept / "uniques", categories)
            if stop.is_set():
                return False
    if still := unfinished(pieces, records):
        raise PipelineError(f"{what}: {len(still)} of {len(pieces)} pieces were not done; the same command goes on")
    return True


def so_far(records: Records, names: Iterable[str]) -> tuple[int, Counter[int]]:
    """Rows of these parts; and how many bytes were read for them of each source that is a stream."""
    rows, streams = 0, Counter[int]()
    for record in map(records.read, names):
        rows += record.lines - record.skipped
        streams |= Counter({record.file: record.past})
    return rows, streams


def weights(pieces: Sequence[Piece]) -> dict[Piece, int]:
    """Bytes of the input that each piece stands for: of its file's, the part that it is of the file's pieces."""
    whole: dict[int, int] = {}
    for piece in pieces:
        whole[piece.file] = whole.get(piece.file, 0) + piece.past - piece.begin
    sizes = {piece.file: piece.path.stat().st_size for piece in pieces}
    return {p: sizes[p.file] * (p.past - p.begin) // max(1, whole[p.file]) for p in pieces}


def unfinished(pieces: Sequence[Piece], records: Records) -> list[Piece]:
    """The pieces of which some part has no record."""
    following = {first: second for first, second in pairwise(pieces) if first.file == second.file}
    left = []
    for piece in pieces:
        number, made = piece.number, Made(records, piece.file)
        past = following[piece].number if piece in following else None
        # How many parts the last piece of a file has is known from the one that says that it is the last.
        while number in made and not (number + 1 == past or (past is None and made.is_last(number))):
            number += 1
        if number not in made:
            left.append(piece)
    return left


def check_skipped(job: Job, step: str) -> None:
    """ValueError: more lines of all were skipped than --skip-bad allows, though no part alone had too many."""
    totals = [(record.lines, record.skipped) for record in job.records(step)]
    lines, skipped = (sum(numbers) for numbers in zip(*totals, strict=True))
    if skipped > job.bad.allowed(lines):
        raise ValueError(
            f"{skipped:,} of {lines:,} lines are bad, and --skip-bad {job.bad.share} allows "
            f"{job.bad.allowed(lines):,}; correct the sources, or begin anew with a larger share"
        )


def finish(job: Job, pieces: Sequence[Piece], command: dict[str, Any]) -> None:
    """Write what describes the output, the manifest last; then forget how it came to be."""
    check_skipped(job, "write")
    summary = summarize(job, pieces, command, counts(job.kept / "uniques", job.of_role("category")))
    if not summary["splits"]["train"]["rows"]:
        raise ValueError("no row is left for training; begin anew with another --split")
    Files().replace(job.out / STUB, [workflow_text(summary).encode()])
    write_manifest(job.out, summary, job.records("write"))
    forget(job.kept)


def forget(kept: Path) -> None:
    """Leave nothing but the command. Killed within it, the next run does the rest."""
    for path in kept.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != COMMAND:
            path.unlink()
