"""pipeline report RUN: one file that shows all of a run, without a network."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.arguments import REPORT, report_arguments
from pipeline.errors import PipelineError, error_text, refuse_remote
from pipeline.machine.signals import heed_interrupts
from pipeline.monitor.live.lines import LIVE, Evaluated, follow_live
from pipeline.monitor.page.story import Story
from pipeline.monitor.runs import Run, metrics_lines, result_of, run_in
from pipeline.storage.files import checksum

if TYPE_CHECKING:
    from pipeline.monitor.page.page import Card

OLD = ("auc", "logloss", "metrics")
"""Panels that show something of a run without live.jsonl."""
NICE = 10
"""A report is made with less priority than a run that may go on beside it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0 on success, 2 if there is no run or the file cannot be written, 130 if
    interrupted."""
    args = report_arguments().parse_args(argv)
    try:
        heed_interrupts()
        check_told(args.run)
        refuse_remote("--out", args.out)
        os.nice(NICE)
        path = write_report(args.run, args.out)
        print(f"wrote {path}")
    except (ValueError, OSError, MemoryError) as error:
        print(f"error: {error_text(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: no report was written", file=sys.stderr)
        return 130
    return 0


def check_told(run_dir: Path) -> None:
    """Raises ValueError if a folder has nothing that a report could tell."""
    refuse_remote("the run", run_dir)
    if not run_dir.is_dir():
        raise ValueError(f"{run_dir}: there is no such folder; name the folder of a run, such as runs/quickstart")
    files = (LIVE, "result.json", "metrics.jsonl")
    if not any((run_dir / name).is_file() for name in files):
        raise ValueError(f"{run_dir} holds no run that has told anything: it has none of {', '.join(files)}")


def write_report(run_dir: Path, out: Path | None = None) -> Path:
    """Write the report of a run, and return its path. Raises OSError if it cannot be written."""
    # These imports take a second, and neither --help nor an error needs them.
    from pipeline.monitor.page.static import write_static

    cards, story, appendix = report_parts(run_dir)
    path = out or run_dir / REPORT
    write_static(path, run_dir.resolve().name, cards, story, appendix)
    return path


def report_parts(run_dir: Path) -> tuple[list[Card], Story, str]:
    """The cards of a report, the story that they show, and the HTML below them: result.json as it is."""
    from pipeline.monitor.page.page import Card, cards_of
    from pipeline.monitor.page.panel import fixed_panel

    run, result = known_run(run_dir), sound_result(run_dir)
    story = story_of(run_dir)
    shown = cards_of(run_dir, live=False)
    if not (run_dir / LIVE).is_file():
        shown = [
            Card("", "bare", fixed_panel("head", _old_head(run_dir))),
            *(c for c in shown if c.panel.root.name in OLD),
        ]
    last = [card for card in shown if card.panel.root.name == "messages"]
    cards = [*(card for card in shown if card not in last), *more_cards(run_dir, run, story, result), *last]
    # To a browser, "</script>" ends the element, and "<!--<script>" has it go on after that.
    embedded = json.dumps(result).replace("<", "\\u003c")
    return cards, story, f'<script type="application/json" id="result">{embedded}</script>' if result else ""


def known_run(run_dir: Path) -> Run | None:
    """Read the settings and metrics of a run; None before its first commit. Raises ValueError if a file is damaged."""
    return run_in(run_dir) if (run_dir / "workflow.json").is_file() else None


def sound_result(run_dir: Path) -> dict[str, Any] | None:
    """Read the `result.json` of a run; None if it has none. Raises ValueError if it is damaged."""
    result = result_of(run_dir)
    values = {name: value for name, value in (result or {}).items() if name != "checksum"}
    if (run_dir / "result.json").is_file() and checksum(json.dumps(values).encode()) != (result or {}).get("checksum"):
        raise ValueError(f"{run_dir / 'result.json'} is damaged, or was changed; the run's command writes it again")
    return result


def story_of(run_dir: Path) -> Story:
    """The story of a run; without a live.jsonl that of its evaluations alone."""
    story = Story()
    has_lines = (run_dir / LIVE).is_file()
    story.add_all(next(follow_live(run_dir)) if has_lines else _evaluations(run_dir))
    return story


def more_cards(run_dir: Path, run: Run | None, story: Story, result: Mapping[str, Any] | None) -> Iterator[Card]:
    """Yield what a report has and a page has not."""
    from pipeline.monitor.page import tables
    from pipeline.monitor.page.page import Card
    from pipeline.monitor.page.panel import fixed_panel
    from pipeline.monitor.page.row_plots import counts_panel, norms_panel
    from pipeline.monitor.page.sample import sample_rows

    try:
        sample = sample_rows(run_dir)
    except (ValueError, OSError, PipelineError) as error:
        yield Card("Rows", "whole", fixed_panel("rows", f'<p class="nothing">{escape(error_text(error))}</p>'))
    else:
        yield Card("How often keys were used", "half", counts_panel(sample))
        yield Card("Norms of rows", "half", norms_panel(sample))
    if result:
        yield Card("Result", "half", fixed_panel("result_table", tables.result_table(result)))
        yield Card("Stages and tiers", "half", fixed_panel("stages", tables.stages_table(result)))
        yield Card("Trained on", "half", fixed_panel("data", tables.data_table(result)))
    if story.begin:
        yield Card("Versions", "half", fixed_panel("versions", tables.versions_table(story.begin.versions)))
    if run:
        yield Card("Settings", "whole", fixed_panel("settings", tables.settings_table(run.settings)))


def _old_head(run_dir: Path) -> str:
    what = f"{run_dir} has no {LIVE}, since an older version trained it: speed, waits, tiers and fields are not told."
    return f'<div class="head"><h1>{escape(run_dir.resolve().name)}</h1></div><p class="told">{escape(what)}</p>'


def _evaluations(run_dir: Path) -> Iterator[Evaluated]:
    """Yield the evaluations that other files than live.jsonl tell of."""
    result = sound_result(run_dir)
    for epoch in result["epochs"] if result else metrics_lines(run_dir):
        metrics: dict[str, float | None] = {name: value for name, value in epoch.items() if isinstance(value, float)}
        yield Evaluated(at=0.0, epoch=epoch["epoch"], split=epoch["split"], seconds=0.0, trained=0, metrics=metrics)


if __name__ == "__main__":
    sys.exit(main())
