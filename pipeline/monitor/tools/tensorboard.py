"""pipeline to-tensorboard RUN: write the curves of a run as a TensorBoard event file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.arguments import tensorboard_arguments
from pipeline.machine.command import run_command
from pipeline.monitor.command import check_extra, check_run
from pipeline.monitor.tools.reader import Curves

SUFFIX = ".pipeline"
"""Suffix of the files that this command writes, so that it replaces no others."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 on success, 2 if the folder contains no run or TensorBoard is not installed, 130
    after an interrupt."""
    args = tensorboard_arguments().parse_args(argv)
    folder = args.out or args.run / "tensorboard"
    return run_command(lambda: write_events(args.run, folder, args.follow), "what was read is written", heeds=True)


def write_events(run_dir: Path, folder: Path, follow: bool) -> str:
    """Write the points of a run to an event file, replacing that of an earlier call. Returns a line that says where."""
    check_run(run_dir)
    check_extra("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    for old in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
        old.unlink()
    writer, num_points = EventFileWriter(str(folder), filename_suffix=SUFFIX), 0
    try:
        for points in Curves().batches(run_dir, follow):
            for point in points:
                value = Summary.Value(tag=point.name, simple_value=point.value)
                writer.add_event(Event(wall_time=point.at, step=point.step, summary=Summary(value=[value])))
            num_points += len(points)
            writer.flush()
    finally:
        writer.close()
    return f"wrote {num_points:,} points to {folder}; to see them: tensorboard --logdir {folder}"
