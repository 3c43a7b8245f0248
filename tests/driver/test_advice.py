"""Advice at the end of a run: whether more memory or fewer commits would help."""

from types import SimpleNamespace

import pytest

from pipeline.driver.advice import advice_after


def driver_after(seconds=100.0, commit=0.0, keys=10, left=0, every=None):
    lines = []
    ended = SimpleNamespace(seconds=seconds, waits={"commit": commit}, text="training waited 0 %")
    counts = {"trained": {"keys": keys, "device_to_host": left, "device_to_disk": 0}}
    workflow = SimpleNamespace(commit=SimpleNamespace(every_blocks=every))
    return SimpleNamespace(
        live=SimpleNamespace(ended=ended, on_line=lines.append),
        history=SimpleNamespace(tiers=SimpleNamespace(counts=lambda: counts)),
        setup=SimpleNamespace(workflow=workflow),
    )


@pytest.mark.parametrize(
    ("driver", "said", "unsaid"),
    [
        (driver_after(), "more memory would not help", "--explain"),
        (driver_after(left=1), "--explain", "would not help"),
        (driver_after(commit=30.0, every=4), "commit.every_blocks 8 instead of 4 would save about 15 s", "--explain"),
        (driver_after(commit=5.0, every=4), "would not help", "every_blocks"),
    ],
)
def test_advice_follows_from_what_the_run_counted(driver, said, unsaid):
    text = advice_after(driver)
    assert said in text
    assert unsaid not in text


@pytest.mark.parametrize("driver", [driver_after(keys=0), driver_after(seconds=59.0, commit=15.0, every=4, left=1)])
def test_a_session_that_trained_little_gets_no_advice(driver):
    assert advice_after(driver) is None
