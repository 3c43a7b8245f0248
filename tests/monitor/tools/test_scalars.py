"""Scalars of a run: each point once, however often a run was interrupted, resumed and read."""

import threading
import time

import pytest
from session_lines import BEGAN, append, begin, ended, evaluated, tick, two_sessions, write_run

from pipeline.monitor.live.lines import LIVE, Tick, read_live
from pipeline.monitor.tools import scalars as module
from pipeline.monitor.tools.scalars import Scalars, allowed_name, line_batches


def scalars_of(lines, through=None):
    scalars = Scalars(through)
    return [scalar for line in lines for scalar in scalars.of(line)]


def curves(scalars):
    found = {}
    for scalar in scalars:
        found.setdefault(scalar.tag, []).append((scalar.step, scalar.value))
    return found


def test_what_a_session_trains_again_is_told_once():
    found = curves(scalars_of(two_sessions()))
    # The tick at 800 had no loss.
    assert [step for step, _ in found["loss"]] == [200, 500, 700, 1000]
    assert [step for step, _ in found["blocks_ready"]] == [200, 500, 800, 1000]
    assert all(steps == sorted(set(steps)) for steps in ([step for step, _ in curve] for curve in found.values()))
    assert found["auc/validation"] == [(500, 0.75), (1000, 0.76)]
    assert found["logloss/test"] == [(1000, 0.41)]
    assert "gauc/validation" not in found


def test_rates_are_those_between_ticks_and_steps_are_trained_examples():
    found = curves(scalars_of([begin(), tick(1.0, 200), tick(3.0, 800)]))
    assert found["examples_per_second"] == [(200, 200.0), (800, 300.0)]
    assert found["waits/read"] == [(200, 0.25), (800, 0.25)]
    assert found["hit_rate/host"] == [(200, 0.5), (800, 0.5)]
    assert found["learning_rate/dense"] == [(200, 0.001), (800, 0.001)]


def test_points_that_are_there_already_are_left_out():
    lines = two_sessions()
    first = scalars_of(lines[:6])
    through = {tag: max(step for step, _ in curve) for tag, curve in curves(first).items()}
    assert first + scalars_of(lines, through) == scalars_of(lines)


def test_a_name_has_only_characters_that_all_tools_take():
    assert allowed_name("auc_click?/test") == "auc_click_/test"
    assert allowed_name("waits/host copy") == "waits/host copy"


@pytest.fixture
def quickly(monkeypatch):
    monkeypatch.setattr(module, "FOLLOW_SECONDS", 0.01)


class Following(threading.Thread):
    """A thread that follows a run and keeps what it gets."""

    def __init__(self, run):
        super().__init__(daemon=True)
        self._run, self.lines, self.error = run, [], None
        self.start()

    def run(self):
        try:
            for batch in line_batches(self._run, follow=True):
                self.lines += batch
        except ValueError as error:
            self.error = error

    def wait_for(self, num):
        until = time.monotonic() + 20
        while len(self.lines) < num:
            assert time.monotonic() < until
            time.sleep(0.01)


def test_a_run_is_followed_until_its_session_ends(tmp_path, quickly):
    run = write_run(tmp_path / "run", [begin(), tick(1.0, 100), ended(2.0), begin(BEGAN + 9, examples=100)])
    following = Following(run)
    following.wait_for(4)
    append(run, [tick(2.0, 300, BEGAN + 9)])
    following.wait_for(5)
    append(run, [ended(3.0, BEGAN + 9)])
    following.join(20)
    assert not following.is_alive()
    assert following.lines == list(read_live(run))


def test_of_a_long_run_all_lines_are_followed(tmp_path):
    lines = [begin(), *(tick(float(n), n) for n in range(1, 4000)), ended(4000.0)]
    run = write_run(tmp_path / "run", lines)
    assert [line for batch in line_batches(run, follow=True) for line in batch] == lines


def test_a_file_that_is_thinned_meanwhile_is_read_again_and_told_once(tmp_path, quickly):
    lines = [begin(), *(tick(float(n), 100 * n) for n in range(1, 6))]
    run = write_run(tmp_path / "run", lines)
    following = Following(run)
    following.wait_for(6)
    append(tmp_path / "new", [lines[0], *lines[2::2]])
    (tmp_path / "new" / LIVE).replace(run / LIVE)
    following.wait_for(9)
    append(run, [tick(7.0, 700), ended(8.0)])
    following.join(20)
    steps = [step for step, _ in curves(scalars_of(following.lines))["loss"]]
    assert steps == [100, 200, 300, 400, 500, 700]


def test_a_run_that_begins_anew_is_not_taken_for_the_same(tmp_path, quickly):
    run = write_run(tmp_path / "run", [begin(), tick(1.0, 100)])
    following = Following(run)
    following.wait_for(2)
    append(tmp_path / "new", [begin(BEGAN + 50)])
    (tmp_path / "new" / LIVE).rename(run / LIVE)
    following.join(20)
    assert "began anew" in str(following.error)


def test_without_following_the_lines_that_are_there_are_read(tmp_path):
    lines = [begin(), *(tick(float(n), n) for n in range(1, 2500))]
    batches = list(line_batches(write_run(tmp_path / "run", lines), follow=False))
    assert [line for batch in batches for line in batch] == lines
    assert len(batches) == 3
    assert isinstance(batches[-1][-1], Tick)
    assert scalars_of([evaluated(1.0, 10)])
