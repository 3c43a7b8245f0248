"""A run that writes neither live.jsonl nor a report: `python -m benchmarks.observer.off` takes the arguments of
`pipeline run`."""

from __future__ import annotations

import sys

from pipeline.driver import driver
from pipeline.monitor.observer import Observer
from pipeline.run import main


class Silent(Observer):
    ended = None


if __name__ == "__main__":
    driver.live_observer = lambda *_: Silent()  # type: ignore[assignment, return-value]
    sys.exit(main(sys.argv[1:]))
