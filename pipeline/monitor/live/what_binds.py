"""Words for what limited the speed of a run."""

from __future__ import annotations

from collections.abc import Mapping

WORDS = {
    "read": "reading examples", "dedup": "finding unique keys", "plan": "planning which rows move",
    "disk": "rows from and to disk", "host copy": "copying rows in RAM", "device copy": "copying to the GPU",
    "other workers": "other workers", "hand-over": "starting tasks", "commit": "commits", "evaluation": "evaluation",
    "compile": "compiling", "start": "starting", "end": "finishing",
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
        return f"training waited {share:.0%} of the time: its own steps take the rest"
    causes = [f"{waited[cause] / seconds:.0%} for {WORDS[cause]}" for cause in named]
    others = [WORDS[cause] for cause in by_size[len(named) :] if waited[cause] >= 0.005 * seconds]
    rest = round(100 * share) - sum(round(100 * waited[cause] / seconds) for cause in named)
    if rest > 0 and others:
        causes.append(f"and {rest}% for {others[0] if len(others) == 1 else f'{len(others)} other things'}")
    return f"training waited {share:.0%} of the time: {', '.join(causes)}"
