"""pipeline compare RUN RUN ...: one page with the settings that differ, metrics, speed and curves of runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.arguments import MAX_RUNS, compare_arguments
from pipeline.errors import error_text, refuse_remote
from pipeline.machine.signals import heed_interrupts
from pipeline.monitor.page.report import check_told, known_run, sound_result, story_of
from pipeline.monitor.page.story import Story


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 on success, 2 if a folder is no run or the file cannot be written, 130 if
    interrupted."""
    args = compare_arguments().parse_args(argv)
    try:
        heed_interrupts()
        refuse_remote("--out", args.out)
        if not 2 <= len(args.runs) <= MAX_RUNS:
            raise ValueError(f"{len(args.runs)} runs: name 2 to {MAX_RUNS} folders of runs")
        for run_dir in args.runs:
            check_told(run_dir)
        write_comparison(args.runs, args.out)
        print(f"wrote {args.out}")
    except (ValueError, OSError, MemoryError) as error:
        print(f"error: {error_text(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: nothing was written", file=sys.stderr)
        return 130
    return 0


def write_comparison(run_dirs: Sequence[Path], out: Path) -> None:
    """Write the page that compares runs. Raises OSError if it cannot be written."""
    # These imports take a second, and neither --help nor an error needs them.
    from pipeline.monitor.page.compared import Compared, comparison_cards
    from pipeline.monitor.page.static import write_static
    from pipeline.monitor.page.style import RUN_COLORS

    read = [(known_run(run_dir), sound_result(run_dir)) for run_dir in run_dirs]
    compared = [
        Compared(name, color, story_of(run_dir), *of)
        for run_dir, name, color, of in zip(run_dirs, names_of(run_dirs), RUN_COLORS, read, strict=False)
    ]
    write_static(out, "Comparison of runs", comparison_cards(compared), Story())


def names_of(run_dirs: Sequence[Path]) -> list[str]:
    """Names of folders: the last parts of their paths, as many as tell them apart."""
    parts = [path.resolve().parts for path in run_dirs]
    for last in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-last:]) for each in parts]
        if len({*names}) == len(names):
            return names
    return [str(path) for path in run_dirs]


if __name__ == "__main__":
    sys.exit(main())
