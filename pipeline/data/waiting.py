"""Spans that wait to be trained on. A commit fixes a span once training on it has begun: its files are then kept by
name, and never looked for again. For the other spans, the commit keeps the places that were given for them; each
command lists these places again and takes what it finds there."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.data.agenda import Position
from pipeline.data.identity import FileIdentity, SplitIdentity
from pipeline.settings import read_json
from pipeline.spans.passes import SPAN
from pipeline.spans.waiting import Held, Waiting, begun_and_done
from pipeline.storage.files import checksum

MOST_FILES = 32
"""Maximum number of final files that a commit has outside of lists."""
KEPT_SPANS = 2
"""Number of the last final spans whose files stay outside of lists, since the guard reads them (see `changes_in`)."""
MOST_LISTED = 2000
"""Maximum number of files in a list, which readers keep in memory one at a time."""


def waiting_in(split: SplitIdentity, final: SplitIdentity) -> Waiting:
    """The rest of a commit's training split, of which the spans and files of `final` are final."""
    names = {file.path for file in final.files}
    files = [file.path for file in split.files if file.path not in names]
    calendar, first = split.calendar, len(final.spans or ())
    assert calendar, "the training data has spans"
    # Earlier versions kept no places, nor does a run over another one's list.
    given = split.given or [[path] for path in files]
    rows = dict(zip(calendar.labels[first:], calendar.num_own[first:], strict=True))
    return Waiting(tuple(map(tuple, given)), rows, frozenset(files), split.held or {})


def final_part(split: SplitIdentity, num_begun: int) -> SplitIdentity:
    """The part of a training split that is final: the first `num_begun` spans, all their files, and the other spans
    that have rows in one of these files."""
    end, before = num_begun, -1
    files: list[FileIdentity] = []
    while end != before:
        # Files of which all rows were left out are final, too.
        files = [file for file in split.files if file.spans and min(_numbers(file), default=-1) < end]
        before, end = end, max([end, *(1 + max(_numbers(file), default=-1) for file in files)])
    return split.model_copy(update={"files": files, "spans": (split.spans or [])[:end]})


def begun_part(final: SplitIdentity, num_begun: int) -> SplitIdentity:
    """The part of a final part whose other files are listed again: its first `num_begun` spans, and the files with rows
    of these. A file that also has rows of other spans counts as replaced: without them, and under another path."""
    spans, files = (final.spans or [])[:num_begun], []
    for file in final.files:
        numbers = _numbers(file)
        if max(numbers, default=-1) < num_begun:
            files.append(file)
        elif min(numbers) < num_begun:
            cuts = [(n if n is not None and n < num_begun else None, rows) for n, rows in file.spans or ()]
            left = [rows for rows in file.out_of_place or () if rows.trained_with in (None, *spans)]
            path = f"{file.path}.{checksum(f'{file.footer} {file.sample}'.encode())}"
            own = {"path": path, "spans": cuts, "out_of_place": left or None, "replaced": True}
            files.append(file.model_copy(update=own))
    return final.model_copy(update={"files": files, "spans": spans})


def with_lists(train: Mapping[str, Any], done: int, write: Callable[[list[Any]], str]) -> Mapping[str, Any]:
    """A commit's training split with the files of the first `done` spans, except `KEPT_SPANS`, in a list, if they are
    many. `write`: writes a list, and returns its checksum."""
    files, done = train["files"], max(0, done - KEPT_SPANS)
    # The order of files is kept, so one that also has rows of a later span holds back those after it.
    lasts = (max((span for span, _ in file["spans"] if span is not None), default=-1) for file in files)
    end = next((n for n, last in enumerate(lasts) if last >= done), len(files))
    # Files without rows wait.
    over, left = [file for file in files[:end] if file["spans"]], [file for file in files[:end] if not file["spans"]]
    if len(over) <= MOST_FILES:
        return train
    split = read_json(SplitIdentity, json.dumps(train))
    calendar = split.model_copy(update={"files": split.files[:end]}).calendar
    assert calendar, "the training data has spans"
    lists = [write(over[n : n + MOST_LISTED]) for n in range(0, len(over), MOST_LISTED)]
    final = {
        "lists": [*(split.final.lists if split.final else ()), *lists],
        "num_rows": list(calendar.num_rows[:done]), "num_scored": list(calendar.num_scored[:done]),
    }  # fmt: skip
    return {**train, "files": [*left, *files[end:]], "final": final}


def _numbers(file: FileIdentity) -> list[int]:
    return [span for span, rows in file.spans or () if rows and span is not None]


def held_by_guard(split: SplitIdentity, number: int) -> Held | None:
    """The span as the guard sets it aside; None if it cannot, because files with its rows also have other ones."""
    if any({number} < {*_numbers(file)} for file in split.files):
        return None
    calendar = split.calendar
    assert calendar, "a span is set aside"
    content = content_of(split, calendar.labels[number])
    return Held(why="guard", rows=calendar.num_own[number], content=content)


def content_of(split: SplitIdentity, label: str) -> str:
    """Checksum of a span's rows, whatever the names of their files; "" if there are none."""
    number = split.spans.index(label) if label in (split.spans or ()) else -1  # type: ignore[union-attr]
    found = [
        (file.size, file.footer, file.sample, [rows if span == number else -rows for span, rows in file.spans or ()])
        for file in split.files
        if number in _numbers(file)
    ]
    return checksum(json.dumps(found).encode()) if found else ""


def resumed_at(state: Mapping[str, Any], was: SplitIdentity, now: SplitIdentity) -> Position:
    """Position at which a run goes on from a commit with this state and training split, over the split `now`. A span
    that waits is scored again if it has other rows than those that were scored last."""
    at = Position(**state["position"])
    if at.span is None or was.calendar is None:
        return at
    if at.split != "train":
        # Earlier versions counted the spans that had arrived, here.
        _, done = begun_and_done(was.calendar.num_rows, state["workflow"]["schedule"]["epochs"], state["trained"])
        return replace(at, span=done if at.split == SPAN else max(0, done - 1))
    if at.epoch or at.batch:
        return at
    label, labels = (was.spans or [])[at.span], (now.spans or [])[at.span : at.span + 1]
    last = state["epochs"][-1] if state["epochs"] else {}
    is_scored = last.get("split") == SPAN and last.get("span") == label
    same = labels == [label] and (was is now or content_of(was, label) == content_of(now, label))
    return at if is_scored and same else Position(0, SPAN, 0, at.span)


def is_recorded(was: SplitIdentity, now: SplitIdentity, at: Position) -> bool:
    """True if a commit at this position, with the training split `was`, knows what waits in the split `now`."""
    if at.span is None or (was.spans == now.spans and was.held == now.held and at.span == len(now.spans or ())):
        with_counts = [{file.path for file in split.files if file.out_of_place} for split in (was, now)]
        return at.span is None or (was.unread == now.unread and with_counts[0] == with_counts[1])
    return was == now


def chosen(
    split: SplitIdentity, waiting: Waiting, known: Collection[str], num_final: int, lacking: Collection[str] = ()
) -> tuple[SplitIdentity, list[str]]:
    """The part of a split that this command may train on, and a line for each span that is newly set aside.

    A span that was listed before and has fewer rows now is set aside, and so are the spans in the same files. Files in
    places that were given earlier may be new; they are left out if all their spans follow those that the run knows.
    A span that was set aside before comes first among those that wait. `known`: names of the files that the run has, or
    that this command names. `num_final`: number of spans that are final. `lacking`: names of spans that wait for one of
    their files.
    """
    calendar, labels = split.calendar, split.spans or []
    assert calendar, "the training data has spans"
    files = _up_to_known(split, waiting, known)
    there = {number for file in files for number in _numbers(file)}
    there |= {*range(len(split.final.num_rows) if split.final else 0)}
    own = calendar.num_own
    rows = {label: own[number] for number, label in enumerate(labels) if number in there}
    held: dict[str, Held] = {}
    for label, before in {**waiting.rows, **{label: one.rows for label, one in waiting.held.items()}}.items():
        if label in waiting.as_is:
            continue
        if label in waiting.without or (label in waiting.held and waiting.held[label].why == "given up"):
            held[label] = Held(why="given up", rows=before)
        elif label in waiting.held and waiting.held[label].content == content_of(split, label):
            held[label] = waiting.held[label]
        elif rows.get(label, 0) < before and label not in lacking:
            held[label] = Held(why="short", rows=before)
    for label in {*lacking}.difference(held, waiting.as_is, labels[:num_final]):
        had = waiting.held[label].rows if label in waiting.held else waiting.rows.get(label, 0)
        held[label] = Held(why="file", rows=had)
    aside = {number for number, label in enumerate(labels) if label in held}
    while more := {n for file in files if aside & {*_numbers(file)} for n in _numbers(file)} - aside:
        aside |= more
    for number in aside:
        label = labels[number]
        held.setdefault(label, Held(why="short", rows=rows[label]))
    lines = [
        f"span {label} has {rows.get(label, 0):,} rows and had {one.rows:,}, so it is not trained on now; put its "
        f"files back, train on it as it is with --as-is {label}, or give it up with --without {label}"
        for label, one in held.items()
        if label not in waiting.held and one.why == "short"
    ]
    there -= aside
    turn = sorted(there, key=lambda number: (number >= num_final, labels[number] not in waiting.held, number))
    return _numbered(split, [file for file in files if not aside & {*_numbers(file)}], turn, held), lines


def _up_to_known(split: SplitIdentity, waiting: Waiting, known: Collection[str]) -> list[FileIdentity]:
    """The files without those that only have spans after the last one that the run knows."""
    labels = split.spans or []
    of_known = [number for number, label in enumerate(labels) if label in waiting.rows or label in waiting.held]
    of_known += [number for file in split.files if file.path in known for number in _numbers(file)]
    last, files = max(of_known, default=-1), []
    for file in split.files:
        numbers = _numbers(file)
        if not numbers or min(numbers) <= last:
            last = max([last, *numbers])
            files.append(file)
    return files


def _numbered(
    split: SplitIdentity, files: Sequence[FileIdentity], turn: Sequence[int], held: Mapping[str, Held]
) -> SplitIdentity:
    """The split with these files and spans only, the spans in turn."""
    place = {number: n for n, number in enumerate(turn)}
    cut = [
        file.model_copy(
            update={"spans": [(None if n is None else place[n], rows) for n, rows in file.spans or () if rows]}
        )
        for file in files
    ]
    # Only files of spans that change places do, too: those before are in the order in which they were trained on.
    kept = next((n for n, pair in enumerate(zip(turn, sorted(turn), strict=True)) if len({*pair}) > 1), len(turn))
    cut.sort(key=lambda file: max(kept, min(_numbers(file), default=0)))
    labels = [(split.spans or [])[number] for number in turn]
    return split.model_copy(update={"files": cut, "spans": labels, "held": dict(held) or None})
