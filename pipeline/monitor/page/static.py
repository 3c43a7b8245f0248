"""Cards as one HTML file that needs neither a server nor a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bokeh.document import Document
from bokeh.embed import file_html
from bokeh.resources import INLINE

from pipeline.monitor.page.page import Card, fill, show
from pipeline.monitor.story import Story


def write_static(path: Path, title: str, cards: Sequence[Card], story: Story, appendix: str = "") -> None:
    """Write cards that show a story. The file is there as a whole or not at all. Raises OSError if it cannot be
    written."""
    document = Document()
    show(document, story, cards)
    fill(document, title, cards, appendix)
    content = file_html(
        document, INLINE, document.title, template=document.template, template_variables=document.template_variables
    )
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(content, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
