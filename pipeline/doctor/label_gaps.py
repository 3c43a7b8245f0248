"""Label gaps: rows one after another without the rarer label, longer or more than chance gives."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from pipeline.doctor.alike import ALIKE_ROWS, are_alike
from pipeline.doctor.dependence import Coarse
from pipeline.doctor.finding import Finding
from pipeline.doctor.seen import SeenRows
from pipeline.doctor.times import clocks
from pipeline.records import F32, I64

GAP_NATS = 21.0
"""Negative logarithm of the chance of so many long gaps: 1e-9, as that of six standard errors."""
GAP_LABELS = 10.0
"""Expected labels of the rarer kind in a gap that is counted."""


def find_gaps(seen: SeenRows, labels_N: F32, name: str, coarse: Mapping[str, Coarse]) -> Iterator[Finding]:
    """Look for gaps in the order of the files, or else of a clock. Only rows that are like all others are told: where
    the users or the ads are others, as at night or in a block of one user, labels may be, too."""
    orders = [("", np.arange(seen.num_rows))]
    for column in clocks(seen):
        assert column.raw_N is not None
        orders.append((column.name, np.argsort(column.raw_N, kind="stable")))
    rarer = float(labels_N.mean() < 0.5)
    for clock, order in orders:
        begins, ends, nats = _long_gaps(np.flatnonzero(labels_N[order] == rarer), len(order))
        if nats < GAP_NATS:
            continue
        some_N = np.zeros(seen.num_rows, bool)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            some_N[order[begin:end]] = True
        if not are_alike(seen, some_N, coarse):
            continue
        longest = int(np.argmax(ends - begins))
        first, last = int(order[begins[longest]]), int(order[ends[longest] - 1])
        what = "one after another" + (f" in the order of {clock}" if clock else "")
        if len(begins) > 1:
            what = f"in {len(begins)} stretches of {int((ends - begins).min()):,} or more {what}, the longest"
        yield Finding(
            "label_rate", "fault", (name,),
            f"{name} is {1 - rarer:g} in {int(some_N.sum()):,} rows {what}, from "
            f"{seen.place(first)} to {seen.place(last)}, and {rarer:g} in {float((labels_N == rarer).mean()):.2%} of "
            "all rows; in their features these rows are like the others, and chance gives that less than once in "
            f"10^{nats / math.log(10):.0f} times. Were labels lost there, or are they not known yet? Make them anew, "
            "or leave these rows out",
        )  # fmt: skip
        return


def _long_gaps(places: I64, num_rows: int) -> tuple[I64, I64, float]:
    """First row of each of the longest gaps between places, the row after its last one, and the negative logarithm of
    the chance of so many of such a length (Chernoff's bound of a Poisson variable), for the number of gaps that has the
    least."""
    begins, ends = np.concatenate(([0], places + 1)), np.concatenate((places, [num_rows]))
    rate = len(places) / num_rows
    lengths = ends - begins
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] >= max(ALIKE_ROWS, GAP_LABELS / rate)]
    if not len(order) or rate >= 1:
        return begins[:0], ends[:0], 0.0
    count_A = np.arange(1, len(order) + 1)
    log_expected_A = math.log(len(lengths)) + lengths[order] * math.log1p(-rate)
    nats_A = count_A * (np.log(count_A) - log_expected_A) - count_A + np.exp(log_expected_A)
    nats_A[np.log(count_A) <= log_expected_A] = 0
    most = int(np.argmax(nats_A))
    chosen = order[: most + 1]
    return begins[chosen], ends[chosen], float(nats_A[most])
