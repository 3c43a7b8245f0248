"""python -m pipeline COMMAND ...: the one command of this project. A subcommand's module is imported when it is
called."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from pipeline.machine.signals import discard_output, end_at_interrupt, exit_code
from pipeline.machine.stuck import watch_process
from pipeline.messages.terminal import print_visibly

COMMANDS = {
    "init": ("pipeline.init.main", "look at Parquet or CSV files, and write a workflow that trains on them"),
    "run": ("pipeline.run", "train the workflow of a Python file"),
    "prepare": ("pipeline.prepare.main", "make Parquet files, and a workflow, from raw logs"),
    "watch": ("pipeline.monitor.page.watch", "serve a page that shows a run, while it goes and afterwards"),
    "report": ("pipeline.monitor.page.report", "write a run's report.html: one file that shows all of it"),
    "compare": ("pipeline.monitor.page.compare", "write one page that compares runs: settings, metrics, speed, curves"),
    "doctor": ("pipeline.doctor.main", "look for what is wrong with the data of a workflow, or with a run"),
    "runs": ("pipeline.monitor.runs", "list run directories: models, metrics, and the settings that differ"),
    "trace": ("pipeline.monitor.tools.trace", "write a timeline of a run's stages, which Perfetto opens"),
    "to-tensorboard": ("pipeline.monitor.tools.tensorboard", "write a run's curves for TensorBoard"),
    "to-mlflow": ("pipeline.monitor.tools.mlflow", "log a run's settings, metrics and results to MLflow"),
    "why": ("pipeline.serving.why", "show what each kept commit of a run has of one value"),
    "replay": ("pipeline.replay.main", "tell the hits of each tier for any sizes and policies, from the keys alone"),
    "schema": ("pipeline.notebook.schema", "print the JSON schema of workflows, for editors"),
    "export": ("pipeline.serving.export", "make a servable of a run: rows in pages, the dense model, the features"),
    "score": ("pipeline.serving.score", "score Parquet files with a trained model"),
    "serve": ("pipeline.serving.serve", "answer requests over HTTP with a servable"),
    "verify": ("pipeline.verify", "check every committed bit of a run; --repair goes back to the newest whole commit"),
}
"""Name, module with a `main(argv)`, and one line of help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit code; 2 if there is no subcommand of that name."""
    if argv is None:
        watch_process()
    argv = sys.argv[1:] if argv is None else list(argv)
    print_visibly()
    if not argv or argv[0] in ("-h", "--help"):
        print(usage(), file=sys.stdout if argv else sys.stderr)
        return 0 if argv else 2
    if argv[0] not in COMMANDS:
        print(f"error: there is no command {argv[0]!r}\n{usage()}", file=sys.stderr)
        return 2
    end_at_interrupt()
    module, _ = COMMANDS[argv[0]]
    try:
        code: int = import_module(module).main(argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        return exit_code(discard_output())
    return code


def usage() -> str:
    lines = [f"  {name:16}{what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(["usage: pipeline COMMAND ...   (for details: pipeline COMMAND --help)", *lines])


if __name__ == "__main__":
    sys.exit(main())
