"""Rows out of place: those of a span that was trained on, those of a time far after the file's others, and those of no
plausible time. What happens to each is a function of the files and of the run's spans, never of a clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from pipeline.settings import Count, Strict
from pipeline.spans.times import NO_SPAN, Clock, Run

Kind = Literal["late", "ahead", "implausible", "rewritten"]
DAY = 86_400
MOST_NAMED = 3
"""Maximum number of spans, or of files, named in a line."""


class OutOfPlace(Strict):
    """Rows of a file that are not trained on with their own span."""

    kind: Kind
    """"late": of a span that was trained on before. "ahead": of a span after the file's body. "implausible": of a time
    outside 1990 to 2100. "rewritten": of a span that was trained on from files that are gone since."""
    span: str
    """Name of their own span, or `NO_SPAN`."""
    rows: Count
    trained_with: str | None = None
    """Name of the span with which they are trained on; None if they are left out."""


def body_of(runs: Sequence[Run], clock: Clock | None, gap: int) -> list[str]:
    """Names of the spans of a file's body, in order: of the groups of spans that are at most `gap` spans from each
    other, the one with most rows, and the last of these. `clock`: None if spans are no times."""
    rows = Counter[str]()
    for run in runs:
        if run.label != NO_SPAN:
            rows[run.label] += run.num_rows
    if clock is None:
        return list(rows)
    groups: list[list[str]] = []
    for label in sorted(rows):
        if groups and clock.distance(groups[-1][-1], label) <= gap:
            groups[-1].append(label)
        else:
            groups.append([label])
    return max(reversed(groups), key=lambda group: sum(rows[label] for label in group), default=[])


def refusal(file: object, run: Run, kind: Kind, body: Sequence[str], last: str) -> str:
    """Message about a run of rows that a setting refuses. `last`: the last span of the training run."""
    where = f"{file}, row {run.first_row:,}: span {run.label}"
    if kind == "ahead":
        return (
            f"{where} lies after the file's other spans, of which the last is {body[-1]}, as from a wrong clock; set "
            "data.ahead to 'take', to train on such rows with that span, or to 'drop'; or correct them; or raise "
            "data.gap if the spans between have no rows"
        )
    return (
        f"{where} is late: the run has trained up to span {last}, and on each span once; set data.late to 'take', to "
        "train on such rows with a later span, or to 'drop'; or leave them out. If files are cut by local days, name "
        "the zone in data.time"
    )


def counted(files: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Numbers of rows out of place by their own span, kind, and the span with which they are trained on. `files`:
    identities of files as JSON."""
    counts = Counter[tuple[str, str, str | None]]()
    for file in files:
        for rows in file.get("out_of_place") or ():
            counts[rows["span"], rows["kind"], rows.get("trained_with")] += rows["rows"]
    names = ("span", "kind", "trained_with")
    return [dict(zip(names, key, strict=True)) | {"rows": counts[key]} for key in sorted(counts, key=str)]


def remarks_on(found: Iterable[tuple[object, OutOfPlace]]) -> list[str]:
    """A line for each kind of rows out of place, and for what becomes of them. `found`: these with their files."""
    of_kind: dict[tuple[Kind, bool], list[tuple[object, OutOfPlace]]] = {}
    for file, rows in found:
        of_kind.setdefault((rows.kind, rows.trained_with is None), []).append((file, rows))
    lines = []
    for (kind, left_out), pairs in of_kind.items():
        spans, files = Counter[str](), dict.fromkeys(str(file) for file, _ in pairs)
        for _, rows in pairs:
            spans[rows.span] += rows.rows
        trained_with = list(dict.fromkeys(str(rows.trained_with) for _, rows in pairs))
        named = ", ".join(f"{label}: {count:,}" for label, count in list(spans.items())[:MOST_NAMED])
        more = f", and {len(spans) - MOST_NAMED:,} more spans" if len(spans) > MOST_NAMED else ""
        what = f"left out ({_reason(kind)})" if left_out else f"trained on with {', '.join(trained_with[:MOST_NAMED])}"
        where = ", ".join(list(files)[:MOST_NAMED]) + (", ..." if len(files) > MOST_NAMED else "")
        lines.append(f"{spans.total():,} rows are {kind} ({named}{more}), and {what}: in {where}")
    return lines


def _reason(kind: Kind) -> str:
    if kind == "rewritten":
        return "files that the run was trained on are gone, so that these rows may be the same"
    return "data.late" if kind == "late" else "data.ahead"


def part_of(label: str, latest: int, clock: Clock) -> list[str]:
    """A line if a span has no rows in its second half, as a part of a day; else none. `latest`: seconds, as the zone of
    the clock writes them, of the last of all rows."""
    rest = clock.end_of(label) - latest
    said = f"span {label} has no rows in its last {rest // 60:,} minutes; its other parts are late in later commands"
    # A date says no hour, and rows of the first minutes wait if they are few (see `Arrivals.num_closed`).
    is_part = " part " not in label and latest % DAY and clock.length / 2 < rest < 0.95 * clock.length
    return [f"{said} (data.late), unless it waits for the next span (data.close='next')"] if is_part else []


def gaps_between(labels: Sequence[str], clock: Clock, gap: int) -> list[str]:
    """A line that names the gaps between spans, or none. `labels`: names of days or hours, in order."""
    gaps = [(a, b) for a, b in pairwise(labels) if clock.distance(a, b) > gap]
    if not gaps:
        return []
    named = ", ".join(f"{a} and {b}" for a, b in gaps[:MOST_NAMED]) + (", ..." if len(gaps) > MOST_NAMED else "")
    return [f"no rows lie between the spans {named}; such rows are late if they come in another command (data.late)"]
