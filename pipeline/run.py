"""The command `run`: check everything, then train. `python -m pipeline.run WORKFLOW` is the same."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from pydantic import ValidationError

from pipeline.arguments import train_arguments
from pipeline.errors import PipelineError, did_you_mean, error_text
from pipeline.machine.allocator import keep_freed_memory
from pipeline.machine.signals import discard_output, exit_code, heed_interrupts
from pipeline.messages.problems import Location, problems
from pipeline.optimizer import ROW_OPTIMIZERS
from pipeline.workflow import Workflow, kind_name, load


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 on success, 1 if the run failed, 2 if anything was wrong before it began; 130 after
    SIGINT, 143 after SIGTERM and 141 if its output is no longer read, all of which stop it at a commit. Errors are
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
    """Train as the arguments say, and return the exit code."""
    with ExitStack() as stack:
        try:
            workflow = override(load(args.workflow), args.set)
            # These imports take seconds, and a mistake in the workflow is reported without them.
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


def override(workflow: Workflow, settings: Sequence[str], classes: Mapping[str, Any] | None = None) -> Workflow:
    """Apply the settings `a.b=value` to the workflow, and validate the result as the file's own was. The model class
    stays the object that it is, unless a setting names another one; `classes` has objects for such names. Raises
    ValueError, with the setting, if one is wrong."""
    fields: dict[str, Any] = workflow.model_dump(mode="json")
    rows_given = set(workflow.optimizer.rows.model_fields_set)
    paths = []
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"--set {setting}: expected a.b=value, such as --set {path or 'seed'}=1")
        *parents, last = path.split(".")
        at = _parent(fields, parents, path)
        if last not in at and (inside := list(_paths_to(last, at))):
            meant = " or ".join(repr(".".join([*parents, found])) for found in inside)
            raise ValueError(f"--set {path}: the workflow has no {path}; did you mean {meant}?")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        except RecursionError as error:
            raise ValueError(f"--set {path}: the value is nested too deeply") from error
        if path == "optimizer.rows.kind" and value != at["kind"]:
            _switch_rows(at, value, rows_given)
        elif parents == ["optimizer", "rows"]:
            rows_given.add(last)
        at[last] = value
        paths.append(path)
    try:
        known = {kind_name(workflow.model.kind): workflow.model.kind} | dict(classes or {})
        changed = Workflow.model_validate_json(json.dumps(fields), context=known)
    except (ValidationError, RecursionError) as error:
        if isinstance(error, RecursionError) or "recursion limit exceeded" in str(error):
            raise ValueError("--set: a value is nested too deeply") from error
        lines = [f"{_set_at(problem.path, paths)}{problem.text}" for problem in problems(error, in_json=True)]
        raise ValueError("\n       ".join(lines)) from error
    if changed.model.kind is not workflow.model.kind and "model.args" not in paths:
        return _without_unknown_args(changed, {path.split(".")[2] for path in paths if path.startswith("model.args.")})
    return changed


def _without_unknown_args(workflow: Workflow, given: Collection[str]) -> Workflow:
    """Keep, for another model class than the file's, those of the file's arguments that it takes, and all given ones,
    as for another kind of row optimizer."""
    # Models take seconds to import, and only this needs them.
    from pipeline.preflight.check_model import arguments_of

    model, known = workflow.model, arguments_of(workflow.model.kind)
    args = {name: value for name, value in model.args.items() if known is None or name in known or name in given}
    return workflow.model_copy(update={"model": model.model_copy(update={"args": args})})


def _parent(fields: dict[str, Any], parents: Sequence[str], path: str) -> dict[str, Any]:
    """Return the group of settings that a path lies in. Raises ValueError, with the path that is meant, if there is
    none."""
    at: Any = fields
    for depth, parent in enumerate(parents):
        following = at.get(parent) if isinstance(at, dict) else None
        before = ".".join(parents[:depth])
        if isinstance(at, dict) and parent not in at:
            close, hint = did_you_mean(parent, at)
            if close:
                meant = [*parents[:depth], close, *path.split(".")[depth + 1 :]]
                hint = f"; did you mean {'.'.join(meant)!r}?"
            raise ValueError(f"--set {path}: the workflow has no {'.'.join(parents[: depth + 1])}{hint}")
        if not isinstance(at, dict):
            raise ValueError(f"--set {path}: the workflow has no {before}.{parent}; set {before} as a whole, in JSON")
        at = following
    if not isinstance(at, dict):
        whole = ".".join(parents)
        raise ValueError(f"--set {path}: the workflow has no {path}; set {whole} as a whole, in JSON")
    return at


def _paths_to(name: str, group: dict[str, Any]) -> Iterator[str]:
    """Paths of the settings of this name in the groups within a group."""
    for inner, values in group.items():
        if isinstance(values, dict):
            if name in values:
                yield f"{inner}.{name}"
            yield from (f"{inner}.{path}" for path in _paths_to(name, values))


def _switch_rows(rows: dict[str, Any], kind: object, given: Collection[str]) -> None:
    """Keep, for another kind of row optimizer, those of the given fields that it has; the others are its defaults."""
    fields = ROW_OPTIMIZERS[kind].model_fields if isinstance(kind, str) and kind in ROW_OPTIMIZERS else None
    # The fields of an unknown kind are unknown, and its name is refused with the rest.
    for name in [name for name in rows if fields is not None and (name not in given or name not in fields)]:
        del rows[name]


def _set_at(path: Location, settings: Sequence[str]) -> str:
    """Name the last of the settings that touches a field; empty if none does."""
    dotted = ".".join(map(str, path))
    for setting in reversed(settings):
        if f"{dotted}.".startswith(f"{setting}.") or (dotted and f"{setting}.".startswith(f"{dotted}.")):
            return f"--set {setting}: "
    return ""


if __name__ == "__main__":
    sys.exit(main())
