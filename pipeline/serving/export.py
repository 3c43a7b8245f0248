"""pipeline export RUN --out DIR: make a servable, the files that scores need without the run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from pipeline.arguments import export_arguments
from pipeline.errors import PipelineError, error_text
from pipeline.machine.allocator import keep_freed_memory
from pipeline.machine.aside import move_output_aside
from pipeline.machine.signals import heed_interrupts


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 if the servable is whole, 1 if training deleted the commit meanwhile, 2 if an
    argument, the commit or the disk is wrong, 130 after an interrupt. The same command goes on where it was."""
    args = export_arguments().parse_args(argv)
    # These imports take seconds, and --help needs none of them.
    from pipeline.serving.commit import open_commit
    from pipeline.storage.lock import RunLock

    try:
        if args.format == "parquet" and (args.publish or args.precision != "float32" or args.prior_correction != 1):
            raise ValueError("--format parquet knows no --publish, --precision or --prior-correction; leave them out")
        if args.publish and args.out.absolute().parent != args.publish.absolute():
            raise ValueError(f"--publish {args.publish}: --out {args.out} is no folder directly below it; name one")
        opened = open_commit(args.run, args.commit, args.workflow)
        # These take longer still, and a wrong path is told without them.
        from pipeline.serving.example_request import curl_line
        from pipeline.serving.exporting import ExportSettings, export, publish
        from pipeline.serving.parquet_export import export_parquet
        from pipeline.serving.servable import REQUEST_FILE

        heed_interrupts()
        keep_freed_memory()
        with opened.held as held, RunLock(args.out):
            print(f"commit {held.number}{f' ({held.manifest.name})' if held.manifest.name else ''} of {args.run}")
            if args.fresh and (moved := move_output_aside(args.out, args.run)):
                print(moved)
            settings = ExportSettings(args.precision, args.prior_correction, args.memory)
            if args.format == "parquet":
                rows = export_parquet(opened, args.out, settings)
                print(f"{rows.num_rows:,} rows, {rows.num_unknown:,} of values not in the training data: {args.out}")
                return 0
            manifest = export(opened, args.out, settings)
        if args.publish:
            publish(args.publish, args.out.name)
    except (ValueError, OSError, MemoryError) as error:
        print(f"error: {error_text(error, '--memory')}", file=sys.stderr)
        return 2
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: what is done stays, and the same command goes on", file=sys.stderr)
        return 130
    print(f"servable {manifest.digest}: {manifest.num_rows:,} rows, {manifest.precision}, in {args.out}")
    for what, value in manifest.measured.items():
        print(f"{what}: {value:.3g}")
    if REQUEST_FILE in manifest.files:
        print(f"serve it: pipeline serve {shlex.quote(str(args.publish or args.out))}")
        print(f"send an example: {curl_line(args.out, manifest.name)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
