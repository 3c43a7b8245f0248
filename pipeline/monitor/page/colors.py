"""Colours of a report: a thing has the same colour everywhere, and colours are distinct for colour-blind readers.

Colours follow Okabe and Ito, Color Universal Design (2008). None is very light or dark, so all are readable on light
and dark backgrounds.
"""

from __future__ import annotations

GREEN, BLUE, ORANGE, RED = "#009e73", "#1a7fc1", "#e69f00", "#d55e00"
PURPLE, SKY, GREY = "#cc79a7", "#56b4e9", "#9aa3ad"

CAUSE_COLORS = {
    "train": GREEN, "read": SKY, "dedup": "#3b7ea1", "plan": "#c9b400", "disk": RED, "host copy": ORANGE,
    "device copy": BLUE, "other workers": PURPLE, "hand-over": "#b9c0c8", "commit": "#6f5bb5", "evaluation": "#b5a4e0",
    "compile": "#8c5a2b", "start": "#d9c7a3", "end": "#7d8790", "unattributed": "#a9b1ba",
}  # fmt: skip
"""Colours of training and of the causes of its waits."""
STAGE_COLORS = {
    "read": SKY, "dedup": "#3b7ea1", "unite": PURPLE, "scan": "#8c5a2b", "plan": "#c9b400", "prefetch": RED,
    "upload": BLUE, "train": GREEN, "write_back": "#6f5bb5",
}  # fmt: skip
"""A stage has the colour of the wait that it causes; a prefetch waits mostly for the disk."""
TIER_COLORS = {"device": BLUE, "host": ORANGE, "disk": RED, "new": GREY}
SPLIT_COLORS = {"train": GREY, "validation": BLUE, "test": RED, "span": GREEN}
