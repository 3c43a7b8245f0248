"""Settings of times: names of zones, lengths of time, and the extents of a span."""

from __future__ import annotations

import re
from typing import Literal
from zoneinfo import ZoneInfo

SpanKind = Literal["day", "hour", "value", "file"]
"""Extent of a span of training data (see `workflow.Data.span`)."""
OutOfPlaceRule = Literal["refuse", "take", "drop"]
"""Treatment of rows out of place (see `workflow.Data.late`)."""
SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
LENGTH = re.compile(rf"([0-9]+(?:\.[0-9]+)?) ?({'|'.join(SECONDS)})")


def known_zone(zone: str | None) -> str | None:
    """Return the name of a time zone unchanged. Raises ValueError if there is no such zone."""
    try:
        ZoneInfo(zone or "UTC")
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"there is no time zone {zone!r}; give a name such as Europe/Berlin") from error
    return zone


def seconds_of(text: str, setting: str) -> float:
    """Convert a duration such as "3 d", "36 h", "90 min" or "10 s" to seconds. Raises ValueError, with `setting`, if it
    is not a duration."""
    found = LENGTH.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{setting} is {text!r}; give a number and a unit, such as '3 d', '36 h', '90 min' or '10 s'")
    return float(found[1]) * SECONDS[found[2]]


def check_spans(
    spans_by: SpanKind | None, span: SpanKind | None, has_times: bool, label_delay: str | None, gap: str | None
) -> None:
    """Raise ValueError if spans need a column of times and there is none, or if labels are delayed, or a gap is given,
    but spans do not end at a known time. `spans_by`: extent of a span. `span`: the extent that the workflow sets."""
    if span in ("day", "hour", "value") and not has_times:
        raise ValueError(f"data.span is {span!r}, but data.time names no column; name the one with the times")
    for setting, length in (("label_delay", label_delay), ("gap", gap)):
        if length is not None:
            seconds_of(length, f"data.{setting}")
            if spans_by not in ("day", "hour"):
                raise ValueError(
                    f"data.{setting} is {length!r}, which needs spans that end at a known time; set "
                    "data.time, and data.span to 'day' or 'hour'"
                )
