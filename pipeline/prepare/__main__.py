"""python -m pipeline.prepare FORMAT SOURCE... --out DIR: raw logs become the Parquet files that workflows read."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from pipeline.cluster.tasks import local_tasks, tasks_of
from pipeline.failures import PipelineError
from pipeline.memory import keep_freed_memory
from pipeline.prepare.command import arguments, plan
from pipeline.prepare.manifest import MANIFEST, claim
from pipeline.prepare.run import begin, forget, run
from pipeline.prepare.steps import Job
from pipeline.prepare.stub import STUB
from pipeline.prepare.vocabulary import CACHE_BYTES
from pipeline.stop import heed_interrupts, on_signal
from pipeline.storage.lock import RunLock
from pipeline.workflow import format_size

MEMORY_PER_BYTE = 6
"""Of a part's text: what a worker holds at most while it reads, encodes and writes the part. Measured of Criteo's form,
64 MiB: 4.8 to 5.0; it is text, a table of 1.4 times that, and what is being made of it."""
PROCESS_BYTES = 400 << 20
"""Of modules, compiled kernels and Dask, measured as well."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0; 2 for anything wrong before something is made; 1 where it ended early. One message, no traceback."""
    heed_interrupts()
    args = arguments().parse_args(argv)
    keep_freed_memory()
    out: Path = args.out.resolve() if args.out.is_symlink() else args.out
    stop = threading.Event()
    with ExitStack() as stack:
        try:
            job, pieces, command = plan(args, out)
            stack.enter_context(RunLock(out))
            if claim(out, args.fresh, command):
                forget(job.kept)
                print(f"{out} is finished: {MANIFEST} says what is in it, and {STUB} is a workflow of it")
                return 0
            begin(job)
            tasks = stack.enter_context(tasks_of(args.scheduler) if args.scheduler else local_tasks(args.workers))
            print(memory_of(tasks.num_threads, args.piece_size, bool(job.vocabulary)))
        except (ValueError, OSError, PipelineError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("interrupted before anything was made", file=sys.stderr)
            return 130
        try:
            with on_signal(lambda name: ask_to_stop(name, job, stop)):
                finished = run(job, pieces, command, tasks, stop)
        except (ValueError, OSError, PipelineError) as error:
            print(f"error: {error}\nwhat is done stays: the same command goes on", file=sys.stderr)
            return 1
    if not finished:
        print("stopped: what is done stays, and the same command goes on")
        return 1
    print((out / STUB).read_text())
    print(f"left in {out}: {', '.join(sorted(path.name for path in out.iterdir()))}")
    print(f"python -m pipeline.run {out / STUB} trains it")
    return 0


def memory_of(num_threads: int, piece_bytes: int, vocabulary: bool) -> str:
    """What a preparation takes at most, whatever its sources hold."""
    of_part, besides = MEMORY_PER_BYTE * piece_bytes, PROCESS_BYTES + vocabulary * CACHE_BYTES
    return (
        f"{num_threads} parts at a time, of {format_size(piece_bytes)} of text: up to {of_part >> 20:,} MiB of memory "
        f"each, and {besides >> 20:,} MiB besides"
    )


def ask_to_stop(name: str, job: Job, stop: threading.Event) -> None:
    print(f"{name}: ending after the parts that are being made; once more ends it at once", file=sys.stderr)
    stop.set()
    job.stop.touch()


if __name__ == "__main__":
    sys.exit(main())
