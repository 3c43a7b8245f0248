"""pipeline report RUN: write one file that shows all of a run and needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.arguments import REPORT, report_arguments
from pipeline.errors import refuse_remote
from pipeline.machine.command import run_command
from pipeline.monitor.command import check_run
from pipeline.monitor.live.lines import read_live
from pipeline.monitor.page.page import page, write_page
from pipeline.monitor.runs import result_of, settings_of
from pipeline.monitor.story import Story
from pipeline.storage.durable import own_checksum


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 on success, 2 if there is no run or the file cannot be written, 130 if
    interrupted."""
    args = report_arguments().parse_args(argv)

    def write() -> str:
        check_run(args.run)
        refuse_remote("--out", args.out)
        return f"wrote {write_report(args.run, args.out)}: open it in a browser"

    return run_command(write, heeds=True)


def write_report(run_dir: Path, out: Path | None = None) -> Path:
    """Write the report of a run as it is now, and return its path. Raises OSError if it cannot be written, and
    ValueError if a file of the run is damaged."""
    story, result = Story().add_all(read_live(run_dir)), sound_result(run_dir)
    settings = settings_of(run_dir) if (run_dir / "workflow.json").is_file() else {}
    path = out or run_dir / REPORT
    write_page(path, page(run_dir, story, settings, result))
    return path


def sound_result(run_dir: Path) -> dict[str, Any] | None:
    """Read the `result.json` of a run; None if it has none. Raises ValueError if it is damaged."""
    result = result_of(run_dir)
    if (run_dir / "result.json").is_file() and (not result or result.get("checksum") != own_checksum(result)):
        raise ValueError(f"{run_dir / 'result.json'} is damaged, or was changed; the run's command writes it again")
    return result
