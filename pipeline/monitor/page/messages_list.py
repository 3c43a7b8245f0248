"""The last lines that a run said to its user."""

from __future__ import annotations

import time
from html import escape

from pipeline.monitor.page.panel import Panel, text_panel
from pipeline.monitor.story import Story


def messages_panel() -> Panel:
    """The panel "Messages", the newest first."""

    def text(story: Story) -> str:
        said = [
            f"<li><time>{time.strftime('%d %b %H:%M:%S', time.localtime(one.at))}</time>{escape(one.text)}</li>"
            for one in reversed(story.messages)
        ]
        return f"<ul class='messages'>{''.join(said)}</ul>" if said else '<p class="nothing">No message.</p>'

    return text_panel("messages", text)
