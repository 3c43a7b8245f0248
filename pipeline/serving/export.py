"""pipeline export RUN --out DIR: make a servable, a folder with all that scoring needs without the run."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from pipeline.arguments import export_arguments
from pipeline.errors import COPY_IT, refuse_remote
from pipeline.machine.aside import move_output_aside
from pipeline.machine.process import keep_freed_memory
from pipeline.machine.signals import heed_interrupts, run_command


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 if the servable is complete, 1 if training deleted the commit, 2 if an argument, the
    commit or the disk is wrong, 130 after an interrupt. The same command resumes the export."""
    args = export_arguments().parse_args(argv)
    return run_command(
        lambda: export_command(args), "finished files are kept, and the same command resumes", "--memory"
    )


def export_command(args: argparse.Namespace) -> str:
    """Export according to the arguments. Returns the last lines to print."""
    # These imports take seconds, and --help needs none of them.
    from pipeline.serving.commit import open_commit
    from pipeline.storage.lock import RunLock

    refuse_remote("--out", args.out, way=COPY_IT)
    refuse_remote("--publish", args.publish, way=COPY_IT)
    if args.publish and args.out.absolute().parent != args.publish.absolute():
        raise ValueError(f"--publish {args.publish}: --out {args.out} is not a folder directly below it; name one")
    opened = open_commit(args.run, args.commit, args.workflow)
    # These imports take even longer; a wrong path is reported before them.
    from pipeline.serving.exporting import ExportSettings, export, publish

    heed_interrupts()
    keep_freed_memory()
    with opened.held as held, RunLock(args.out):
        print(f"commit {held.number}{f' ({held.manifest.name})' if held.manifest.name else ''} of {args.run}")
        if args.fresh and (moved := move_output_aside(args.out, args.run)):
            print(moved)
        settings = ExportSettings(precision=args.precision, negatives=args.prior_correction, memory=args.memory)
        manifest = export(opened, args.out, settings)
    if args.publish:
        publish(args.publish, args.out.name)
    return (
        f"servable {manifest.digest}: {manifest.num_rows:,} rows, {manifest.precision}, in {args.out}\n"
        f"serve it: pipeline serve {shlex.quote(str(args.publish or args.out))}\n"
        f"send an example: {curl_line(args.out, manifest.name)}"
    )


def curl_line(folder: Path, model: str) -> str:
    """Shell command that sends the example of the servable in `folder` to a server."""
    data = shlex.quote(f"@{folder / 'request.json'}")
    return f"curl -H content-type:application/json -d {data} localhost:8000/v2/models/{model}/infer"
