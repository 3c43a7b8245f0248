"""Parts of a page: each has a name, a Bokeh model, and a function that brings it up to date."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Generic, TypeVar

from bokeh.models import Column, ColumnDataSource, Div, InlineStyleSheet, UIElement
from bokeh.plotting import figure

from pipeline.monitor.page.style import mark_at
from pipeline.monitor.story import Story

T = TypeVar("T")
INSIDE = (Path(__file__).parent / "inside.css").read_text()
"""Style of texts, each of which is a document of its own to the browser."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A part of a page."""

    root: UIElement
    """Its model; the template places it by its `name`."""
    update: Callable[[Story], None]
    """Function that shows a story's present state, and sends no more than what is new."""


class Nothing(str):
    """A text that says why there is nothing to draw."""


def text_panel(name: str, text: Callable[[Story], str]) -> Panel:
    """A panel of HTML, which `text` makes."""
    shown = html_box("")
    shown.name = name

    def update(story: Story) -> None:
        content = text(story)
        if shown.text != content:
            shown.text = content

    return Panel(shown, update)


def fixed_panel(name: str, content: str) -> Panel:
    """A panel of HTML that stays as it is."""
    return text_panel(name, lambda story: content)


def plot_panel(name: str, figures: Sequence[figure], update: Callable[[Story], str]) -> Panel:
    """A panel of figures with a line of HTML above them. `update` brings them up to date and returns the line, or
    Nothing: then there are no figures."""
    line = html_box("")
    column = Column(children=[line], sizing_mode="stretch_width", name=name)
    for shown in figures:
        for model in shown.references():
            # The browser would tell the server of the ranges that it computes, many times a second.
            model.syncable = False

    def show(story: Story) -> None:
        said = update(story)
        empty = isinstance(said, Nothing)
        content = f'<p class="nothing">{escape(said)}</p>' if empty else said
        if line.text != content:
            line.text = content
        # The browser warns of a figure whose ranges have nothing to follow.
        if empty == (len(column.children) > 1):
            column.children = [line] if empty else [line, *figures]

    return Panel(column, show)


def html_box(text: str) -> Div:
    """A box of HTML with the style of texts, as wide as its place."""
    # Otherwise Bokeh takes dollar signs of a name for a formula, and loads what draws it from the network.
    sheets = [InlineStyleSheet(css=INSIDE)]
    return Div(text=text, sizing_mode="stretch_width", stylesheets=sheets, margin=0, disable_math=True)


class Followed(Generic[T]):
    """A column data source that follows a growing list: what is appended to the list is streamed."""

    def __init__(self, columns: Callable[[Sequence[T], int], Mapping[str, Sequence[Any]]]) -> None:
        """`columns` makes equally long columns of the items of a list from a number on."""
        self._columns = columns
        self.source = ColumnDataSource(dict(columns([], 0)))
        self._version, self._shown = 0, 0

    def update(self, items: Sequence[T], version: int) -> None:
        """Show the items. `version`: another one than before if they are not only more than before."""
        if version != self._version or len(items) < self._shown:
            self.source.data = dict(self._columns(items, 0))
        elif len(items) > self._shown:
            self.source.stream(dict(self._columns(items, self._shown)))
        self._version, self._shown = version, len(items)


class SessionMarks:
    """Lines on a figure where later sessions began."""

    def __init__(self, *figures: figure) -> None:
        self._figures, self._marked = figures, 1

    def update(self, story: Story) -> None:
        for at, _ in story.begins[self._marked :]:
            for shown in self._figures:
                mark_at(shown, at)
        self._marked = max(1, len(story.begins))


def chips(shares: Mapping[str, tuple[str, str]]) -> str:
    """A legend as HTML: for each name its colour, if it has one, and a text, such as a share."""
    found = [
        f'<span class="chip">{_dot(color) if color else ""}{escape(name)}<b>{escape(text)}</b></span>'
        for name, (color, text) in shares.items()
    ]
    return f'<div class="chips">{"".join(found)}</div>'


def meter(label: str, share: float, color: str, text: str) -> str:
    """A labelled bar as HTML, filled by a share from 0 to 1."""
    width = 100 * min(max(share, 0.0), 1.0)
    return (
        f'<div class="meter"><span>{escape(label)}</span><span class="bar"><i style="width:{width:.2f}%;'
        f'background:{color}"></i></span><b>{escape(text)}</b></div>'
    )


def _dot(color: str) -> str:
    return f'<i style="background:{color}"></i>'
