"""pipeline compare RUN RUN ...: one page with the settings that differ, metrics, speed and curves of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.arguments import MAX_RUNS, compare_arguments
from pipeline.errors import refuse_remote
from pipeline.machine.command import run_command
from pipeline.machine.signals import heed_interrupts
from pipeline.monitor.command import check_run
from pipeline.monitor.page.report import known_run, sound_result, story_of
from pipeline.monitor.story import Story


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 on success, 2 if a folder is no run or the file cannot be written, 130 if
    interrupted."""
    args = compare_arguments().parse_args(argv)
    heed_interrupts()
    return run_command(lambda: write_comparison(args.runs, args.out))


def write_comparison(run_dirs: Sequence[Path], out: Path) -> str:
    """Write the page that compares runs; returns a line that says where. Raises ValueError if a folder is no run,
    OSError if the page cannot be written."""
    refuse_remote("--out", out)
    if not 2 <= len(run_dirs) <= MAX_RUNS:
        raise ValueError(f"compare takes 2 to {MAX_RUNS} folders of runs, got {len(run_dirs)}")
    for run_dir in run_dirs:
        check_run(run_dir)
    # These imports take a second, and neither --help nor an error needs them.
    from pipeline.monitor.page.compared import Compared, comparison_cards
    from pipeline.monitor.page.page import write_static
    from pipeline.monitor.page.style import RUN_COLORS

    read = [(known_run(run_dir), sound_result(run_dir)) for run_dir in run_dirs]
    compared = [
        Compared(name, color, story_of(run_dir), *of)
        for run_dir, name, color, of in zip(run_dirs, names_of(run_dirs), RUN_COLORS, read, strict=False)
    ]
    write_static(out, "Comparison of runs", comparison_cards(compared), Story())
    return f"wrote {out}: open it in a browser"


def names_of(run_dirs: Sequence[Path]) -> list[str]:
    """Names of folders: the last parts of their paths, as many as make them differ."""
    parts = [path.resolve().parts for path in run_dirs]
    for last in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-last:]) for each in parts]
        if len({*names}) == len(names):
            return names
    return [str(path) for path in run_dirs]
