"""Speed, hit rates and waits between two ticks of a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.metrics.totals import lookups_of
from pipeline.monitor.live.lines import Begin, Tick


@dataclass(frozen=True, slots=True)
class TickRates:
    """Rates between two ticks, or between the beginning of a session and its first tick."""

    examples_per_second: float
    """Examples of training and evaluation."""
    hit_rates: dict[str, float]
    """By tier, "device" and "host": share of the keys not found in a faster tier. A tier without such keys is left
    out."""
    waits: dict[str, float]
    """Share of the wall seconds that training waited, by cause, and under "train" the share that it did not."""


def rates_between(begin: Begin, before: Tick | None, now: Tick) -> TickRates | None:
    """Compute the rates between two ticks of the session that began with `begin`; None if no time passed. `before`:
    None for the first tick."""
    seconds = now.seconds - (before.seconds if before else 0.0)
    if seconds <= 0:
        return None
    examples = now.examples - (before.examples if before else begin.examples)
    waits = before.waits if before else {}
    return TickRates(
        examples / seconds,
        hit_rates(_moves_before(begin, before, now), now.moves),
        {cause: (total - waits.get(cause, 0.0)) / seconds for cause, total in now.waits.items()},
    )


def _moves_before(begin: Begin, before: Tick | None, now: Tick) -> Mapping[str, int]:
    """Totals at the earlier tick. At the first tick of a session that goes on they are unknown: then those
    at its end, so that the difference is 0."""
    if before:
        return before.moves
    return now.moves if begin.examples else {}


def hit_rates(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, float]:
    """Hit rates of the device and the host, defined as in `TierTotals.report`, from totals of moves."""
    found = lookups_of({name: total - before.get(name, 0) for name, total in after.items()})
    return {tier: found[tier][0] / found[tier][1] for tier in ("device", "host") if found[tier][1] > 0}
