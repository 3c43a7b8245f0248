"""Advice at the end of a run, from counts and timings that the run collects anyway."""

from __future__ import annotations

from pipeline.driver.driver import Driver
from pipeline.monitor.live.waits import MIN_SECONDS

LEAST_SHARE = 0.1
"""Minimum share of a session spent on commits for the advice to commit less often."""


def advice_after(driver: Driver) -> str | None:
    """Describe the bottleneck of a finished run and how to remove it; None if the run trained nothing or was
    short."""
    ended, trained = driver.live.ended, driver.history.tiers.counts()["trained"]
    if ended is None or not trained["keys"] or ended.seconds < MIN_SECONDS:
        return None
    advice = []
    if trained["device_to_host"] + trained["device_to_disk"]:
        advice.append("`pipeline run --explain` shows the hit rates with more memory")
    else:
        advice.append("all rows fit on the device, so more memory would not help")
    every = driver.setup.workflow.commit.every_blocks
    took = ended.waits.get("commit", 0.0)
    if every and took > LEAST_SHARE * ended.seconds:
        advice.append(f"commit.every_blocks {2 * every} instead of {every} would save about {took / 2:.0f} s")
    driver.live.on_line("; ".join(advice))
    return "; ".join([ended.text, *advice])
