"""A plot as SVG, without a library: a line for each measure, over the number of keys, relative to the first table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, LEFT, BOTTOM, LEGEND = 640, 360, 60, 40, 230
COLORS = ("#1b6ca8", "#c23b22", "#2e8b57", "#8a4fbe", "#b8860b", "#555555")


def plot(sizes: Sequence[int], measures: Mapping[str, Sequence[float]], highest: float = 2.0) -> str:
    """Return the text of the picture. `measures`: values at each of the sizes, by name; those above `highest` times the
    first are drawn at the upper edge."""
    span = math.log(sizes[-1] / sizes[0]) or 1.0
    xs = [LEFT + (WIDTH - LEFT - LEGEND) * math.log(size / sizes[0]) / span for size in sizes]

    def height(share: float) -> float:
        return 10 + (HEIGHT - BOTTOM - 10) * (1 - min(share, highest) / highest)

    shapes = []
    for share in (0.0, 0.5, 1.0, 1.5, 2.0):
        at = height(share)
        shapes.append(f'<path d="M{LEFT} {at:.1f}H{xs[-1]:.1f}" stroke="#ddd"/>')
        shapes.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{share:.1f}</text>')
    for x, size in zip(xs, sizes, strict=True):
        shapes.append(f'<text x="{x:.1f}" y="{HEIGHT - 18}" text-anchor="middle">{short(size)} keys</text>')
    for color, (name, values), y in zip(COLORS, measures.items(), range(30, HEIGHT, 22), strict=False):
        points = " ".join(f"{x:.1f},{height(v / values[0]):.1f}" for x, v in zip(xs, values, strict=True))
        shapes.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        shapes.append(f'<text x="{WIDTH - LEGEND + 40}" y="{y}" fill="{color}">{name}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
    return "\n".join([f'{head} font-size="12">', '<rect width="100%" height="100%" fill="#fff"/>', *shapes, "</svg>\n"])


def short(size: int) -> str:
    """Number of keys in short: 200m, 20k."""
    for unit, letter in ((10**6, "m"), (10**3, "k")):
        if size >= unit:
            return f"{size / unit:g}{letter}"
    return str(size)
