"""pipeline prepare FORMAT SOURCE... --out DIR: convert raw logs to the Parquet files that workflows read."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote

import pyarrow as pa

from pipeline.errors import error_text, refuse_remote
from pipeline.machine.process import is_command, keep_freed_memory
from pipeline.machine.signals import heed_interrupts, on_signal
from pipeline.machine.threads import TaskThreads
from pipeline.messages.sizes import format_size, format_size_up
from pipeline.prepare.arguments import read_arguments
from pipeline.prepare.command import plan_preparation
from pipeline.prepare.layout import MANIFEST, STUB, remove_kept
from pipeline.prepare.manifest import Prepared, claim, read_prepared
from pipeline.prepare.run import begin, run
from pipeline.prepare.splits import ByTime, asked_for
from pipeline.prepare.steps import Job
from pipeline.settings import SPLITS
from pipeline.storage.lock import RunLock

MEMORY_PER_BYTE = 6
"""Upper bound of a worker's memory per byte of a part's text, while it reads, encodes and writes the part. Measured
with Criteo's layout and 64 MiB: 4.8 to 5.0, for the text, a table of 1.4 times its size, and the unfinished output.
"""
PROCESS_BYTES = 400 << 20
"""Memory for modules and compiled kernels; also measured."""

FAULTS = (ValueError, OSError, RuntimeError, MemoryError, pa.ArrowException)
"""Exceptions that end a preparation with a message. RuntimeError covers PipelineError, RecursionError, and threads that
cannot be started."""


class Stop:
    """Signal handler state: a signal interrupts a preparation that has not started, and asks a running one to stop."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.job: Job | None = None
        """Running job, to be stopped in an orderly way; None before it starts."""
        self.begun = False
        """True when parts of the output may exist."""

    def begin(self, job: Job) -> None:
        """Record that the parts of a job are being made."""
        self.job, self.begun = job, True

    def ask(self, name: str) -> None:
        if self.job is None:
            raise KeyboardInterrupt
        print(f"{name}: ending after the parts that are being made; a second signal ends it at once", file=sys.stderr)
        self.asked.set()
        self.job.stop.set()


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 on success, 2 for an error before any output was made, 1 if the preparation ended early,
    130 if it was interrupted before it started. Errors print one message without a traceback."""
    heed_interrupts()
    if argv is None or is_command():
        leave_pandas_out()
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["statistics"]:
        from pipeline.prepare.statistics import statistics_command

        return statistics_command(words[1:])
    args = read_arguments(words)
    keep_freed_memory()
    stop = Stop()
    with on_signal(stop.ask):
        try:
            return prepare(args, stop)
        except FAULTS as error:
            print(f"error: {error_text(error, '--workers or --piece-size') or type(error).__name__}", file=sys.stderr)
            if stop.begun:
                corrected = ", when a source is corrected, or with another --skip-bad" * isinstance(error, ValueError)
                print(f"finished parts stay: the same command resumes{corrected}", file=sys.stderr)
            return 1 if stop.begun else 2
        except KeyboardInterrupt:
            print("interrupted before anything was made", file=sys.stderr)
            return 130


def prepare(args: argparse.Namespace, stop: Stop) -> int:
    if args.into and args.format == "sequences":
        from pipeline.prepare.by_day import prepare_days

        return prepare_days(args, stop.begin, stop.asked)
    if args.out is None or not args.sources:
        raise ValueError("sequences needs SOURCE... and --out, or --examples and --into")
    refuse_remote("--out", args.out)
    out: Path = args.out.resolve() if args.out.is_symlink() else args.out
    job, pieces, command = plan_preparation(args, out)
    with RunLock(out):
        if prepared := claim(job, out, args.fresh, command):
            remove_kept(out)
            print(f"{out} is finished: {MANIFEST} says what is in it")
        else:
            begin(job)
            stop.begin(job)
            tasks = TaskThreads(args.workers)
            most, more = format_size_up(MEMORY_PER_BYTE * args.piece_size), format_size(PROCESS_BYTES)
            print(
                f"{tasks.num_threads} parts at a time, of {format_size(args.piece_size)} of text: up to {most} of "
                f"memory each, and {more} in addition"
            )
            if not run(job, pieces, command, tasks, stop.asked):
                print("stopped: finished parts stay, and the same command resumes")
                return 1
            prepared = read_prepared(out, command)
        for line in report_lines(job, prepared):
            print(line)
        if args.no_label:
            print(f"no labels; score it: pipeline score RUN {quote(str(out / 'test'))} --out FOLDER")
        else:
            print(f"workflow: {out / STUB}; pipeline run {quote(str(out / STUB))} trains it")
    return 0


def leave_pandas_out() -> None:
    """Prevent pyarrow from importing pandas, if installed, for its first scalar: the import takes longer than a small
    preparation. Afterwards this process cannot convert Arrow tables to pandas."""
    if "pandas" not in sys.modules:
        sys.modules["pandas"] = None  # type: ignore[assignment]
        pa.scalar(0)
        del sys.modules["pandas"]


def report_lines(job: Job, prepared: Prepared) -> Iterator[str]:
    """Lines of the report. All the data is also in _prepared.json."""
    yield from aligned(_split_rows(job, prepared))
    yield from job.format.notes
    lines, skipped = (sum(numbers) for numbers in zip(*((s.lines, s.skipped) for s in prepared.sources), strict=True))
    if skipped or job.skip_bad is not None:
        files = sum(source.skipped > 0 for source in prepared.sources)
        where = (
            f", in {files:,} of {len(prepared.sources):,} files; {MANIFEST} says how many of each" if skipped else ""
        )
        yield f"skipped as bad: {skipped:,} of {lines:,} lines{where}"


def _split_rows(job: Job, prepared: Prepared) -> Iterator[Sequence[str]]:
    labels = list(prepared.splits["train"].positives)
    column = (f"{job.split.column} from .. to",) if isinstance(job.split, ByTime) else ()
    yield "split", "rows", *(f"positive: {label}" for label in labels), *column
    asked = asked_for(job.split)
    for name in SPLITS:
        split = prepared.splits[name]
        if split.rows or name in asked:
            rates = (f"{split.positives[label]:,} ({split.positive_rate.get(label, 0):.2%})" for label in labels)
            span = (f"{split.span[0]} .. {split.span[1]}" if split.span else "-",) if column else ()
            yield name, f"{split.rows:,}", *rates, *span


def aligned(rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table: the first column is left-aligned, the others right-aligned."""
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for first, *others in cells:
        yield "  ".join([first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(others, widths[1:], strict=True))])
