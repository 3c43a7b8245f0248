"""Plain oracle of a run over days: which rows each night's command trains on, with which span, and what it leaves out.
Dictionaries and loops over rows; nothing here is the pipeline's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import Any, NamedTuple

FIRST = date(2026, 11, 20)
BEFORE = " before"
"""End of the name of a file that was replaced."""


class Row(NamedTuple):
    number: int
    day: int
    flipped: bool = False


Rows = tuple[Row, ...]
Folder = Mapping[str, Rows | None]
"""Rows of each file; None: the file cannot be read."""


class Refused(Exception):
    """The command ends with exit code 2, and the run is as before."""


class Place(NamedTuple):
    span: str | None
    """Span with which a row is trained on; None: it is left out."""
    kind: str = ""
    """Why it is out of place; empty if it is not."""


@dataclass
class Listed:
    name: str
    rows: Rows
    places: list[Place]

    @property
    def spans(self) -> set[str]:
        return {place.span for place in self.places if place.span}

    def of(self, span: str) -> list[int]:
        return [row.number for row, place in zip(self.rows, self.places, strict=True) if place.span == span]


@dataclass(frozen=True)
class Split:
    """List of a command: the files with the places of their rows, spans in turn, and what is set aside."""

    files: list[Listed] = field(default_factory=list)
    spans: list[str] = field(default_factory=list)
    held: dict[str, tuple[str, int, Any]] = field(default_factory=dict)
    """Why, number of rows (see `num_own`), and the content to which the guard objects."""
    unread: frozenset[str] = frozenset()
    """Names of the files that cannot be read."""
    copies: frozenset[str] = frozenset()
    """Names of files with the rows of others."""

    def num_own(self, span: str) -> int:
        """Number of rows of a span's own day; if it has only rows of others, of these."""
        days = [row.day for f in self.files for row, at in zip(f.rows, f.places, strict=True) if at.span == span]
        return sum(name_of(day) == span for day in days) or len(days)


@dataclass(frozen=True)
class Rules:
    late: str = "refuse"
    ahead: str = "refuse"
    delay: int = 0
    """Days until labels are known."""
    then: str = "stop"


def name_of(day: int) -> str:
    return str(FIRST + timedelta(days=day))


def body_of(days: Sequence[int], gap: int = 1) -> list[int]:
    """Days of the largest group of neighbors, the last of equal ones."""
    groups: list[list[int]] = []
    for day in sorted(days):
        if groups and day - groups[-1][-1] <= gap:
            groups[-1].append(day)
        else:
            groups.append([day])
    best: list[int] = []
    for group in groups:
        best = group if len(group) >= len(best) else best
    return sorted({*best})


def place(
    files: Sequence[Sequence[int]], known: Sequence[str], rules: Rules, gap: int = 1, aside: Collection[str] = (),
    gone: Collection[str] = (), again: Collection[str] = (),
) -> tuple[list[tuple[int, list[Place]]], list[str]]:  # fmt: skip
    """Numbers of the files in the order of reading, each with the places of its rows, and the names of all spans.
    `files`: the day of each row. `known`: final spans. `gone`: those of which a file is gone. `again`: spans of which
    rows were trained on out of place, in such files. Raises Refused, with the setting that would help."""
    last = max(known, default="")
    bodies = [body_of(days, gap) for days in files]
    opened = set()
    lost = []
    for days, body in zip(files, bodies, strict=True):
        final = {name_of(day) for day in days if name_of(day) in known and name_of(day) in gone}
        lost.append(
            final | {name_of(day) for day in days if final and name_of(day) in again and name_of(day) not in known}
        )
        for day in days:
            if name_of(day) in lost[-1]:
                continue
            follows = name_of(day) >= last or name_of(day) in aside or (day in body and rules.late == "take")
            if day <= body[-1] and name_of(day) not in known and follows:
                opened.add(name_of(day))
    new = sorted(opened)
    names = [*known, *new]

    def kind_of(day: int, number: int) -> str:
        name, body = name_of(day), bodies[number]
        if name in lost[number]:
            return "rewritten"
        if day > body[-1]:
            return "ahead"
        return "" if name in new and (name >= last or name in aside) else "late"

    def span_of(day: int, kind: str, number: int) -> str | None:
        body = bodies[number]
        if not kind:
            return name_of(day)
        rule = {"late": rules.late, "ahead": rules.ahead, "rewritten": "drop"}[kind]
        if rule == "refuse":
            raise Refused(f"data.{kind}")
        if rule == "drop":
            return None
        if kind == "ahead":
            return span_of(body[-1], kind_of(body[-1], number), number)
        for name in map(name_of, (day, *body)):
            if name in new:
                return name
        if len(names) == len(known):
            parts = [one for one in known if one.startswith(f"{name_of(day)} part")]
            names.append(f"{name_of(day)} part {2 + len(parts)}")
        return names[len(known)]

    keys: list[int] = []
    for body in bodies:
        keys.append(body[0] if body else keys[-1] if keys else -1)
    found = []
    for number in sorted(range(len(files)), key=keys.__getitem__):
        kinds = [kind_of(day, number) for day in files[number]]
        days = zip(files[number], kinds, strict=True)
        found.append((number, [Place(span_of(day, kind, number), kind) for day, kind in days]))
    return found, names


class Year:
    """The state of a run: what its last command listed, and how many of these spans it has trained on."""

    def __init__(self) -> None:
        self.split, self.trained = Split(), 0
        self._begun: dict[int, Split] = {}
        """List of the command that trained on each span."""

    def final(self) -> tuple[list[str], list[Listed]]:
        """Final spans and files: those trained on, and whatever shares a file with these."""
        spans, end, before = self.split.spans, self.trained, -1
        files: list[Listed] = []
        while end != before:
            files = [f for f in self.split.files if f.rows and (not f.spans or f.spans & {*spans[:end]})]
            numbers = [spans.index(span) for file in files for span in file.spans]
            before, end = end, max([end, *(n + 1 for n in numbers)])
        return spans[:end], files

    def known_in(self, folder: Folder) -> tuple[list[str], list[Listed]]:
        """Final spans and files. If one of the files that other spans share with these is another one, only the rows of
        spans that were trained on are final, and all that is in the folder is looked at again."""
        known, files = self.final()
        trained = {*self.split.spans[: self.trained]}
        if all(folder.get(file.name) == file.rows for file in files if file.spans - trained):
            return known, files
        left = []
        for file in files:
            if file.spans <= trained:
                left.append(file)
            elif file.spans & trained:
                places = [at if at.span in {None, *trained} else Place(None) for at in file.places]
                left.append(Listed(file.name + BEFORE, file.rows, places))
        return self.split.spans[: self.trained], left

    def night(
        self, folder: Folder, rules: Rules, bad: Callable[[str], bool], as_is: str = "", without: str = ""
    ) -> int:
        """Exit code of a command. `bad`: true if the guard objects to a span. `as_is`, `without`: a span or ""."""
        known, files = self.known_in(folder)
        waits = {span: self.split.num_own(span) for span in self.split.spans if span not in known}
        # Only what the last command left waiting can be chosen; what shares files with trained spans, only accepted.
        held, final = self.split.held, self.final()[0]
        may = {*self.split.spans[self.trained :], *held}, {*self.split.spans, *held}.difference(final)
        if wrong := [one for one, there in zip((as_is, without), may, strict=True) if one and one not in there]:
            raise Refused(f"{wrong[0]} does not wait")
        listed = self._list(folder, rules, known, files)
        split, is_first = self._chosen(listed, known, waits, as_is, without)
        if not folder or not any(file.rows for file in split.files):
            raise Refused("there are no files, or no rows")
        before, self.split = self.split, split
        if not split.unread <= before.unread:
            return 4  # Any span may have rows in a file that cannot be read; the next command leaves it out.
        same = (split.spans, split.held, split.unread) == (before.spans, before.held, before.unread)
        if same and len(split.spans) == self.trained and counted_in(split) == counted_in(before):
            self.split = before
            return 0
        ends = [date.fromisoformat(span[:10]) for span in self.split.spans]
        due = sum(max(ends[: n + 1]) + timedelta(days=rules.delay) <= max(ends) for n in range(len(ends)))
        while self.trained < due:
            span = self.split.spans[self.trained]
            if span != as_is and bad(span):
                if rules.then == "stop" or any(span in f.spans and len(f.spans) > 1 for f in self.split.files):
                    return 3
                held = self.split.held | {span: ("guard", split.num_own(span), content_of(self.split, span))}
                self.split = replace(self.split, held=held)
                waits = {*self.split.spans, *held}.difference(self.final()[0])
                return self.night(folder, rules, bad, *(one if one in waits else "" for one in (as_is, without))) or 4
            self._begun[self.trained] = self.split
            self.trained += 1
        return 4 if is_first else 0

    def rewind(self, span: str) -> None:
        """Go back to the commit before a span that was trained on."""
        self.trained = self.split.spans.index(span)
        self.split = self._begun[self.trained]

    def _list(self, folder: Folder, rules: Rules, known: list[str], files: list[Listed]) -> Split:
        """All that is there now: what is final as it was, and the other files of the folder, by name."""
        final, seen = {file.name for file in files}, []
        unread, copies = set[str](), set[str]()
        changed = [file for file in files if folder.get(file.name) != file.rows]
        there = [file for file in files if file.rows and not file.name.endswith(BEFORE)]
        kept = [file.rows for file in there if file.name not in folder or file not in changed]
        for name, rows in sorted(folder.items()):
            if name not in final:
                if rows is None and not self.split.files:
                    raise Refused(name)
                if rows is None:
                    unread.add(name)
                elif rows in kept and rows:
                    copies.add(name)
                else:
                    kept.append(rows)
                    seen.append((name, rows))
        gone = {span for file in changed for span in file.spans}
        gone |= {name_of(r.day) for f in changed for r, at in zip(f.rows, f.places, strict=True) if at.kind}
        taken = [(r, at) for f in changed for r, at in zip(f.rows, f.places, strict=True) if at.kind and at.span]
        days, again = [[row.day for row in rows] for _, rows in seen], {name_of(row.day) for row, _ in taken}
        placed, names = place(days, known, rules, aside=self.split.held, gone=gone, again=again)
        found = [*files, *(Listed(*seen[number], places) for number, places in placed)]
        return Split(found, names, unread=frozenset(unread), copies=frozenset(copies))

    def _chosen(
        self, listed: Split, known: list[str], waits: dict[str, int], as_is: str, without: str
    ) -> tuple[Split, bool]:
        """List of what this command may train on, and True if it is the first to set a span aside as short."""
        was, held = self.split.held, dict[str, tuple[str, int, Any]]()
        rows = {span: listed.num_own(span) for span in listed.spans}
        for span, before in {**waits, **{span: one[1] for span, one in was.items()}}.items():
            if span == without or (span in was and was[span][0] == "given up" and span != as_is):
                held[span] = "given up", before, None
            elif span != as_is and span in was and was[span][2] == (content_of(listed, span) or None):
                held[span] = was[span]
            elif span != as_is and rows.get(span, 0) < before:
                held[span] = "short", before, None
        aside = {*held}
        while more := {s for file in listed.files if file.spans & aside for s in file.spans} - aside:
            aside |= more
        for span in listed.spans:
            if span in aside and span not in held:
                held[span] = "short", rows[span], None
        files = [file for file in listed.files if not file.spans & aside]
        rest = [span for span in listed.spans[len(known) :] if span not in aside]
        spans = [*known, *(s for s in rest if s in was), *(s for s in rest if s not in was)]
        first = [n for n, span in enumerate(spans) if span != [*known, *rest][n]]
        if first:
            turn = {span: number for number, span in enumerate(spans)}
            files.sort(key=lambda file: max(first[0], min((turn[span] for span in file.spans), default=0)))
        is_first = any(why == "short" and span not in was for span, (why, _, _) in held.items())
        return Split(files, spans, held, listed.unread, listed.copies), is_first


def counted_in(split: Split) -> tuple[frozenset[str], set[str]]:
    """Copies, and names of the files with rows out of place: a command that trains on nothing commits these, too."""
    return split.copies, {file.name for file in split.files if any(at.kind for at in file.places)}


def content_of(split: Split, span: str) -> list[tuple[Rows, list[bool]]]:
    return [(file.rows, [one.span == span for one in file.places]) for file in split.files if span in file.spans]
