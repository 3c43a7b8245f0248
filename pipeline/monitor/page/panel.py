"""Parts of a page: each has a name, a Bokeh model, and a function that updates it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import Any, Generic, TypeVar

from bokeh.models import Column, ColumnDataSource, Div, InlineStyleSheet, UIElement
from bokeh.plotting import figure

from pipeline.monitor.page.humanized import percent
from pipeline.monitor.page.style import axis_format, mark_at, over_run_time, plain_figure, stack_areas
from pipeline.monitor.story import Lapse, Story

T = TypeVar("T")
INSIDE = (Path(__file__).parent / "inside.css").read_text()
"""Style of texts. To the browser, each text is a separate document."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A part of a page."""

    root: UIElement
    """The Bokeh model; the template places it by `name`."""
    update: Callable[[Story], None]
    """Function that shows the state of a story and sends only changes."""


class Nothing(str):
    """A text that explains why there is nothing to draw."""


def text_panel(name: str, text: Callable[[Story], str]) -> Panel:
    """A panel with the HTML that `text` returns, or the reason why there is none."""
    shown = html_box("")
    shown.name = name

    def update(story: Story) -> None:
        show_text(shown, text(story))

    return Panel(shown, update)


def fixed_panel(name: str, content: str) -> Panel:
    """A panel with constant HTML."""
    return text_panel(name, lambda story: content)


def plot_panel(name: str, shown: figure, update: Callable[[Story], str]) -> Panel:
    """A panel with a figure and a line of HTML above it. `update` updates the figure and returns the line, or `Nothing`
    to hide the figure."""
    line = html_box("")
    column = Column(children=[line], sizing_mode="stretch_width", name=name)
    for model in shown.references():
        # Otherwise, the browser would send the ranges that it computes to the server many times a second.
        model.syncable = False

    def show(story: Story) -> None:
        said = update(story)
        show_text(line, said)
        empty = isinstance(said, Nothing)
        # The browser logs a warning for a figure without data.
        if empty == (len(column.children) > 1):
            column.children = [line] if empty else [line, shown]

    return Panel(column, show)


def lapses_panel(name: str, shown: figure, followed: Followed[Lapse], line: Callable[[Story], str]) -> Panel:
    """A panel with a figure over run time that follows the lapses, with marks where later sessions started. `line`:
    returns what `update` of `plot_panel` does."""
    marked = 1

    def update(story: Story) -> str:
        nonlocal marked
        followed.update(story.lapses, story.versions["lapses"])
        for at, _ in story.begins[marked:]:
            mark_at(shown, at)
        marked = max(1, len(story.begins))
        return line(story)

    return plot_panel(name, shown, update)


def shares_panel(
    name: str, title: str, colors: Mapping[str, str], shares: Callable[[Sequence[Lapse], int], Mapping[str, float]],
    line: Callable[[Story], str],
) -> Panel:  # fmt: skip
    """A panel of shares over run time, as stacked areas in these colours that fill the figure. `shares`: function of
    lapses and a number that returns the shares at the end of that lapse; empty if there are none."""

    def columns(lapses: Sequence[Lapse], first: int) -> dict[str, list[Any]]:
        """Upper edge of each area at the end of each lapse, starting with number `first`."""
        found: dict[str, list[Any]] = {column: [] for column in ("at", "note", "zero", *colors)}
        begun = any(shares(lapses, number) for number in range(first))
        for number in range(first, len(lapses)):
            if not (here := shares(lapses, number)):
                continue
            note = ", ".join(f"{part} {percent(share)}" for part, share in largest(here)[:4])
            # The first area starts at the start of its lapse.
            for at in (lapses[number].end,) if begun else (lapses[number].begin, lapses[number].end):
                found["at"].append(at)
                found["note"].append(note)
                found["zero"].append(0.0)
                for part, height in zip(colors, accumulate(here.get(part, 0.0) for part in colors), strict=True):
                    found[part].append(min(height, 1.0))
            begun = True
        return found

    shown = over_run_time(plain_figure(title, y_range=(0, 1)))
    shown.yaxis.formatter = axis_format("percent")
    followed = Followed(columns)
    stack_areas(shown, followed.source, colors)
    return lapses_panel(name, shown, followed, line)


def largest(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    """Parts and their shares, largest first, without negligible ones."""
    return sorted(((part, share) for part, share in shares.items() if share >= 0.005), key=lambda pair: -pair[1])


def show_text(box: Div, said: str) -> None:
    """Show HTML, or `Nothing`, in a box. Sends nothing if the content is unchanged."""
    content = f'<p class="nothing">{escape(said)}</p>' if isinstance(said, Nothing) else said
    if box.text != content:
        box.text = content


def html_box(text: str) -> Div:
    """A box of HTML in the style of texts, as wide as its container."""
    # Otherwise, Bokeh takes dollar signs in a name for a formula, and loads the renderer from the network.
    sheets = [InlineStyleSheet(css=INSIDE)]
    return Div(text=text, sizing_mode="stretch_width", stylesheets=sheets, margin=0, disable_math=True)


class Followed(Generic[T]):
    """A column data source that follows a growing list and streams appended items."""

    def __init__(self, columns: Callable[[Sequence[T], int], Mapping[str, Sequence[Any]]]) -> None:
        """`columns`: makes columns of equal length from the items of a list, starting at a given index."""
        self._columns = columns
        self.source = ColumnDataSource(dict(columns([], 0)))
        self._version, self._shown = 0, 0

    def update(self, items: Sequence[T], version: int) -> None:
        """Show the items. `version`: changes whenever the list was replaced rather than extended."""
        if version != self._version or len(items) < self._shown:
            self.source.data = dict(self._columns(items, 0))
        elif len(items) > self._shown:
            self.source.stream(dict(self._columns(items, self._shown)))
        self._version, self._shown = version, len(items)


def chips(shares: Mapping[str, tuple[str, str]]) -> str:
    """A legend as HTML: for each name, its colour (if any) and a text, such as a share."""
    found = [
        f'<span class="chip">{dot(color) if color else ""}{escape(name)}<b>{escape(text)}</b></span>'
        for name, (color, text) in shares.items()
    ]
    return f'<div class="chips">{"".join(found)}</div>'


def meter(label: str, share: float, color: str, text: str) -> str:
    """A labelled bar as HTML, filled to a share from 0 to 1."""
    shown = bar([(color, min(max(share, 0.0), 1.0))])
    return f'<div class="meter"><span>{escape(label)}</span>{shown}<b>{escape(text)}</b></div>'


def bar(shares: Sequence[tuple[str, float]], kind: str = "bar") -> str:
    """A bar as HTML, with parts of these colours and shares of its width."""
    parts = (f'<i style="width:{100 * share:.2f}%;background:{color}"></i>' for color, share in shares)
    return f'<span class="{kind}">{"".join(parts)}</span>'


def dot(color: str) -> str:
    """A dot in this colour, as HTML."""
    return f'<i class="dot" style="background:{color}"></i>'
