"""The commits before spans that a run keeps."""

from __future__ import annotations

import pytest

from pipeline.spans.waiting import kept_before, spans_done

KEPT = {
    "no spans": ([], 7, []),
    "as many as are kept": (range(4), 4, [0, 1, 2, 3]),
    "none": (range(4), 0, []),
    "one": (range(4), 1, [3]),
    "two": (range(9), 2, [7, 8]),
    "distances of 1, 2 and 4": (range(9), 4, [4, 6, 7, 8]),
    "distances that have doubled up to 32": (range(64), 7, [0, 32, 48, 56, 60, 62, 63]),
    "the newest in places that are left": (range(12), 6, [0, 4, 8, 9, 10, 11]),
    "others in place of those that are gone": ([0, 3, 5, 7, 9], 4, [3, 5, 7, 9]),
}


@pytest.mark.parametrize("what", KEPT)
def test_commits_before_spans_are_thinned(what):
    spans, keep, kept = KEPT[what]
    assert sorted(kept_before(spans, keep)) == kept


@pytest.mark.parametrize("keep", range(2, 9))
def test_thinning_after_each_span_keeps_doubling_distances(keep):
    kept = set()
    for newest in range(400):
        kept = kept_before({*kept, newest}, keep)
        distances = sorted(newest - span for span in kept)
        assert len(kept) == min(keep, newest + 1)
        assert distances[:2] == [0, 1][: newest + 1]
        if newest >= 1 << keep:
            assert [distance.bit_length() for distance in distances] == [*range(keep)]


@pytest.mark.parametrize(
    ("trained", "epochs", "done"),
    [
        (0, 1, (0, True)), (9, 1, (0, False)), (20, 1, (1, True)), (33, 1, (2, True)), (33, 2, (0, False)),
        (40, 2, (1, True)), (66, 2, (2, True)),
    ],
)  # fmt: skip
def test_trained_examples_say_which_spans_are_done(trained, epochs, done):
    files = [{"spans": [[0, 12]]}, {"spans": [[0, 8], [1, 3]]}, {"spans": [[1, 10]]}]
    train = {"spans": ["a", "b"], "files": files}
    state = {"trained": trained, "data": {"train": train}, "workflow": {"schedule": {"epochs": epochs}}}
    assert spans_done(state) == done
