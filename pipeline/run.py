"""python -m pipeline.run WORKFLOW.py: validate everything, then train."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from pipeline.errors import PipelineError, error_text
from pipeline.machine.memory import keep_freed_memory
from pipeline.machine.signals import discard_output, exit_code, heed_interrupts
from pipeline.settings.changes import override
from pipeline.workflow import load


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 on success, 1 if the run failed, 2 if anything was wrong before it began, 130 after
    SIGINT, 143 after SIGTERM and 141 if nobody reads its output any more, at a commit as well. Errors are printed as
    one message, without a traceback."""
    args = train_arguments().parse_args(argv)
    try:
        code = train_command(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("interrupted at its end: the commits are kept, and the same command goes on", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return exit_code(discard_output())


def train_command(args: argparse.Namespace) -> int:
    """Train as the arguments say, and return the exit code."""
    with ExitStack() as stack:
        try:
            workflow = override(load(args.workflow), args.set)
            # These imports take seconds, and a mistake in the workflow is told without them.
            from pipeline.driver.advice import advice_after
            from pipeline.driver.finished import finished
            from pipeline.driver.session import open_session, plan_session
            from pipeline.monitor.report import print_report

            heed_interrupts()
            keep_freed_memory()
            if args.explain:
                from pipeline.planner.command import explain_command

                explain_command(args, workflow, say)
                return 0
            if args.price is not None:
                raise ValueError("--price is for a prediction; give --explain, too")
            cluster = args.serial, args.workers, args.scheduler
            session = plan_session(workflow, args.run_dir, *cluster, say, args.dashboard)
            if not args.fresh and (lines := finished(session)):
                print("\n".join(lines))
                return 0
            driver = stack.enter_context(open_session(session, args.fresh))
        except BrokenPipeError:
            raise
        except (ValueError, OSError, MemoryError, PipelineError) as error:
            print(f"error: {error_text(error)}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("interrupted before anything was trained", file=sys.stderr)
            return 130
        try:
            result = driver.run()
        except PipelineError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        if result is None:
            print(driver.what_stands())
    if result is not None:
        print_report(result, tables=args.tables)
        if advice := advice_after(driver):
            print(advice)
        print(f"report: {shlex.join(['pipeline', 'report', str(session.run_dir)])}")
        print(f"left in {session.run_dir}: {', '.join(sorted(path.name for path in session.run_dir.iterdir()))}")
    return exit_code(driver.pauses.signal) if driver.pauses.signal else 0


def say(line: str) -> None:
    """Print a line: to stderr if it is a warning, else to stdout."""
    print(line, file=sys.stderr if line.startswith("warning: ") else sys.stdout, flush=True)


FRESH = (
    "start anew; an earlier run is moved aside to DIR.1, DIR.2, ..., and not deleted: a line says where it is, how "
    "large, and how to delete it"
)


def train_arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline.run", description="Train the workflow of a Python file.")
    parser.add_argument("workflow", type=Path, help="a Python file with a module-level `workflow`, or FILE.py:NAME")
    parser.add_argument("--set", action="append", default=[], metavar="a.b=value", help="change a field (JSON or text)")
    parser.add_argument("--run-dir", type=Path, help="folder for all that the run writes (default: runs/NAME)")
    parser.add_argument("--fresh", action="store_true", help=FRESH)
    parser.add_argument("--serial", action="store_true", help="one thread, plain order, no Dask")
    parser.add_argument("--tables", action="store_true", help="print time per stage and rows per tier at the end")
    parser.add_argument("--workers", type=int, metavar="N", help="number of worker processes, one for each GPU if any")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="use the workers of this Dask scheduler's cluster")
    parser.add_argument(
        "--dashboard", metavar="ADDRESS",
        help="where the Dask dashboard listens: PORT (of this machine only), HOST:PORT, :PORT (all addresses of this "
        "machine), or off; if the port is taken, the next free one (default: any port of this machine)",
    )  # fmt: skip
    parser.add_argument(
        "--explain", action="store_true",
        help="say what the run is, what space it will take, and predict its speed, memory and disk, and stop",
    )  # fmt: skip
    parser.add_argument(
        "--all", action="store_true", help="with --explain: also every tier and buffer, and where workers are placed"
    )
    parser.add_argument("--json", action="store_true", help="with --explain: the same, and the workflow, as JSON")
    parser.add_argument("--price", type=float, metavar="X", help="with --explain: the price of an hour on this machine")
    return parser


if __name__ == "__main__":
    sys.exit(main())
