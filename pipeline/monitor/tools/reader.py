"""Reader of a run for other tools: its curves as points, for a finished run or one that is still training."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pipeline.metrics.totals import lookups_of
from pipeline.monitor.live.lines import Begin, Ended, Evaluated, LiveLine, Tick, follow_live
from pipeline.monitor.story import Lapse, lapse_between

FOLLOW_SECONDS = 1.0


class Point(NamedTuple):
    """One point of a curve."""

    name: str
    value: float
    step: int
    """Number of training examples before the point, over all sessions."""
    at: float
    """Seconds since 1970."""


def curves_at(lapse: Lapse) -> dict[str, float]:
    """Values of the curves at the end of a lapse, by name. Rates are averages over the lapse.

    loss, learning_rate/rows, learning_rate/dense, blocks_ready, log_bytes    as in the tick at its end
    examples_per_second    of training and evaluation
    hit_rate/TIER          share of the keys not found in a faster tier; none if there were no such keys
    waits/CAUSE            share of the wall time that training waited, and waits/train that it did not
    """
    now = lapse.tick
    values = {"loss": now.loss, "learning_rate/rows": now.lr_rows, "learning_rate/dense": now.lr_dense,
              "blocks_ready": now.ready, "log_bytes": now.disk_bytes}  # fmt: skip
    found = {name: float(value) for name, value in values.items() if value is not None}
    if lapse.end <= lapse.begin:
        return found
    found["examples_per_second"] = lapse.examples / lapse.seconds
    lookups = lookups_of(lapse.moves or {})
    found |= {f"hit_rate/{tier}": hits / of for tier, (hits, of) in lookups.items() if of > 0 and tier != "disk"}
    return found | {f"waits/{cause}": seconds / lapse.seconds for cause, seconds in lapse.waits.items()}


class Curves:
    """Converter of lines to points. Steps of a curve ascend: when a session repeats training that an earlier session
    did after its last commit, the points already exist, with the same losses."""

    def __init__(self, through: dict[str, int] | None = None) -> None:
        """`through`: last known step of each curve."""
        self._through = through or {}
        self._begin: Begin | None = None
        self._before: Tick | None = None
        self.ended: Ended | None = None
        """End of the last session; None while it is training."""

    def batches(self, run_dir: Path, follow: bool) -> Iterator[list[Point]]:
        """Yield the points of a run: the existing ones and, with `follow`, new ones until the session ends. If the file
        is thinned meanwhile, it is read again. Raises ValueError if the run restarts from scratch."""
        first: Begin | None = None
        is_new = True
        for lines in follow_live(run_dir):
            if lines is None:
                is_new = True
            elif lines:
                begins = (line for line in lines if isinstance(line, Begin))
                if is_new and (begin := next(begins, None)):
                    first, is_new = first or begin, False
                    if begin != first:
                        raise ValueError(
                            f"{run_dir} was started from scratch; repeat the command to follow the new run"
                        )
                yield [point for line in lines for point in self.of(line)]
            elif self.ended or not follow:
                return
            else:
                time.sleep(FOLLOW_SECONDS)

    def of(self, line: LiveLine) -> Iterator[Point]:
        """Yield the new points of the next line."""
        match line:
            case Begin():
                self._begin, self._before, self.ended = line, None, None
            case Ended():
                self.ended = line
            case Tick() if self._begin:
                yield from self._new(curves_at(lapse_between(self._begin, self._before, line)), line)
                self._before = line
            case Evaluated():
                yield from self._new({f"{name}/{line.split}": value for name, value in line.metrics.items()}, line)

    def _new(self, values: Mapping[str, float | None], line: Tick | Evaluated) -> Iterator[Point]:
        for full_name, value in values.items():
            name = allowed_name(full_name)
            if value is not None and line.trained > self._through.get(name, -1):
                self._through[name] = line.trained
                yield Point(name, value, line.trained, line.at)


def allowed_name(name: str) -> str:
    """Name without characters that MLflow or TensorBoard replace or reject; labels may contain such characters."""
    return re.sub(r"[^\w\-. /]", "_", name)
