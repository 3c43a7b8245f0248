"""The command `run`: check everything, then train. Also runs as `python -m pipeline.run WORKFLOW`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from pipeline.arguments import REPORT, train_arguments
from pipeline.errors import PipelineError, error_text
from pipeline.machine.process import keep_freed_memory
from pipeline.machine.signals import discard_output, exit_code, heed_interrupts
from pipeline.messages.terminal import visible
from pipeline.settings.changes import override
from pipeline.spans import waiting
from pipeline.spans.guard import EXIT_CODE, GuardStopped
from pipeline.workflow import Workflow, load


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 on success, 1 if the run failed, 2 if anything was wrong before it started, 3 if the
    guard stopped it before a span with bad predictions, 4 if it is done but the first to set a span aside; 130 after
    SIGINT, 143 after SIGTERM, and 141 if its output is no longer read, each after stopping at a commit. Errors are
    printed as one message, without a traceback."""
    args = train_arguments().parse_args(argv)
    try:
        code = train_command(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("interrupted at its end: the commits are kept, and the same command resumes", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return exit_code(discard_output())


def train_command(args: argparse.Namespace) -> int:
    """Train according to the arguments. Returns the exit code."""
    with ExitStack() as stack:
        try:
            if args.track:
                from pipeline.monitor.command import check_extra

                check_extra(args.track, "track")
            if args.rewind is not None:
                return rewind_command(args)
            not_scored = ["metrics.score_spans=false"] if args.no_score else []
            workflow = override(load(args.workflow), [*args.set, *not_scored])
            # These imports take seconds, and a mistake in the workflow is reported without them.
            from pipeline.driver.advice import advice_after
            from pipeline.driver.finished import finished
            from pipeline.driver.resume import begun_of
            from pipeline.driver.session import open_session, plan_session
            from pipeline.monitor.report import span_table, summary

            heed_interrupts()
            keep_freed_memory()
            if args.explain:
                explain_command(args, workflow)
                return 0
            cluster = args.serial, args.workers, args.scheduler
            session = plan_session(
                workflow, args.run_dir, *cluster, say, args.dashboard, args.fresh, args.extend or (), args.known_ok,
                args.as_is, args.without, args.like, args.close,
            )  # fmt: skip
            if not args.fresh and (lines := finished(session)):
                print("\n".join(lines))
                return 0
            driver = stack.enter_context(open_session(session, args.fresh))
            driver.lists_again = not args.listed
            if args.track:
                from pipeline.monitor.track import Tracker

                driver.runner.observers.append(Tracker(args.track, session.run_dir))
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
            return EXIT_CODE if isinstance(error, GuardStopped) else 1
        if driver.held:
            say(f"warning: set aside, {driver.held}")
        elif result is None and not driver.changed:
            print(driver.what_is_kept())
    if (driver.held or driver.changed) and not driver.pauses.signal:
        return train_command(_goes_on(args, driver, begun_of(session.run_dir).waiting or waiting.Waiting(())))
    if result is not None:
        print(visible("\n".join([summary(result), *span_table(result["epochs"], result.get("out_of_place", ()))])))
        if advice := advice_after(driver):
            print(advice)
        print(f"report: {session.run_dir / REPORT}")
        print(f"left in {session.run_dir}: {', '.join(sorted(path.name for path in session.run_dir.iterdir()))}")
    if driver.pauses.signal:
        return exit_code(driver.pauses.signal)
    return waiting.EXIT_CODE if driver.set_aside or args.held else 0


def _goes_on(args: argparse.Namespace, driver: Any, spans: waiting.Waiting) -> argparse.Namespace:
    """The arguments with which a run goes on after a session that ended early. `spans`: those that still wait."""
    choices = {name: [label for label in getattr(args, name) if label in spans] for name in ("as_is", "without")}
    done = {"held": args.held or driver.held or driver.set_aside, "listed": args.listed or driver.changed}
    return argparse.Namespace(**{**vars(args), **choices, **done, "fresh": False})


def rewind_command(args: argparse.Namespace) -> int:
    """Go back to the commit before a span. Returns the exit code. Raises ValueError if that is not possible."""
    from pipeline.driver.rewind import rewind
    from pipeline.driver.session import folder_of_run

    if others := [name for name in ("extend", "fresh", "explain") if getattr(args, name)]:
        raise ValueError(f"--rewind trains nothing; give --{others[0]} in the next command")
    workflow = override(load(args.workflow), args.set)
    print(visible("\n".join(rewind(folder_of_run(workflow, args.run_dir), args.rewind))))
    return 0


def explain_command(args: argparse.Namespace, workflow: Workflow) -> None:
    """Print what a run does and needs, and where its rows would be found. Raises ValueError if anything is wrong with
    the run."""
    from pipeline.driver.session import plan_session
    from pipeline.preflight.explain import explain, explained
    from pipeline.preflight.hit_curve import hit_curve

    report = partial(print, file=sys.stderr, flush=True) if args.json else say
    session = plan_session(
        workflow, args.run_dir, args.serial, args.workers, args.scheduler, report, args.dashboard,
        extend=args.extend or (), known_ok=args.known_ok,
    )  # fmt: skip
    setup = session.set_up()
    if args.json:
        print(json.dumps(explained(setup) | {"hits": hit_curve(session.checked, setup).as_json(setup)}))
        return
    print(explain(setup, args.all), flush=True)
    print("\n".join(hit_curve(session.checked, setup).lines(setup)))


def say(line: str) -> None:
    """Print a line: to stderr if it is a warning, else to stdout."""
    print(line, file=sys.stderr if line.startswith("warning: ") else sys.stdout, flush=True)


if __name__ == "__main__":
    sys.exit(main())
