"""Human-readable numbers: three digits, a unit, and no false precision."""

from __future__ import annotations

import math


def short_number(value: float | None) -> str:
    """A count or a rate such as "874", "38.6 k", "2.00 M"; "-" for None."""
    if value is None or not math.isfinite(value):
        return "-"
    for scale, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale * 0.9995:
            return f"{three_digits(value / scale)} {unit}"
    return three_digits(value) if value % 1 else f"{value:.0f}"


def three_digits(value: float) -> str:
    """A number below 1000 with at most three digits."""
    size = abs(value)
    return f"{value:.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def short_size(num_bytes: float | None) -> str:
    """A size in bytes, such as "1.25 GiB"."""
    if num_bytes is None or not math.isfinite(num_bytes):
        return "-"
    for power, unit in ((5, "PiB"), (4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(num_bytes) >= 0.9995 * 1024**power:
            value = num_bytes / 1024**power
            return f"{value:,.0f} {unit}" if value >= 999.5 else f"{three_digits(value)} {unit}"
    return f"{num_bytes:.0f} B"


def short_duration(seconds: float | None) -> str:
    """A duration in its two largest units, such as "3 min 20 s"."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds >= 0.095 else f"{seconds * 1000:.0f} ms"
    whole = round(seconds)
    for big, unit, small, less in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= big:
            rest = whole % big // small
            return f"{whole // big} {unit} {rest} {less}" if rest else f"{whole // big} {unit}"
    return f"{whole} s"


def percent(share: float | None) -> str:
    """A share such as "31 %", "0.4 %", "100 %"."""
    if share is None or not math.isfinite(share):
        return "-"
    points = 100 * share
    if 0 < points < 0.1:
        return "<0.1 %"
    return f"{points:.1f} %" if points < 9.95 and round(points, 1) % 1 else f"{points:.0f} %"
