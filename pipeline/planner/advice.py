"""Advice at the end of a run: what it waited for, and the one setting that would change it.

What a setting saves follows from what the run measured, not from a calibration: the seconds that its disk took, the
seconds that training waited for that, and from a replay of its keys the rows that would still come from the disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from pipeline.caps import Storage
from pipeline.data.source import Source
from pipeline.device.device import Described
from pipeline.driver.driver import Driver
from pipeline.driver.session import Session
from pipeline.messages.sizes import format_size_down
from pipeline.planner.hits import forecast
from pipeline.preflight.checked import Checked
from pipeline.preflight.chosen_caps import budget_of
from pipeline.preflight.setup import Setup, divide_caps
from pipeline.preflight.sizes import DoesNotFit

LARGER = (2, 4)
LEAST_GAIN = 1.05
"""Gain below which a setting is not worth a word."""
LEAST_SHARE = 0.05
"""Share of the wall seconds below which a cause is not looked into."""
MAX_VALUES = 16_000_000
"""Values whose keys are replayed, for each setting: one or two seconds."""
MIN_SECONDS = 20.0
"""Seconds of a session below which nothing is looked into: its start is most of it."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of a session."""

    seconds: float
    waits: Mapping[str, float]
    """Seconds that training waited, by cause."""
    parts: Mapping[str, float]
    """Seconds of parts of the stages, such as "disk"; see `Span.parts`."""
    setup: Setup


@dataclass(frozen=True, slots=True)
class Advice:
    text: str
    setting: str | None = None
    """The setting, as `--set` takes it; None if there is none to advise."""
    gain: float = 1.0
    """Predicted speed with it, relative to that of the run."""


def advice_after(session: Session, driver: Driver) -> str | None:
    """Say what bound the run of a driver that has finished, and what would change it; None if it trained nothing."""
    ended = driver.live.ended
    if ended is None or not driver.history.spans:
        return None
    if ended.seconds < MIN_SECONDS:
        return ended.text
    measured = Measured(ended.seconds, ended.waits, ended.parts, driver.setup)
    checked, workflow = session.checked, session.checked.workflow
    # The run has closed its own.
    with closing(Source(workflow.data, workflow.seed, workflow.schedule.threads, workflow.metrics.group)) as source:
        advice = advise(replace(checked, source=source), session.device, measured)
    driver.live.on_line(advice.text)
    return f"{ended.text}; {advice.text}"


def advise(checked: Checked, device: Described, measured: Measured) -> Advice:
    """Find the setting that would help most."""
    found = [*_more_memory(checked, device, measured), *_fewer_commits(checked, measured)]
    best = max(found, key=lambda advice: advice.gain, default=None)
    if best and best.gain >= LEAST_GAIN:
        return best
    return Advice(
        "training hardly waited for rows or commits; `pipeline run --explain` predicts what more memory brings"
    )


def _more_memory(checked: Checked, device: Described, measured: Measured) -> Iterator[Advice]:
    waited = measured.waits.get("disk", 0.0)
    if waited < LEAST_SHARE * measured.seconds:
        return
    if not (read_now := _rows_of_disk(measured.setup)):
        return
    for factor in LARGER:
        name, before, storage = _enlarged(checked.storage, checked, factor, device.on_gpu)
        try:
            setup = divide_caps(replace(checked, storage=storage, pace=None), device, lambda line: None)
        except (DoesNotFit, ValueError):
            return
        share_left = min(1.0, _rows_of_disk(setup) / read_now)
        saved = min(waited, measured.parts.get("disk", waited) * (1 - share_left))
        gain = measured.seconds / max(measured.seconds - saved, 1e-9)
        size = format_size_down(factor * before)
        text = f"{name} {size} instead of {format_size_down(before)}: predicted {gain:.2f} x"
        yield Advice(text, f"{name}={size}", gain)


def _enlarged(storage: Storage, checked: Checked, factor: int, on_gpu: bool) -> tuple[str, int, Storage]:
    """The storage with a larger cap, its name and its size before."""
    if storage.leaves_out:
        memory = budget_of(checked)
        return "storage.memory", memory, storage.model_copy(update={"memory": factor * memory})
    device, host = storage.device, storage.host
    assert isinstance(device, int), "all caps are given, and none is a share"
    assert host is not None
    # Without a GPU both are RAM, and rows are best kept where they are trained.
    name, before = ("host", host) if on_gpu or host > device else ("device", device)
    return f"storage.{name}", before, storage.model_copy(update={name: factor * before})


def _rows_of_disk(setup: Setup) -> float:
    """Rows that move between the disk and the other tiers."""
    predicted = forecast(setup, float(len(setup.workflow.data.categories)), MAX_VALUES)
    return predicted.total("disk_hits") + predicted.total("device_to_disk") + predicted.total("host_to_disk")


def _fewer_commits(checked: Checked, measured: Measured) -> Iterator[Advice]:
    commit, took = checked.workflow.commit, measured.waits.get("commit", 0.0)
    gain = measured.seconds / (measured.seconds - took / 2) if measured.seconds > took else 1.0
    if commit.every_blocks:
        every = 2 * commit.every_blocks
        text = f"commit.every_blocks {every} instead of {commit.every_blocks}: predicted {gain:.2f} x"
        yield Advice(text, f"commit.every_blocks={every}", gain)
