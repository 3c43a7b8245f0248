"""python -m pipeline.run WORKFLOW.py: validate everything, then train."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.errors import PipelineError, error_text
from pipeline.machine.memory import keep_freed_memory
from pipeline.machine.signals import heed_interrupts
from pipeline.workflow import Workflow, load


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 on success, 1 if the run failed, 2 if anything was wrong before it began, 130 after
    an interrupt before or after training. Errors are printed as one message, without a traceback."""
    args = train_arguments().parse_args(argv)
    try:
        return train_command(args)
    except KeyboardInterrupt:
        print("interrupted at its end: the commits are kept, and the same command goes on", file=sys.stderr)
        return 130


def train_command(args: argparse.Namespace) -> int:
    """Train as the arguments say, and return the exit code."""
    # These imports take seconds, and --help needs none of them.
    from pipeline.device.gpu import choose
    from pipeline.driver.open import affinities_for, make_run_dir, open_crew, open_local, recruit, shared_by
    from pipeline.machine.affinity import layout_lines
    from pipeline.monitor.report import print_report
    from pipeline.preflight.explain import explain
    from pipeline.preflight.setup import set_up
    from pipeline.storage.lock import RunLock

    heed_interrupts()
    keep_freed_memory()
    with ExitStack() as stack:
        try:
            world = 1 if args.workers is None else args.workers
            workflow = shared_by(override(load(args.workflow), args.set), world, args.scheduler)
            run_dir = args.run_dir or Path("runs") / workflow.name
            run_dir = run_dir.resolve() if run_dir.is_symlink() else run_dir
            alone = args.workers is None and not args.scheduler
            if args.serial and not alone:
                raise ValueError(
                    "--serial is for one worker in this process; leave it out, or --workers and --scheduler"
                )
            device, spec = (choose(workflow.device), None) if alone else recruit(workflow, world, args.scheduler)
            if spec:
                # "auto" is resolved here, so that all workers use the same kind of device.
                workflow = workflow.model_copy(update={"device": "cuda" if device.on_gpu else "cpu"})
            setup, source = set_up(workflow, device, say, world, args.scheduler is None)
            if args.explain:
                print(explain(setup))
                print("\n".join(layout_lines(affinities_for(device.on_gpu, world, run_dir))))
                return 0
            stack.enter_context(RunLock(run_dir))
            make_run_dir(run_dir, args.fresh)
            opened = (
                open_crew(setup, source, run_dir, spec)
                if spec
                else open_local(setup, source, run_dir, args.serial, device)
            )
            driver = stack.enter_context(opened)
        except (ValueError, OSError, MemoryError, PipelineError) as error:
            print(f"error: {error_lines(error)}", file=sys.stderr)
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
            return 0
    print_report(result)
    print(f"left in {run_dir}: {', '.join(sorted(path.name for path in run_dir.iterdir()))}")
    return 0


def say(line: str) -> None:
    """Print a line: to stderr if it is a warning, else to stdout."""
    print(line, file=sys.stderr if line.startswith("warning: ") else sys.stdout, flush=True)


def train_arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline.run", description="Train the workflow of a Python file.")
    parser.add_argument("workflow", type=Path, help="a Python file with a module-level `workflow`, or FILE.py:NAME")
    parser.add_argument("--set", action="append", default=[], metavar="a.b=value", help="change a field (JSON or text)")
    parser.add_argument("--run-dir", type=Path, help="folder for all that the run writes (default: runs/NAME)")
    parser.add_argument("--fresh", action="store_true", help="start anew, and move an earlier run aside")
    parser.add_argument("--serial", action="store_true", help="one thread, plain order, no Dask")
    parser.add_argument("--workers", type=int, metavar="N", help="number of worker processes, one for each GPU if any")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="use the workers of this Dask scheduler's cluster")
    parser.add_argument(
        "--explain", action="store_true", help="print the workflow and the space it will take, and stop"
    )
    return parser


def override(workflow: Workflow, settings: Sequence[str]) -> Workflow:
    """Apply the settings `a.b=value` to the workflow, and validate the result as the file's own was."""
    fields: dict[str, Any] = workflow.model_dump(mode="json")
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"--set {setting}: expected a.b=value")
        *parents, last = path.split(".")
        at: Any = fields
        for parent in parents:
            at = at.get(parent) if isinstance(at, dict) else None
        if not isinstance(at, dict):
            raise ValueError(f"--set {setting}: the workflow has no {'.'.join(parents)}")
        try:
            at[last] = json.loads(text)
        except json.JSONDecodeError:
            at[last] = text
        except RecursionError as error:
            raise ValueError(f"--set {path}: the value is nested too deeply") from error
    try:
        return Workflow.model_validate_json(json.dumps(fields))
    except RecursionError as error:
        raise ValueError("--set: a value is nested too deeply") from error


def error_lines(error: Exception) -> str:
    """Message of an error; a validation error has one line for each field."""
    if not isinstance(error, ValidationError):
        return error_text(error)
    lines = [
        f"{_path(e['loc']) or error.title}: {e['msg']}" + (f" (got {e['input']!r})" if e["loc"] else "")
        for e in error.errors()
    ]
    return "\n       ".join(lines)


def _path(location: Sequence[int | str]) -> str:
    """Dotted path of a field, as --set takes it: pydantic's location without the kind of the row optimizer."""
    return ".".join(str(part) for at, part in enumerate(location) if location[max(0, at - 1)] != "rows" or not at)


if __name__ == "__main__":
    sys.exit(main())
