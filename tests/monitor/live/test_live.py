"""live.jsonl: what a run writes while it trains."""

import time

import numpy as np
import pytest
from support.runs.harness import THREE_TIERS, make_driver

from pipeline.monitor.live.lines import LIVE, Begin, CommitDone, Ended, Evaluated, Said, Tick, parse_line, read_live
from pipeline.monitor.live.live_observer import LiveFile, LiveObserver


def lines_of(workflow, folder, client=None):
    """Result of a run, and its lines by kind."""
    result = make_driver(workflow, folder, client, **THREE_TIERS).run()
    assert result
    by_kind = {}
    for line in read_live(folder):
        by_kind.setdefault(type(line), []).append(line)
    return result, by_kind


@pytest.fixture
def often(monkeypatch):
    """A tick at every block."""
    monkeypatch.setattr("pipeline.monitor.live.live_observer.SECONDS_A_TICK", 0.0)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("serial", [True, False])
def test_the_last_tick_has_the_totals_of_the_result(small_workflow, tmp_path, client, serial):
    result, lines = lines_of(small_workflow(), tmp_path, None if serial else client)
    last = lines[Tick][-1]
    begin = lines[Begin][0]
    assert (last.trained, last.examples) == (result["examples"], begin.total)
    tiers = result["tiers"]
    assert last.moves["device_hits"] == tiers["device"]["hits"]
    assert last.moves["disk_hits"] == tiers["disk"]["hits"]
    assert last.disk_bytes == tiers["disk"]["used_bytes"]
    assert [tick.examples for tick in lines[Tick]] == sorted(tick.examples for tick in lines[Tick])
    stages = {stage: pytest.approx(seconds, abs=0.01) for stage, seconds in result["stages"].items()}
    assert {**dict.fromkeys(stages, 0.0), **last.stages} == stages


@pytest.mark.usefixtures("often")
def test_evaluations_and_commits_are_written_as_they_come(small_workflow, tmp_path):
    result, lines = lines_of(small_workflow(), tmp_path)
    written = [(line.epoch, line.split, line.metrics["auc"]) for line in lines[Evaluated]]
    assert written == [(epoch["epoch"], epoch["split"], epoch["auc"]) for epoch in result["epochs"]]
    commits = lines[CommitDone]
    assert [line.number for line in commits] == list(range(1, result["commit"] + 1))
    assert commits[-1].live_rows == result["rows"]
    assert commits[-1].written_bytes == result["disk"]["written_bytes"]


@pytest.mark.parametrize("serial", [True, False])
def test_the_causes_of_a_session_add_up_to_its_wall_seconds(small_workflow, tmp_path, client, serial):
    _, lines = lines_of(small_workflow(), tmp_path, None if serial else client)
    (end,) = lines[Ended]
    assert end.how == "finished"
    assert sum(end.waits.values()) == pytest.approx(end.seconds, rel=1e-3)
    assert abs(end.waits.get("unattributed", 0.0)) <= 0.02 * end.seconds
    assert min(end.waits[cause] for cause in ("train", "commit", "evaluation")) > 0
    assert end.parts.keys() == {"disk", "host copy"}
    assert not end.text, "a session below a minute"


def test_a_failed_run_says_why(small_workflow, tmp_path):
    driver = make_driver(small_workflow(), tmp_path, **THREE_TIERS)
    driver.crew.run = lambda *_: (_ for _ in ()).throw(OSError("the disk is gone"))
    with pytest.raises(Exception, match="the disk is gone"):
        driver.run()
    end = list(read_live(tmp_path))[-1]
    assert isinstance(end, Ended)
    assert (end.how, end.text) == ("failed", "the disk is gone")


def test_a_second_session_continues_the_same_file(small_workflow, tmp_path):
    lines_of(small_workflow(epochs=1), tmp_path)
    with (tmp_path / LIVE).open("ab") as file:
        file.write(b'{"event":"tick","at":17')
    _, lines = lines_of(small_workflow(epochs=2), tmp_path)
    assert len(lines[Begin]) == 2
    assert lines[Begin][1].examples > 0


def test_a_file_that_is_too_large_keeps_its_events(tmp_path):
    file = LiveFile(tmp_path, max_bytes=20_000)
    for n in range(400):
        file.write(a_tick().model_copy(update={"examples": n}))
        if n % 100 == 0:
            file.write(Said(at=float(n), text=f"line {n}"))
    assert (tmp_path / LIVE).stat().st_size <= 21_000
    left = list(read_live(tmp_path))
    assert [line.text for line in left if isinstance(line, Said)] == [f"line {n}" for n in range(0, 400, 100)]
    ticks = [line.examples for line in left if isinstance(line, Tick)]
    assert ticks == sorted(ticks)
    assert ticks[-1] == 399
    gaps = np.diff(ticks)
    assert gaps[0] > gaps[-1] == 1, "old ticks are sparser"


def test_a_disk_that_takes_no_more_ends_the_file_and_not_the_run(tmp_path):
    file = LiveFile(tmp_path / "absent")
    file.write(Said(at=1.0, text="nobody reads it"))
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("line", ["", "{", '{"event":"tick"}', '{"event":"other","at":1}', "\x00" * 9, "[1]"])
def test_a_line_of_another_kind_is_left_out(line):
    assert parse_line(line) is None


def test_values_that_are_not_known_are_left_out_of_a_line():
    """Other versions write more."""
    line = a_tick()
    assert parse_line(f'{line.model_dump_json()[:-1]},"blocks":[],"ready":3}}') == line


def a_tick():
    return Tick(
        at=1.0, seconds=1.0, examples=1, trained=1, epoch=0, split="train", loss=0.5, lr_rows=0.1, lr_dense=0.1,
        stages={}, waits={}, moves={}, disk_bytes=0, free_bytes=0, rss_bytes=0, observer_seconds=0.0,
    )  # fmt: skip


def test_at_most_one_tick_is_written_a_second(small_workflow, tmp_path):
    _, lines = lines_of(small_workflow(), tmp_path)
    assert 1 <= len(lines[Tick]) <= lines[Ended][0].seconds + 2


@pytest.mark.parametrize("seed", range(4))
def test_a_clock_that_is_set_ends_no_run(small_workflow, tmp_path, monkeypatch, seed):
    """The process's monotonic clock steps as it likes, each time that it is read."""
    steps, now = np.random.default_rng(seed), [10_000.0]

    def clock():
        now[0] = max(0.0, now[0] + steps.choice([-3600.0, 0.001, 0.001, 3600.0]))
        return now[0]

    monkeypatch.setattr("pipeline.monitor.live.live_observer.SECONDS_A_TICK", 0.0)
    monkeypatch.setattr(LiveObserver.__init__, "__defaults__", (clock,))
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(time, "monotonic", clock)
    _, lines = lines_of(small_workflow(), tmp_path)
    assert len(lines[Ended]) == 1
    # A commit every so many minutes may come in addition to those of the epochs.
    assert len(lines[CommitDone]) >= 3
