"""pipeline to-tensorboard RUN: write the curves of a run as TensorBoard reads them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.arguments import tensorboard_arguments
from pipeline.monitor.tools.reading import check_extra, read_run
from pipeline.monitor.tools.scalars import Scalars, line_batches

SUFFIX = ".pipeline"
"""End of the names of this command's files, so that it replaces no others."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 on success, 2 if the folder holds no run that can be read or TensorBoard is not
    installed, 130 after an interrupt."""
    args = tensorboard_arguments().parse_args(argv)
    folder = args.out or args.run / "tensorboard"

    def read() -> str:
        num_scalars = write_events(args.run, folder, args.follow)
        return f"left in {folder}: {num_scalars:,} points; tensorboard --logdir {folder}"

    return read_run(args.run, read)


def write_events(run_dir: Path, folder: Path, follow: bool) -> int:
    """Write the scalars of a run to an event file, in place of one that an earlier call wrote. Returns their number."""
    check_extra("tensorboard", "tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    for old in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
        old.unlink()
    writer, scalars, num_scalars = EventFileWriter(str(folder), filename_suffix=SUFFIX), Scalars(), 0
    try:
        for lines in line_batches(run_dir, follow):
            for scalar in (scalar for line in lines for scalar in scalars.of(line)):
                value = Summary.Value(tag=scalar.tag, simple_value=scalar.value)
                writer.add_event(Event(wall_time=scalar.at, step=scalar.step, summary=Summary(value=[value])))
                num_scalars += 1
            writer.flush()
    finally:
        writer.close()
    return num_scalars


if __name__ == "__main__":
    sys.exit(main())
