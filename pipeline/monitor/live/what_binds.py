"""Words for what bound a run."""

from __future__ import annotations

from collections.abc import Mapping

WORDS = {
    "read": "reading and decoding examples", "dedup": "finding unique keys", "plan": "planning the moves of rows",
    "disk": "rows from and to disk", "host copy": "copies of rows in RAM, and new rows",
    "device copy": "copies to the GPU", "other workers": "other workers", "hand-over": "tasks to be begun",
    "commit": "commits", "evaluation": "evaluation", "compile": "the compiler", "start": "the start of blocks",
    "end": "the last results",
}  # fmt: skip
SMALL = 0.05
"""Share of the wall time below which a cause is not named."""


def what_binds(waits: Mapping[str, float], seconds: float) -> str:
    """Say in one sentence how much of `seconds` training waited, and for what. `waits`: seconds by cause, and of
    training under "train"."""
    if seconds <= 0:
        return "nothing was trained"
    waited = {cause: value for cause, value in waits.items() if cause in WORDS}
    share = sum(waited.values()) / seconds
    named = sorted((cause for cause in waited if waited[cause] >= SMALL * seconds), key=waited.__getitem__)[::-1]
    causes = [f"{waited[cause] / seconds:.0%} for {WORDS[cause]}" for cause in named[:3]]
    if not causes:
        return f"training waited {share:.0%} of the time: the training steps bind"
    return f"training waited {share:.0%} of the time: {', '.join(causes)}"
