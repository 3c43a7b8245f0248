"""Scalars of a run over its training examples, for tools that draw curves."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pipeline.monitor.live.lines import Begin, Ended, Evaluated, LiveLine, Replaced, Tick, follow_live, read_live
from pipeline.monitor.tools.tick_rates import rates_between

FOLLOW_SECONDS = 1.0
LINES_AT_ONCE = 1000
ALL_TICKS = 1 << 62
"""Ticks to follow at most: all of them, so that the points are those of a call that does not follow."""


@dataclass(frozen=True, slots=True)
class ScalarPoint:
    """One point of a curve."""

    tag: str
    value: float
    step: int
    """Training examples before it, of all sessions."""
    at: float
    """Seconds since 1970."""


class Scalars:
    """Makes scalars of lines. The steps of a tag ascend: where a session trains again what an earlier one had trained
    after its last commit, the points are already there, with the same losses."""

    def __init__(self, through: dict[str, int] | None = None) -> None:
        """`through`: last step of each tag that is there already."""
        self._through = through or {}
        self._begin: Begin | None = None
        self._before: Tick | None = None

    def of(self, line: LiveLine) -> Iterator[ScalarPoint]:
        """Yield the scalars of the next line that are new."""
        match line:
            case Begin():
                self._begin, self._before = line, None
            case Tick():
                values = self._values(line)
                self._before = line
                yield from self._new(values, line)
            case Evaluated():
                values = {f"{name}/{line.split}": value for name, value in line.metrics.items()}
                yield from self._new(values, line)

    def _values(self, tick: Tick) -> dict[str, float | None]:
        values: dict[str, float | None] = {
            "loss": tick.loss,
            "learning_rate/rows": tick.lr_rows,
            "learning_rate/dense": tick.lr_dense,
            "blocks_ready": tick.ready,
            "log_bytes": tick.disk_bytes,
        }
        rates = rates_between(self._begin, self._before, tick) if self._begin else None
        if rates:
            values["examples_per_second"] = rates.examples_per_second
            values |= {f"hit_rate/{tier}": rate for tier, rate in rates.hit_rates.items()}
            values |= {f"waits/{cause}": share for cause, share in rates.waits.items()}
        return values

    def _new(self, values: dict[str, float | None], line: Tick | Evaluated) -> Iterator[ScalarPoint]:
        for name, value in values.items():
            tag = allowed_name(name)
            if value is not None and line.trained > self._through.get(tag, -1):
                self._through[tag] = line.trained
                yield ScalarPoint(tag, value, line.trained, line.at)


def allowed_name(name: str) -> str:
    """Name without characters that MLflow or TensorBoard replace or refuse, as a label may have them."""
    return re.sub(r"[^\w\-. /]", "_", name)


def line_batches(run_dir: Path, follow: bool) -> Iterator[list[LiveLine]]:
    """Yield the lines of a run: those that are there, and if `follow` those that come until the session ends. If the
    file is thinned meanwhile, all of its lines come again. Raises ValueError if the run begins anew."""
    if not follow:
        lines = read_live(run_dir)
        while batch := list(islice(lines, LINES_AT_ONCE)):
            yield batch
        return
    first: Begin | None = None
    while True:
        with suppress(Replaced):
            is_new, goes_on = True, True
            for batch in follow_live(run_dir, ALL_TICKS):
                for line in batch:
                    if isinstance(line, Begin) and is_new:
                        first, is_new = first or line, False
                        if line != first:
                            raise ValueError(f"{run_dir} began anew meanwhile; give the command again to follow that")
                    if isinstance(line, Begin | Ended):
                        goes_on = isinstance(line, Begin)
                yield batch
                if not goes_on:
                    return
                if not batch:
                    time.sleep(FOLLOW_SECONDS)
