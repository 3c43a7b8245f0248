"""The whole preparation: remaining pieces, progress, and final files."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pipeline.files.plausible import MAX_OUTSIDE
from pipeline.files.stores import stamp_of
from pipeline.machine.threads import TaskThreads
from pipeline.monitor.progress import RowProgress
from pipeline.prepare.draft import draft_of, workflow_name, workflow_text
from pipeline.prepare.layout import SORTED, STATISTICS, STUB, WRITE, remove_kept, remove_partials
from pipeline.prepare.lines import may_skip
from pipeline.prepare.manifest import Command, check_sources, summarize, write_manifest
from pipeline.prepare.parts import Records, joined_span
from pipeline.prepare.sequences import sort_events
from pipeline.prepare.splits import ToScore, asked_for, reaches
from pipeline.prepare.steps import Job, check_parts_are_those, do_piece, remove_damaged_parts, unfinished
from pipeline.prepare.stretches import Piece
from pipeline.settings import SPLITS
from pipeline.storage.files import Files, checksum

TICK_SECONDS = 0.5
PARTS_A_CHECK = 64


def begin(job: Job) -> None:
    """Create the output's folders, and remove temporary files left in them by a killed process."""
    kept = (SORTED, WRITE) if job.format.histories else (WRITE,)
    splits = asked_for(job.split) if isinstance(job.split, ToScore) else SPLITS
    for folder in (*(job.out / split for split in splits), *(job.kept / name for name in kept)):
        Files().make_folder(folder)
    remove_partials(job.out)


def run(job: Job, pieces: Sequence[Piece], command: Command, tasks: TaskThreads, stop: threading.Event) -> bool:
    """Make what is still missing. Return False if stopped before the end. After a ValueError, OSError or PipelineError
    all finished parts are kept, and another call resumes from there."""
    if histories := job.format.histories:
        sources = checksum(command.model_dump_json(include={"sources"}).encode())
        if not sort_events(histories, sources, tasks.num_threads, stop):
            return False
        check_sources(command, (*histories.examples, *histories.events))
    check_done(job, tasks, stop)
    if stop.is_set() or not write_parts(job, pieces, command, tasks, stop):
        return False
    finish_preparation(job, pieces, command)
    return True


def check_done(job: Job, tasks: TaskThreads, stop: threading.Event) -> None:
    """Check the parts made by earlier processes. Parts that are not as written will be made again."""
    names = sorted(job.records.names())
    batches = [names[at : at + PARTS_A_CHECK] for at in range(0, len(names), PARTS_A_CHECK)]
    for _ in tasks.each("check", partial(remove_damaged_parts, job), batches, TICK_SECONDS):
        if stop.is_set():
            return
    if lost := len(names) - len(job.records.names()):
        print(f"{lost:,} of {len(names):,} parts are damaged or incomplete, and are made again", file=sys.stderr)


def write_parts(
    job: Job, pieces: Sequence[Piece], command: Command, tasks: TaskThreads, stop: threading.Event
) -> bool:  # fmt: skip
    """Make the unfinished parts. Return False if stopped before the end."""
    records = job.records
    bytes_of = weights(pieces)
    left = unfinished(pieces, records)
    done = sum(bytes_of.values()) - sum(bytes_of[piece] for piece in left)
    seen = records.names()
    rows, streams = so_far(records, seen)
    for piece in set(pieces) - set(left):
        del streams[piece.file]
    progress = RowProgress("writing", sum(bytes_of.values()))
    progress.begin_at(done + streams.total(), rows)
    with progress:
        for ended in tasks.each(WRITE, partial(do_piece, job), left, TICK_SECONDS):
            fresh = records.names() - seen
            seen |= fresh
            more, further = so_far(records, fresh)
            rows, streams = rows + more, streams | further
            for piece in ended:
                done += bytes_of[piece]
                del streams[piece.file]
            progress.update(done + streams.total(), rows)
            if stop.is_set():
                return False
    check_sources(command, (piece.path for piece in pieces))
    return True


def so_far(records: Records, names: Iterable[str]) -> tuple[int, Counter[int]]:
    """Number of rows of these parts, and the bytes read so far from each source that is a stream."""
    rows, streams = 0, Counter[int]()
    for record in map(records.read, names):
        rows += record.lines - record.skipped
        streams |= Counter({record.file: record.end})
    return rows, streams


def weights(pieces: Sequence[Piece]) -> dict[Piece, int]:
    """Input bytes of each piece: the file's size times the piece's share of all ranges of the file."""
    whole: dict[int, int] = {}
    for piece in pieces:
        whole[piece.file] = whole.get(piece.file, 0) + piece.end - piece.begin
    sizes = {piece.file: stamp_of(str(piece.path)).size for piece in pieces}
    return {p: sizes[p.file] * (p.end - p.begin) // max(1, whole[p.file]) for p in pieces}


def check_totals(job: Job) -> None:
    """Raises ValueError if the total of skipped lines exceeds what --skip-bad allows, although no part's number did, or
    if more than MAX_OUTSIDE of the times are outside 1990 to 2100."""
    totals = [(record.lines, record.skipped, record.outside) for record in job.records]
    lines, skipped, outside = (sum(numbers) for numbers in zip(*totals, strict=True))
    if skipped > (allowed := may_skip(job.skip_bad, lines)):
        raise ValueError(
            f"{skipped:,} of {lines:,} lines are bad, and --skip-bad {job.skip_bad} allows {allowed:,}; "
            "correct the sources, or give a larger --skip-bad"
        )
    said = f"{outside:,} of {lines - skipped:,} rows have times outside 1990 to 2100"
    if outside > MAX_OUTSIDE * (lines - skipped):
        raise ValueError(f"--split time: {said}; correct them, leave the rows out, or split by another column")
    if outside:
        print(f"{said}, and are for training")


def finish_preparation(job: Job, pieces: Sequence[Piece], command: Command) -> None:
    """Write the workflow, then the manifest, then remove the state of the preparation."""
    check_totals(job)
    check_parts_are_those(job, pieces)
    summary = summarize(job, command)
    check_rows(job, command, summary["splits"])
    if summary["splits"]["train"]["rows"]:
        with_nulls = job.format.histories.with_nulls() if job.format.histories else ()
        draft = draft_of(summary, workflow_name(job.out.name), "Path(__file__).parent", with_nulls)
        if draft.numbers:
            # Its imports take a second.
            from pipeline.prepare.statistics import write_numbers

            draft = replace(draft, numbers=write_numbers(draft, job.out, job.out / STATISTICS))
        stub, text = job.out / STUB, workflow_text(draft).encode()
        if stub.exists() and stub.read_bytes() != text:
            raise ValueError(f"{stub} differs from the one that would be written; move it to keep it")
        Files().replace(stub, [text])
    write_manifest(job.out, summary, job.records)
    # If killed during the removal, the next run completes it.
    remove_kept(job.out)


def check_rows(job: Job, command: Command, splits: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises ValueError if there are no rows for training, or for another requested split."""
    wanted = asked_for(job.split) if isinstance(job.split, ToScore) else ["train", *asked_for(job.split)]
    if empty := [name for name in wanted if not splits[name]["rows"]]:
        text = f"--split {command.options['split']}: " if command.options["split"] else ""
        why = reaches(job.split, joined_span(split.get("span") for split in splits.values()))
        raise ValueError(f"{text}no row is for {' or '.join(empty)}{why}; give another --split, with --fresh")
