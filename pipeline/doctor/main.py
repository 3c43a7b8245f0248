"""pipeline doctor WORKFLOW|RUN: look for what is wrong with the data of a workflow, or with a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from pipeline.arguments import doctor_arguments
from pipeline.doctor.finding import Finding
from pipeline.errors import PipelineError, error_text, refuse_remote
from pipeline.settings.changes import override
from pipeline.workflow import Workflow, load


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 if no fault is found, 1 if there are faults, 2 if an argument, the run or the data
    cannot be read, 130 after an interrupt."""
    args = doctor_arguments().parse_args(argv)
    try:
        refuse_remote("the workflow or run", args.target)
        workflow, run_dir = target_of(args.target, args.workflow, args.set)
        # These imports take seconds, and a wrong path is reported without them.
        from pipeline.doctor.diagnose import diagnose

        # Of JSON, stdout has nothing else.
        findings = diagnose(workflow, run_dir, _say if not args.json else _say_aside)
    except (ValueError, OSError, MemoryError, PipelineError) as error:
        print(f"error: {error_text(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: nothing was changed", file=sys.stderr)
        return 130
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        print_findings(findings, _say)
    return int(any(finding.level == "fault" for finding in findings))


def target_of(target: Path, file: Path | None, settings: Sequence[str]) -> tuple[Workflow, Path | None]:
    """The workflow to look at, and the run directory if the target is one. Raises ValueError if it is neither."""
    if not target.is_dir():
        if file is not None:
            raise ValueError(f"--workflow is for a run, and {target} is no folder; name the workflow's file alone")
        return override(load(target), settings), None
    from pipeline.serving.commit import open_commit

    opened = open_commit(target, None, file)
    opened.held.close()
    return override(opened.workflow, settings) if settings else opened.workflow, target


def print_findings(findings: Sequence[Finding], say: Callable[[str], None]) -> None:
    """Say faults, then remarks."""
    if all(finding.level != "fault" for finding in findings):
        say("no fault found")
    for level in ("fault", "remark"):
        of_level = [finding for finding in findings if finding.level == level]
        if of_level:
            say(f"{len(of_level)} {level}{'s' * (len(of_level) != 1)}:")
        for finding in of_level:
            indented = finding.text.replace("\n", "\n    ")
            say(f"  {finding.kind}: {indented}")


def _say(line: str) -> None:
    print(line, flush=True)


def _say_aside(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
