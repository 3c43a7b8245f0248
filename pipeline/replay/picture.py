"""Picture of disk reads against memory, one curve a pair of policies, as an SVG file of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from pipeline.messages.sizes import format_size_up
from pipeline.replay.grid import BoundCell, Cell
from pipeline.replay.table import OPTIMAL

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, LEGEND = 800, 480, 90, 60, 30, 180
COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")
Point = tuple[float, float]
"""Bytes of rows in memory, and rows read from disk."""


def svg(title: str, cells: Sequence[Cell], bounds: Sequence[BoundCell] = ()) -> str:
    """Text of the picture."""
    curves: dict[str, list[Point]] = {}
    for cell in cells:
        curves.setdefault(" : ".join(cell.policies), []).append((cell.memory_bytes, cell.disk_reads))
    for bound in bounds:
        curves.setdefault(OPTIMAL, []).append((bound.memory_bytes, bound.disk_reads))
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, TOP / 2 + 6, title, "middle"),
        *_axes(curves),
        *_curves(curves),
        "</svg>\n",
    ])  # fmt: skip


def _limits(curves: Mapping[str, Sequence[Point]]) -> Point:
    points = [point for curve in curves.values() for point in curve]
    return max(1.0, *(x for x, _ in points)), max(1.0, *(y for _, y in points))


def _at(point: Point, limits: Point) -> Point:
    """Place of a point on the picture."""
    (x, y), (most_x, most_y) = point, limits
    return LEFT + x / most_x * (WIDTH - LEFT - LEGEND), HEIGHT - BOTTOM - y / most_y * (HEIGHT - BOTTOM - TOP)


def _axes(curves: Mapping[str, Sequence[Point]]) -> list[str]:
    limits = _limits(curves)
    (left, bottom), (right, top) = _at((0, 0), limits), _at(limits, limits)
    lines = [f'<path d="M{left},{top:.1f} V{bottom:.1f} H{right:.1f}" fill="none" stroke="black"/>']
    for quarter in range(5):
        x, y = _at((limits[0] * quarter / 4, limits[1] * quarter / 4), limits)
        lines.append(_text(x, bottom + 18, format_size_up(int(limits[0] * quarter / 4)), "middle"))
        lines.append(_text(left - 6, y + 4, f"{limits[1] * quarter / 4:,.0f}", "end"))
    lines.append(_text((left + right) / 2, bottom + 42, "rows in memory", "middle"))
    lines.append(_text(6, TOP - 10, "rows read from disk", "start"))
    return lines


def _curves(curves: Mapping[str, Sequence[Point]]) -> list[str]:
    limits, lines = _limits(curves), []
    for n, (name, points) in enumerate(curves.items()):
        places = [_at(point, limits) for point in sorted(points)]
        color = "black" if name == OPTIMAL else COLORS[n % len(COLORS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dashes = ' stroke-dasharray="6 3"' if name == OPTIMAL else ""
        lines.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dashes}/>')
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in places]
        lines.append(_text(WIDTH - LEGEND + 12, TOP + 20 + 18 * n, name, "start", color))
    return lines


def _text(x: float, y: float, text: str, anchor: str, color: str = "black") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{escape(text)}</text>'
