"""Spans that wait to be trained on, as plain values (see `pipeline.data.waiting`), and the commits before spans that a
run keeps, so that it can go back to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal

from pipeline.settings import Count, Digest, Strict


def spans_done(state: Mapping[str, Any]) -> tuple[int, bool]:
    """Number of spans that were trained on before a commit, and True if no other span was trained on in part. `state`:
    that of the commit's manifest; its training data must have spans."""
    train, rows = state["data"]["train"], Counter[int]()
    for file in train["files"]:
        for span, num_rows in file["spans"]:
            # Rows without a span are left out.
            rows[span] += num_rows
    rows.update(dict(enumerate(train.get("final", {}).get("num_rows", ()))))
    num_rows = [rows[span] for span in range(len(train["spans"]))]
    begun, done = begun_and_done(num_rows, state["workflow"]["schedule"]["epochs"], state["trained"])
    return done, begun == done


def kept_before(spans: Iterable[int], keep: int) -> set[int]:
    """Choose at most `keep` of the spans before which there are commits: the newest two, and before them one in each
    distance of 2 to 3, 4 to 7, 8 to 15 spans, and so on. Places that are left go to the newest of the others.

    The multiples of 2^k that are chosen now were multiples of 2^(k-1) that were chosen before, so a run that chooses
    after each span never misses one.
    """
    newest_first = sorted({*spans}, reverse=True)
    newest = newest_first[0] if newest_first else 0
    doubling = {newest, *((newest >> k << k) - (1 << k) for k in range(keep - 1))}
    return {*sorted(newest_first, key=lambda span: span not in doubling)[:keep]}


EXIT_CODE = 4
"""Exit code of `pipeline run` if it did all that it could and is the first to set something aside."""


class Held(Strict):
    """A span that is set aside: it is not trained on until there is a reason."""

    why: Literal["short", "file", "guard", "given up"]
    """"short": it, or another span in the same files, has fewer rows than before; "file": one of its files was not
    taken (see `Unread`); "guard": its score is too bad."""
    rows: Count
    """Number of rows that it had before."""
    content: Digest | None = None
    """Content to which the guard objects (see `content_of`)."""


class Unread(Strict):
    """A file that came for a run and is not taken."""

    why: Literal["incomplete", "unreadable", "left", "copy"]
    """"incomplete": by `data.complete`; "unreadable": what it may belong to waits for it; "left": so it was, and has
    not changed in a later command, so nothing waits for it any more; "copy": it has the bytes of another one."""
    stamp: str = ""
    """Size and time of the last change, or ETag, of a file that cannot be read."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Spans that are not final, as a commit knows them."""

    given: tuple[tuple[str, ...], ...]
    """Places of their files, as given by each command: files, folders or patterns."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Number of rows of each span when it was last listed."""
    files: frozenset[str] = frozenset()
    """Names of their files."""
    held: Mapping[str, Held] = field(default_factory=dict)
    as_is: Collection[str] = ()
    """Names of spans that this command trains on as they are."""
    without: Collection[str] = ()
    """Names of spans that this command gives up."""

    def __contains__(self, label: str) -> bool:
        return label in self.rows or label in self.held

    def with_choices(self, as_is: Collection[str], without: Collection[str], listed: Collection[str] = ()) -> Waiting:
        """The same, with what this command says of single spans. `listed`: spans that share files with trained ones, so
        that only the guard may have objected to them. Raises ValueError if a span does not wait."""
        for option, labels, others in (("--as-is", as_is, listed), ("--without", without, ())):
            if wrong := [label for label in labels if label not in self and label not in others]:
                there = ", ".join([*self.rows, *self.held]) or "none"
                raise ValueError(f"{option} {wrong[0]}: no such span waits; those that wait: {there}")
        return replace(self, as_is=as_is, without=without)


def begun_and_done(num_rows: Sequence[int], epochs: int, trained: int) -> tuple[int, int]:
    """Number of spans with which training has begun, and of those that it is done with, after `trained` examples in all
    passes. `num_rows`: of each span, in the order of training. `epochs`: passes over each span."""
    ends = [epochs * rows for rows in accumulate(num_rows, initial=0)]
    return sum(end < trained for end in ends[:-1]), sum(end <= trained for end in ends[1:])
