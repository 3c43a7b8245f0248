"""Waiting for complete files, until there are some or a signal comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from pipeline.arrivals.complete import Arrivals

LOOK_SECONDS = 5.0
"""Time from one check of the folder to the next."""
SILENT_SECONDS = 60.0
"""Time after which a wait is reported."""
NAMED = 3
"""Maximum number of incomplete files that the report names."""


def wait_for_files(
    arrivals: Arrivals, known: Collection[str], say: Callable[[str], None],
    is_stopped: Callable[[], bool] = lambda: False, look_seconds: float = LOOK_SECONDS,
) -> tuple[str, ...]:  # fmt: skip
    """Return the places of complete files that are not `known`, once there are some, in the order of names; none if
    `is_stopped` says so. `say` is called once if the wait takes more than a minute."""
    begun, has_said = time.monotonic(), False
    while not is_stopped():
        look = arrivals.look(known)
        if look.complete:
            return look.complete
        if not has_said and time.monotonic() - begun >= SILENT_SECONDS:
            has_said = True
            some = "; ".join(f"{name} {why}" for name, why in look.waits_for[:NAMED])
            more = f" and {len(look.waits_for) - NAMED} more" if len(look.waits_for) > NAMED else ""
            say(f"waiting for files in {arrivals.folder}{f': {some}{more}' if some else ''}")
        time.sleep(look_seconds)
    return ()
