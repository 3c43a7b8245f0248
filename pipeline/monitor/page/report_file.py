"""The report of a run that trains: report.html in its run directory, written every few seconds and at the end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any

from pipeline.arguments import REPORT
from pipeline.monitor.live.lines import Ended, LiveLine, read_live
from pipeline.monitor.page.page import page, write_page
from pipeline.monitor.runs import result_of
from pipeline.monitor.story import Story

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
