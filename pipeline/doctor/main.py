"""pipeline doctor WORKFLOW|RUN: check a workflow's data, or a run, for faults."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from pipeline.arguments import doctor_arguments
from pipeline.doctor.finding import Finding
from pipeline.errors import refuse_remote
from pipeline.machine.command import run_command
from pipeline.settings.changes import override
from pipeline.workflow import Workflow, load


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 if no fault is found, 1 if there are faults, 2 if an argument, the run or the data
    cannot be read, 130 after an interrupt."""
    args = doctor_arguments().parse_args(argv)
    return run_command(lambda: doctor_command(args), "nothing was changed", failed=2)


def doctor_command(args: Namespace) -> int:
    """Run the checks, print the findings, and return the exit code."""
    refuse_remote("the workflow or run", args.target)
    workflow, run_dir = target_of(args.target, args.workflow)
    workflow = override(workflow, args.set) if args.set else workflow
    # This import takes seconds, and a wrong path is reported without it.
    from pipeline.doctor.diagnose import diagnose

    # With --json, stdout contains nothing but the JSON.
    findings = diagnose(workflow, run_dir, partial(print, file=sys.stderr if args.json else sys.stdout, flush=True))
    print(json.dumps([asdict(finding) for finding in findings], indent=1) if args.json else text_of(findings))
    return int(any(finding.level == "fault" for finding in findings))


def target_of(target: Path, of_run: Workflow | Path | None) -> tuple[Workflow, Path | None]:
    """The workflow to check, and the run directory if the target is one. `of_run`: the workflow (or its file) of a run
    that defines its own model class. Raises ValueError if the target is neither."""
    if not target.is_dir():
        if of_run is not None:
            raise ValueError(f"--workflow is for a run, and {target} is not a folder; name the workflow's file alone")
        return load(target), None
    from pipeline.serving.commit import open_commit

    opened = open_commit(target, None, of_run)
    opened.held.close()
    return opened.workflow, target


def text_of(findings: Sequence[Finding]) -> str:
    """Lines of the faults, then of the remarks."""
    lines = [] if any(finding.level == "fault" for finding in findings) else ["no fault found"]
    for level in ("fault", "remark"):
        of_level = [finding for finding in findings if finding.level == level]
        if of_level:
            lines.append(f"{len(of_level)} {level}{'s' * (len(of_level) != 1)}:")
        for finding in of_level:
            indented = finding.text.replace("\n", "\n    ")
            lines.append(f"  {finding.kind}: {indented}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
