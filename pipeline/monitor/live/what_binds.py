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
    """Say in one sentence how much of `seconds` training waited, and for what: the three largest causes, and what the
    others take together, so that the shares add up. `waits`: seconds by cause, and of training under "train"."""
    if seconds <= 0:
        return "nothing was trained"
    waited = {cause: value for cause, value in waits.items() if cause in WORDS}
    share = sum(waited.values()) / seconds
    by_size = sorted((cause for cause in waited if waited[cause] > 0), key=waited.__getitem__)[::-1]
    named = [cause for cause in by_size[:3] if waited[cause] >= SMALL * seconds]
    if not named:
        return f"training waited {share:.0%} of the time: the training steps bind"
    causes = [f"{waited[cause] / seconds:.0%} for {WORDS[cause]}" for cause in named]
    others = [WORDS[cause] for cause in by_size[len(named) :] if waited[cause] >= 0.005 * seconds]
    rest = round(100 * share) - sum(round(100 * waited[cause] / seconds) for cause in named)
    if rest > 0 and others:
        causes.append(f"and {rest}% for {', '.join(others[:-1])}{' and ' * (len(others) > 1)}{others[-1]}")
    return f"training waited {share:.0%} of the time: {', '.join(causes)}"
