"""One sentence says what bound a run."""

import pytest

from pipeline.monitor.live.waits import what_binds


@pytest.mark.parametrize(
    ("waits", "sentence"),
    [
        (
            {"train": 69.0, "disk": 22.0, "commit": 9.0},
            "training waited 31% of the time: 22% for rows from and to disk, 9% for commits",
        ),
        ({"train": 97.0, "read": 2.0, "plan": 1.0}, "training waited 3% of the time: its own steps take the rest"),
        (
            {"train": 40.0, "read": 30.0, "disk": 15.0, "plan": 10.0, "commit": 5.0, "unattributed": 0.0},
            "training waited 60% of the time: 30% for reading examples, 15% for rows from and to disk, "
            "10% for planning which rows move, and 5% for commits",
        ),
        (
            {
                "train": 45.0,
                "read": 21.0,
                "plan": 8.0,
                "commit": 7.0,
                "evaluation": 6.9,
                "start": 6.4,
                "end": 5.4,
                "disk": 0.3,
            },
            "training waited 55% of the time: 21% for reading examples, 8% for planning which rows move, 7% for "
            "commits, and 19% for 3 other things",
        ),
    ],
)
def test_causes_are_named_by_their_size_and_small_ones_are_not(waits: dict[str, float], sentence: str) -> None:
    assert what_binds(waits, 100.0) == sentence


def test_a_session_that_trained_nothing_waited_for_nothing() -> None:
    assert what_binds({}, 0.0) == "nothing was trained"
