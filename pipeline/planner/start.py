"""Start of a predicted run: its first example or, for a resumed run over spans, the position of the last commit."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from pipeline.commits.flush import live_at
from pipeline.commits.reading import hold
from pipeline.commits.reopen import read_commit
from pipeline.commits.run_state import newest_state
from pipeline.data.agenda import START, Agenda, Position
from pipeline.data.identity import Begun
from pipeline.driver.session import Session
from pipeline.records import U64
from pipeline.spans.passes import Leg


@dataclass(frozen=True, slots=True)
class Start:
    """Start of a run, or of the rest of a resumed run."""

    begun: Begun | None = None
    """See `files_of_splits`."""
    keys_U: U64 = field(default_factory=lambda: np.empty(0, np.uint64))
    """Keys that have a row at the start."""

    @property
    def at(self) -> Position:
        return (self.begun and self.begun.at) or START

    def legs(self, agenda: Agenda) -> list[tuple[Leg, int]]:
        """Remaining passes, each with its number of remaining examples."""
        first = agenda.block_at(self.at, 1)
        place = agenda.legs.index(Leg.of(first)) if first else len(agenda.legs)
        done = first.first_example if first else 0
        return [(leg, agenda.size(leg) - (0 if n else done)) for n, leg in enumerate(agenda.legs[place:])]


def start_of(session: Session) -> Start:
    """Find the start of a session. For a resumed run over spans, reads the keys of the last commit, since the files
    they came from may be gone; any other run is predicted as a whole. Raises Damaged if the commit is damaged."""
    begun = Begun(session.checked.source.identity)
    if not session.checked.begun or session.checked.begun.at is None:
        return Start(begun)
    with hold(session.run_dir, "last") as held, held.explaining():
        places, log = read_commit(held.run_dir, held.manifest, newest_state([held.manifest]).speed.of_disk)
        try:
            keys = [live_at(places, log, chunk)[1] for chunk in places.chunks.live().tolist()]
        finally:
            log.close()
    return Start(replace(begun, at=session.checked.begun.at), np.concatenate([np.empty(0, np.uint64), *keys]))
