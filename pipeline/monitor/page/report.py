"""pipeline report RUN: write one file that shows all of a run and needs no network."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.arguments import REPORT, report_arguments
from pipeline.errors import refuse_remote
from pipeline.machine.command import run_command
from pipeline.monitor.command import check_run
from pipeline.monitor.live.lines import read_live
from pipeline.monitor.page import tables
from pipeline.monitor.page.page import Card, cards_of, write_static
from pipeline.monitor.page.panel import fixed_panel
from pipeline.monitor.runs import Run, result_of, run_in
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
    """Write the report of a run, including the content of result.json, and return its path. Raises OSError if it cannot
    be written."""
    run, result, story = known_run(run_dir), sound_result(run_dir), story_of(run_dir)
    *cards, messages = cards_of(run_dir, live=False)
    # In a browser, "</script>" would end the element, and "<!--<script>" would extend it beyond its end.
    embedded = json.dumps(result).replace("<", "\\u003c")
    appendix = f'<script type="application/json" id="result">{embedded}</script>' if result else ""
    path = out or run_dir / REPORT
    write_static(path, run_dir.resolve().name, [*cards, *more_cards(run, story, result), messages], story, appendix)
    return path


def known_run(run_dir: Path) -> Run | None:
    """Settings and metrics of a run; None before its first commit. Raises ValueError if a file is damaged."""
    return run_in(run_dir) if (run_dir / "workflow.json").is_file() else None


def sound_result(run_dir: Path) -> dict[str, Any] | None:
    """Read the `result.json` of a run; None if it has none. Raises ValueError if it is damaged."""
    result = result_of(run_dir)
    if (run_dir / "result.json").is_file() and (not result or result.get("checksum") != own_checksum(result)):
        raise ValueError(f"{run_dir / 'result.json'} is damaged, or was changed; the run's command writes it again")
    return result


def story_of(run_dir: Path) -> Story:
    """The story of a run. Raises OSError if its live.jsonl cannot be read."""
    story = Story()
    story.add_all(read_live(run_dir))
    return story


def more_cards(run: Run | None, story: Story, result: Mapping[str, Any] | None) -> Iterator[Card]:
    """Yield the cards that only a report has."""
    if result:
        yield Card("Result", "half", fixed_panel("result_table", tables.result_table(result)))
        yield Card("Stages and tiers", "half", fixed_panel("stages", tables.stages_table(result)))
        yield Card("Trained on", "half", fixed_panel("data", tables.data_table(result)))
    if story.begin:
        yield Card(
            "Versions", "half", fixed_panel("versions", tables.html_table((), sorted(story.begin.versions.items())))
        )
    if run:
        yield Card("Settings", "whole", fixed_panel("settings", tables.settings_table(run.settings)))
