"""The commits before spans that a run keeps, so that it can go back to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.spans.waiting import begun_and_done


def spans_done(state: Mapping[str, Any]) -> tuple[int, bool]:
    """Number of spans that were trained on before a commit, and True if no other span was trained on in part. `state`:
    that of the commit's manifest; its training data must have spans."""
    train, rows = state["data"]["train"], Counter[int]()
    for file in train["files"]:
        for span, num_rows in file["spans"]:
            # Rows without a span are left out.
            rows[span] += num_rows
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
