"""python -m pipeline export RUN --out DIR: make a servable, the files that scores need without the run."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.machine.aside import move_output_aside
from pipeline.machine.memory import keep_freed_memory
from pipeline.machine.signals import heed_interrupts
from pipeline.serving.arguments import run_command, size_argument


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 if the servable is complete, 1 if training deleted the commit, 2 if an
    argument, the commit or the disk is wrong, 130 after an interrupt. The same command resumes where it stopped."""
    args = export_arguments().parse_args(argv)
    return run_command(lambda: export_command(args), "finished files are kept, and the same command resumes")


def export_command(args: argparse.Namespace) -> str:
    """Export as the arguments say. Returns the last lines to print."""
    # These imports take seconds, and --help needs none of them.
    from pipeline.serving.commit import open_commit
    from pipeline.storage.lock import RunLock

    if args.format == "parquet" and (args.publish or args.precision != "float32" or args.prior_correction != 1):
        raise ValueError("--format parquet does not take --publish, --precision or --prior-correction; remove them")
    if args.publish and args.out.absolute().parent != args.publish.absolute():
        raise ValueError(f"--publish {args.publish}: --out {args.out} is not a folder directly below it; name one")
    opened = open_commit(args.run, args.commit, args.workflow)
    # These take longer still, and a wrong path is reported before them.
    from pipeline.serving.exporting import ExportSettings, export, publish
    from pipeline.serving.parquet_export import export_parquet

    heed_interrupts()
    keep_freed_memory()
    with opened.held as held, RunLock(args.out):
        print(f"commit {held.number}{f' ({held.manifest.name})' if held.manifest.name else ''} of {args.run}")
        if args.fresh and (moved := move_output_aside(args.out, args.run)):
            print(moved)
        settings = ExportSettings(precision=args.precision, negatives=args.prior_correction, memory=args.memory)
        if args.format == "parquet":
            rows = export_parquet(opened, args.out, settings)
            return f"{rows.num_rows:,} rows, {rows.num_unknown:,} of values not in the training data: {args.out}"
        manifest = export(opened, args.out, settings)
    if args.publish:
        publish(args.publish, args.out.name)
    return (
        f"servable {manifest.digest}: {manifest.num_rows:,} rows, {manifest.precision}, in {args.out}\n"
        f"serve it: pipeline serve {shlex.quote(str(args.publish or args.out))}\n"
        f"send an example: {curl_line(args.out, manifest.name)}"
    )


def curl_line(folder: Path, model: str) -> str:
    """Command that sends the example of the servable in `folder` to a server."""
    data = shlex.quote(f"@{folder / 'request.json'}")
    return f"curl -H content-type:application/json -d {data} localhost:8000/v2/models/{model}/infer"


def export_arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline export", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder for the servable (or the Parquet files); unfinished files are in its folder _exporting",
    )  # fmt: skip
    parser.add_argument("--fresh", action="store_true", help="move the contents of --out to a backup first")
    parser.add_argument("--commit", help="best, last or a number (default: best if there is one, else last)")
    parser.add_argument(
        "--format", choices=("servable", "parquet"), default="servable",
        help="parquet: the rows alone, as (table, value, vector), for other programs (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--precision", choices=("float32", "float16", "int8"), default="float32", help="of the rows (%(default)s)"
    )
    parser.add_argument(
        "--prior-correction", type=_share, default=1.0, metavar="SHARE",
        help="share of the negative examples that the training data kept: scores are those for all of them",
    )  # fmt: skip
    parser.add_argument(
        "--publish", type=Path, metavar="FOLDER", help="name the servable, which is below FOLDER, in FOLDER/current"
    )
    parser.add_argument("--workflow", type=Path, help="the workflow's file, if it defines the model class")
    parser.add_argument("--memory", type=size_argument, default="1 GiB", help="memory for sorting rows (%(default)s)")
    return parser


def _share(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 < found <= 1:
        raise argparse.ArgumentTypeError(f"expected a share above 0 and up to 1, got {text}")
    return found


if __name__ == "__main__":
    sys.exit(main())
