"""Distributions of the rows of a sample: how often keys were used, and how long embeddings are.

N rows    H bars
"""

from __future__ import annotations

from html import escape

import numpy as np
from bokeh.models import ColumnDataSource, NumeralTickFormatter
from bokeh.plotting import figure
from numpy.typing import NDArray

from pipeline.monitor.page.humanized import percent, short_number
from pipeline.monitor.page.panel import Nothing, Panel, plot_panel
from pipeline.monitor.page.sample import RowSample
from pipeline.monitor.page.style import BLUE, GREEN, axis_format, hover_on, plain_figure

F64 = NDArray[np.float64]

NUM_BARS = 48


def counts_panel(sample: RowSample) -> Panel:
    """The panel "How often keys were used"."""
    highest = int(sample.counts_N.max(initial=1))
    edges_H: F64 = np.exp2(np.arange(0, highest.bit_length() + 1))
    shown = plain_figure("share of the rows", x_axis_type="log", x_range=(0.9, float(edges_H[-1]) * 1.1))
    shown.xaxis.update(axis_label="times that a key was in a batch", formatter=axis_format("short"))
    shares_H = np.histogram(np.maximum(sample.counts_N, 1), [*edges_H[:-1], np.inf])[0] / max(len(sample.counts_N), 1)
    told = [
        f"{percent(share)} of the rows: {short_number(low)} to {short_number(2 * low - 1)} times"
        for share, low in zip(shares_H, edges_H, strict=False)
    ]
    once = float((sample.counts_N <= 1).mean()) if len(sample.counts_N) else 0.0
    # Bars of a logarithmic axis need a gap that grows with them.
    return _bars("counts", shown, (edges_H[:-1] * 1.03, edges_H[1:] * 0.97), shares_H, told, BLUE, (
        f"{percent(once)} were used once at most. {sample.told}"
    ))  # fmt: skip


def norms_panel(sample: RowSample) -> Panel:
    """The panel "Norms of rows"."""
    finite_N = sample.norms_N[np.isfinite(sample.norms_N)]
    high = float(np.quantile(finite_N, 0.999)) if len(finite_N) else 1.0
    shown = plain_figure("share of the rows")
    shown.xaxis.axis_label = "Euclidean norm of the embedding"
    edges_H: F64 = np.linspace(0.0, high or 1.0, NUM_BARS + 1)
    counts_H, _ = np.histogram(np.minimum(finite_N, high), edges_H)
    shares_H = counts_H / max(len(sample.norms_N), 1)
    told = [
        f"{percent(share)} of the rows: {a:.3g} to {b:.3g}"
        for share, a, b in zip(shares_H, edges_H, edges_H[1:], strict=False)
    ]
    gap = 0.06 * (edges_H[1] - edges_H[0])
    broken = len(sample.norms_N) - len(finite_N)
    middle = f"Median {np.median(finite_N):.3g}." if len(finite_N) else ""
    said = f"{middle} The last bar has what is above {high:.3g}, too. {sample.told}"
    return _bars("norms", shown, (edges_H[:-1] + gap, edges_H[1:] - gap), shares_H, told, GREEN, (
        f"{broken:,} rows have a value that is no number! {said}" if broken else said
    ))  # fmt: skip


def _bars(
    name: str, shown: figure, edges: tuple[F64, F64], shares_H: F64, told: list[str], color: str, said: str
) -> Panel:
    """A panel of bars with the line `said` above them; `told` is said of each bar."""
    shown.yaxis.formatter = NumeralTickFormatter(format="0.[0]%")
    shown.y_range.start = 0
    source = ColumnDataSource({"left": edges[0], "right": edges[1], "share": shares_H, "told": told})
    bars = shown.quad(left="left", right="right", top="share", bottom=0, source=source, color=color, line_color=None)
    hover_on(shown, bars, [("", "@told")], "mouse")
    return plot_panel(
        name, [shown], lambda story: f"<p>{escape(said)}</p>" if len(shares_H) else Nothing("No rows yet.")
    )
