"""Advice at the end of a run: what it waited for, and the one setting that would change it.

Of what a setting saves, the waits for the disk follow from what the run measured: the seconds that its disk took, the
seconds that training waited for that, and from a replay of its keys the rows that would still come from the disk. The
rest is predicted by the planner, with the setting and without: commits, which are fewer if less is written between
them, and what the run would take on a disk that takes no time. For moves of rows take processor time from training,
also where nothing waits for them.
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
from pipeline.errors import PipelineError
from pipeline.messages.sizes import format_size_down
from pipeline.planner.basis import Basis
from pipeline.planner.command import here
from pipeline.planner.hits import forecast
from pipeline.planner.predict import predict
from pipeline.preflight.checked import Checked
from pipeline.preflight.chosen_caps import budget_of
from pipeline.preflight.setup import divide_caps
from pipeline.preflight.sizes import DoesNotFit

LARGER = (2, 4)
LEAST_GAIN = 1.05
"""Gain below which a setting is not worth a word."""
MAX_VALUES = 16_000_000
"""Values whose keys are replayed, for each setting: one or two seconds."""
MIN_SECONDS = 20.0
"""Seconds of a session below which nothing is looked into: its start is most of it."""
NOT_PREDICTED = "`pipeline run --explain` predicts what more memory brings"
INSTANT = {
    "scattered_read_seconds": 1e-12, "disk_read_bytes_per_second": 1e15, "disk_write_bytes_per_second": 1e15,
    "fsync_seconds": 0.0,
}  # fmt: skip
"""Constants of a disk that takes no time."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of a session."""

    seconds: float
    waits: Mapping[str, float]
    """Seconds that training waited, by cause."""
    parts: Mapping[str, float]
    """Seconds of parts of the stages, such as "disk"; see `Span.parts`."""
    rows_left: int
    """Rows that left the device while training, for want of room."""


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
    if ended is None or not driver.history.ran:
        return None
    if ended.seconds < MIN_SECONDS:
        return ended.text
    trained = driver.history.tiers.counts()["trained"]
    rows_left = trained["device_to_host"] + trained["device_to_disk"]
    measured = Measured(ended.seconds, ended.waits, ended.parts, rows_left)
    checked, workflow = session.checked, session.checked.workflow
    # The run has closed its own.
    with closing(Source(workflow.data, workflow.seed, workflow.schedule.threads, workflow.metrics.group)) as source:
        session = replace(session, checked=replace(checked, source=source))
        basis = _basis(session, driver) if rows_left else None
        advice = advise(session.checked, session.device, measured, basis)
    driver.live.on_line(advice.text)
    return f"{ended.text}; {advice.text}"


def _basis(session: Session, driver: Driver) -> Basis | None:
    """Return what a prediction follows from, or None if it cannot be had. Of several workers the planner does not know
    how long they wait for each other, and those of another machine it cannot measure."""
    if driver.setup.world > 1 or session.spec:
        return None
    try:
        return here(session, driver.setup, session.serial, None, lambda line: None, MAX_VALUES)
    except (ValueError, OSError, MemoryError, PipelineError):
        return None


def advise(checked: Checked, device: Described, measured: Measured, basis: Basis | None) -> Advice:
    """Find the setting that would help most. `basis`: None if nothing can be predicted, or no row left the device."""
    memory = list(_more_memory(checked, device, measured, basis)) if basis else []
    best = max([*memory, *_fewer_commits(checked, measured)], key=lambda advice: advice.gain, default=None)
    if best and best.gain >= LEAST_GAIN:
        return best
    if memory or not measured.rows_left:
        return Advice("more memory would not help")
    return Advice(NOT_PREDICTED)


def _more_memory(checked: Checked, device: Described, measured: Measured, basis: Basis) -> Iterator[Advice]:
    waited, committed = (measured.waits.get(cause, 0.0) for cause in ("disk", "commit"))
    computing = measured.seconds - waited - committed
    for factor in LARGER:
        name, before, storage = _enlarged(checked.storage, checked, factor, device.on_gpu)
        try:
            setup = divide_caps(replace(checked, storage=storage, pace=None), device, lambda line: None)
        except (DoesNotFit, ValueError):
            return
        larger = replace(basis, setup=setup, forecast=forecast(setup, basis.work.values_of_example, MAX_VALUES))
        saved = computing * (1 - _computing_seconds(larger) / _computing_seconds(basis))
        saved += committed * _share_saved(_commit_seconds(basis), _commit_seconds(larger))
        from_disk = measured.parts.get("disk", waited) * _share_saved(_disk_rows(basis), _disk_rows(larger))
        saved += min(waited, from_disk)
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


def _disk_rows(basis: Basis) -> float:
    """Rows that move between the disk and the other tiers."""
    return sum(basis.forecast.total(name) for name in ("disk_hits", "device_to_disk", "host_to_disk"))


def _share_saved(before: float, after: float) -> float:
    return max(0.0, 1 - after / before) if before else 0.0


def _commit_seconds(basis: Basis) -> float:
    predicted = predict(basis)
    return predicted.commits * predicted.commit_seconds


def _computing_seconds(basis: Basis) -> float:
    """Predicted seconds of the run on a disk that takes no time."""
    return predict(replace(basis, machine=basis.machine.model_copy(update=INSTANT))).run_seconds


def _fewer_commits(checked: Checked, measured: Measured) -> Iterator[Advice]:
    commit, took = checked.workflow.commit, measured.waits.get("commit", 0.0)
    gain = measured.seconds / (measured.seconds - took / 2) if measured.seconds > took else 1.0
    if commit.every_blocks:
        every = 2 * commit.every_blocks
        text = f"commit.every_blocks {every} instead of {commit.every_blocks}: predicted {gain:.2f} x"
        yield Advice(text, f"commit.every_blocks={every}", gain)
