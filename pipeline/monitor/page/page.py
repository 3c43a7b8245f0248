"""pipeline report RUN: write one file that shows all of a run and needs no network, from the story of the run. While a
run trains, it is report.html in its run directory, written every few seconds and at the end."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any

from pipeline.arguments import REPORT, report_arguments
from pipeline.errors import refuse_remote
from pipeline.machine.signals import run_command
from pipeline.monitor.command import check_run
from pipeline.monitor.live.lines import Ended, LiveLine, read_live
from pipeline.monitor.page import tables
from pipeline.monitor.page.curves import loss_plot, metric_plots, speed_plot, stage_use, time_use
from pipeline.monitor.page.headline import head, key_figures, messages
from pipeline.monitor.runs import result_of, settings_of
from pipeline.monitor.story import Story, thinned
from pipeline.storage.durable import own_checksum

MAX_STEPS = 120
"""Maximum number of steps of the plots of means over run time."""
STYLE = Path(__file__).with_name("page.css").read_text()
NOT_YET = {
    "Where the time goes": "No block has been trained yet.",
    "Evaluations": "No evaluation yet: the first one follows the first epoch, or when the schedule says so.",
}
"""Texts of cards that are shown even if there is nothing in them."""

Card = tuple[str, str, str]
"""Title, width on a wide screen ("third", "half", "two-thirds" or "whole"), and content; omitted if empty."""

SECONDS_A_WRITE = 5.0
MOST_SHARE = 0.005
"""Maximum share of the time that is spent on the report: after a slow write, the next one comes later."""


class ReportFile:
    """Writer of the report. A report that cannot be drawn or written ends no run."""

    def __init__(self, run_dir: Path, settings: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        """`settings`: those of the workflow, by path. Reads what earlier sessions wrote to live.jsonl."""
        self.run_dir, self._settings, self._clock = run_dir, settings, clock
        self._story = Story()
        with suppress(OSError):
            self._story.add_all(read_live(run_dir))
        self._every = SECONDS_A_WRITE
        self._written_at = -math.inf

    def add(self, line: LiveLine) -> None:
        """Take in the next line of live.jsonl, and write the report if it is due."""
        self._story.add(line)
        # The clock may have been set back.
        if isinstance(line, Ended) or not 0 <= self._clock() - self._written_at < self._every:
            self._write(ended=isinstance(line, Ended))

    def _write(self, ended: bool) -> None:
        began = self._clock()
        result, every = (result_of(self.run_dir), None) if ended else (None, math.ceil(self._every))
        try:
            text = page(self.run_dir, self._story, self._settings, result, every)
        except Exception as error:
            text = escape(f"This report could not be drawn: {type(error).__name__}: {error}")
        with suppress(OSError):
            write_page(self.run_dir / REPORT, text)
        self._written_at = self._clock()
        self._every = max(SECONDS_A_WRITE, (self._written_at - began) / MOST_SHARE)


def page(
    run_dir: Path, story: Story, settings: Mapping[str, Any], result: Mapping[str, Any] | None, every: int | None = None
) -> str:
    """The page. `settings`: by path. `result`: the content of result.json, if any. `every`: seconds
    after which a browser reloads the page; None: never."""
    cards = "".join(
        f'<section class="{width}"><h2>{escape(title)}</h2>{content or f"<p>{NOT_YET[title]}</p>"}</section>'
        for title, width, content in _cards(story, settings, result)
        if content or title in NOT_YET
    )
    name = escape(story.begin.name if story.begin else run_dir.name)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'\">"
        f"{f'<meta http-equiv=refresh content={every}>' if every else ''}"
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{name} - pipeline</title><style>{STYLE}</style></head>\n"
        f"<body><main>{head(run_dir, story, time.time(), every)}{key_figures(story)}{cards}</main></body></html>\n"
    )


def _cards(story: Story, settings: Mapping[str, Any], result: Mapping[str, Any] | None) -> Iterator[Card]:
    steps = thinned(story.lapses, MAX_STEPS)
    yield "Where the time goes", "two-thirds", time_use(story, steps)
    yield "Stages and tiers", "third", stage_use(story)
    yield "Speed", "half", speed_plot(story, steps)
    yield "Loss", "half", loss_plot(story, steps)
    for title, content in metric_plots(story).items():
        yield title, "half", content
    yield "Evaluations", "whole", tables.evaluations_table(story)
    # An earlier session may have left a result.
    if result and story.ended and story.ended.how == "finished":
        yield "Result", "half", tables.result_table(result)
        yield "Stages and tiers of the whole run", "half", tables.stages_table(result)
        yield "Data", "half", tables.data_table(result)
    yield "Run", "half", tables.run_table(story)
    yield "Settings", "whole", tables.settings_table(settings)
    yield "Messages", "whole", messages(story)


def write_page(path: Path, text: str) -> None:
    """Replace a file atomically, without waiting until it is on the disk. Raises OSError if it cannot be written."""
    partial = path.with_name(f"{path.name}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(partial, flags, 0o644), "wb") as file:
        file.write(text.encode(errors="replace"))
    partial.replace(path)


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
