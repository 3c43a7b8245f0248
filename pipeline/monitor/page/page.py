"""The page of a run: its panels in a Bokeh document."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from bokeh.document import Document
from bokeh.embed import file_html
from bokeh.events import ClientReconnected, ConnectionLost
from bokeh.models import CustomJS
from bokeh.resources import INLINE
from jinja2 import Template

from pipeline.monitor.page.calibration import calibration_panel
from pipeline.monitor.page.disk_use import disk_panel
from pipeline.monitor.page.field_table import field_table
from pipeline.monitor.page.headline import head, messages, tiles
from pipeline.monitor.page.metric_curves import metric_panel, metric_table
from pipeline.monitor.page.panel import Panel, text_panel
from pipeline.monitor.page.speed import curve_panel
from pipeline.monitor.page.stage_lanes import stage_lanes_panel
from pipeline.monitor.page.tier_use import found_panel
from pipeline.monitor.page.time_use import binding, time_use_panel
from pipeline.monitor.story import FollowedStory, Story
from pipeline.storage.durable import replacing

UPDATE_MILLISECONDS = 1000
HERE = Path(__file__).parent


def page(folder: Path, document: Document | None = None) -> Document:
    """Make the page of a run. While a server shows it, it is updated from live.jsonl once a second. `document`: an
    empty one to fill; by default a new one."""
    document = document or Document()
    followed, cards = FollowedStory(folder), cards_of(folder, live=True)

    def update() -> None:
        show(document, followed.read(), cards)

    update()
    fill(document, folder.resolve().name, cards)
    document.add_periodic_callback(update, UPDATE_MILLISECONDS)
    # The page has its own message for a lost connection.
    document.config.notify_connection_status = False
    document.js_on_event(ConnectionLost, CustomJS(code="document.body.classList.add('lost')"))
    document.js_on_event(ClientReconnected, CustomJS(code="document.body.classList.remove('lost')"))
    return document


class Card(NamedTuple):
    """A panel with its title and width."""

    title: str
    kind: Literal["bare", "whole", "two-thirds", "half", "third"]
    """Width on a wide screen; "bare" is full width without a frame."""
    panel: Panel


def cards_of(folder: Path, live: bool) -> list[Card]:
    """The cards of a page, in order. `live`: False for a report, which is static."""
    return [
        Card("", "bare", text_panel("head", partial(head, folder, live))),
        Card("", "bare", text_panel("tiles", tiles)),
        Card("Where the time goes", "two-thirds", time_use_panel()),
        Card("What limits the speed", "third", text_panel("binding", binding)),
        Card("Speed", "half", curve_panel("speed")),
        Card("Loss", "half", curve_panel("loss")),
        Card("Timeline of the last sampled blocks", "whole", stage_lanes_panel()),
        Card("Where keys were found", "whole", found_panel()),
        Card("AUC", "half", metric_panel("auc")),
        Card("Logloss", "half", metric_panel("logloss")),
        Card("Normalized entropy", "half", metric_panel("ne")),
        Card("Calibration by epoch or span", "half", metric_panel("calibration")),
        Card("Metrics", "whole", text_panel("metrics", metric_table)),
        Card("Calibration", "half", calibration_panel()),
        Card("Disk", "half", disk_panel()),
        Card("Fields", "whole", text_panel("fields", field_table)),
        Card("Messages", "whole", text_panel("messages", messages)),
    ]


def show(document: Document, story: Story, cards: Sequence[Card]) -> None:
    """Update the cards, and send the changes to the browser in one message."""
    document.hold("collect")
    try:
        for card in cards:
            card.panel.update(story)
    finally:
        document.unhold()


def fill(document: Document, title: str, cards: Sequence[Card], appendix: str = "") -> None:
    """Add cards to a document. `appendix`: HTML below them."""
    # Otherwise, Bokeh would visit all models again for each root.
    with document.models.freeze():
        for card in cards:
            document.add_root(card.panel.root)
    document.title = f"{title} - pipeline"
    document.template = Template((HERE / "page.html").read_text())
    document.template_variables.update(style=(HERE / "page.css").read_text(), cards=list(cards), appendix=appendix)


def write_static(path: Path, title: str, cards: Sequence[Card], story: Story, appendix: str = "") -> None:
    """Write cards that show a story to one HTML file that needs no network. The file is written atomically. Raises
    OSError if it cannot be written."""
    document = Document()
    show(document, story, cards)
    fill(document, title, cards, appendix)
    content = file_html(
        document, INLINE, document.title, template=document.template, template_variables=document.template_variables
    )
    with replacing(path) as file:
        file.write(content.encode())
