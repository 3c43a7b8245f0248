"""Files by which a run over spans is extended: which are known to the run, and which are new."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pipeline.data.identity import Begun, name_of
from pipeline.data.split_files import added_files
from pipeline.files.find import find
from pipeline.messages.uris import is_remote
from pipeline.spans.waiting import Waiting
from pipeline.workflow import Data, Workflow

MAX_NAMED = 5
"""Maximum number of files named in a message."""


def extended(
    workflow: Workflow, begun: Begun, extend: Sequence[str], known_ok: bool, say: Callable[[str], None],
    as_is: Sequence[str] = (), without: Sequence[str] = (),
) -> Begun:  # fmt: skip
    """Data of the run, extended. `extend`: files, folders or patterns to add, relative to the current folder.
    `known_ok`: skip files that the run already has; otherwise they are refused, unless the run still has spans to
    train, as after an interruption. `as_is`, `without`: see `Waiting`.

    Raises ValueError if the workflow has no spans, if a file is known, or if nothing is found.
    """
    if not workflow.data.spans_by:
        if extend:
            raise ValueError(
                "--extend needs training data with spans; set data.time to the column with the times, or data.span to "
                "'file'"
            )
        return begun
    places = tuple(one if is_remote(one) else str(Path(one).expanduser().absolute()) for one in extend)
    known = {name for name, _ in begun.files("train")}
    given = [name_of(file, workflow.data.root) for file in added_files(workflow.data, places)]
    again = [name for name in given if name in known]
    if again and begun.is_over and not known_ok:
        raise ValueError(
            f"--extend names {_some(again)}, which the run has already trained on; name only new files, or skip "
            "known ones with --known-ok"
        )
    waiting = (begun.waiting or Waiting(())).with_choices(as_is, without)
    if known and (others := _matched(workflow.data) - known - waiting.files - {*given}):
        say(f"data.train matches {_some(sorted(others))}, which the run does not have; --extend trains on them")
    return replace(begun, extend=places, waiting=waiting if begun.waiting else None)


def _matched(data: Data) -> set[str]:
    """Names of the files that data.train currently matches."""
    with suppress(ValueError, OSError):
        return {name_of(file, data.root) for file in find(data.train, data.root, "data.train", "Parquet").files}
    return set()


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
