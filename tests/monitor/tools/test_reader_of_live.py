"""Curves of a run: each point once, however often a run was interrupted, resumed and read."""

import threading
import time

import pytest
from support.runs.session_lines import BEGAN, append, begin, ended, tick, two_sessions, write_run

from pipeline.monitor.live.lines import LIVE
from pipeline.monitor.tools import reader
from pipeline.monitor.tools.reader import Curves, allowed_name


def points_of(lines, through=None):
    curves = Curves(through)
    return [point for line in lines for point in curves.of(line)]


def by_name(points):
    found = {}
    for point in points:
        found.setdefault(point.name, []).append((point.step, point.value))
    return found


def test_what_a_session_trains_again_has_one_point():
    found = by_name(points_of(two_sessions()))
    # The tick at 800 had no loss.
    assert [step for step, _ in found["loss"]] == [200, 500, 700, 1000]
    assert [step for step, _ in found["blocks_ready"]] == [200, 500, 800, 1000]
    assert all(steps == sorted(set(steps)) for steps in ([step for step, _ in curve] for curve in found.values()))
    assert found["auc/validation"] == [(500, 0.75), (1000, 0.76)]
    assert found["logloss/test"] == [(1000, 0.41)]
    assert "gauc/validation" not in found


def test_rates_are_between_ticks_and_steps_are_examples():
    found = by_name(points_of([begin(), tick(1.0, 200), tick(3.0, 800)]))
    assert found["examples_per_second"] == [(200, 200.0), (800, 300.0)]
    assert found["waits/read"] == [(200, 0.25), (800, 0.25)]
    assert found["hit_rate/host"] == [(200, 0.5), (800, 0.5)]
    assert found["learning_rate/dense"] == [(200, 0.001), (800, 0.001)]


def test_points_that_are_there_already_are_left_out():
    lines = two_sessions()
    first = points_of(lines[:6])
    through = {name: max(step for step, _ in curve) for name, curve in by_name(first).items()}
    assert first + points_of(lines, through) == points_of(lines)


def test_a_name_has_only_characters_that_all_tools_take():
    assert allowed_name("auc_click?/test") == "auc_click_/test"
    assert allowed_name("waits/host copy") == "waits/host copy"


@pytest.fixture
def quickly(monkeypatch):
    monkeypatch.setattr(reader, "FOLLOW_SECONDS", 0.01)


class Following(threading.Thread):
    """A thread that follows a run and keeps the points that it gets."""

    def __init__(self, folder):
        super().__init__(daemon=True)
        self.folder, self.points, self.error = folder, [], None
        self.start()

    def run(self):
        try:
            for batch in Curves().batches(self.folder, follow=True):
                self.points += batch
        except ValueError as error:
            self.error = error

    def wait_for(self, step):
        until = time.monotonic() + 20
        while not self.points or self.points[-1].step < step:
            assert time.monotonic() < until
            time.sleep(0.01)


def test_a_run_is_followed_until_its_session_ends(tmp_path, quickly):
    lines = [begin(), tick(1.0, 100), ended(2.0), begin(BEGAN + 9, examples=100), tick(2.0, 300, BEGAN + 9)]
    run = write_run(tmp_path / "run", lines[:4])
    following = Following(run)
    following.wait_for(100)
    append(run, lines[4:])
    following.wait_for(300)
    append(run, [ended(3.0, BEGAN + 9)])
    following.join(20)
    assert not following.is_alive()
    assert following.points == points_of(lines)


@pytest.mark.parametrize("follow", [True, False])
def test_all_lines_of_a_long_run_are_read_in_parts(tmp_path, follow):
    lines = [begin(), *(tick(float(n), n) for n in range(1, 2500)), ended(4000.0)]
    batches = list(Curves().batches(write_run(tmp_path / "run", lines), follow))
    assert [point for batch in batches for point in batch] == points_of(lines)
    assert len(batches) == 3


def test_a_file_that_is_thinned_meanwhile_gives_each_point_once(tmp_path, quickly):
    lines = [begin(), *(tick(float(n), 100 * n) for n in range(1, 6))]
    run = write_run(tmp_path / "run", lines)
    following = Following(run)
    following.wait_for(500)
    append(tmp_path / "new", [lines[0], *lines[2::2], tick(7.0, 700), ended(8.0)])
    (tmp_path / "new" / LIVE).replace(run / LIVE)
    following.join(20)
    steps = [step for step, _ in by_name(following.points)["loss"]]
    assert steps == [100, 200, 300, 400, 500, 700]


def test_a_run_that_begins_from_scratch_is_not_followed(tmp_path, quickly):
    run = write_run(tmp_path / "run", [begin(), tick(1.0, 100)])
    following = Following(run)
    following.wait_for(100)
    append(tmp_path / "new", [begin(BEGAN + 50)])
    (tmp_path / "new" / LIVE).replace(run / LIVE)
    following.join(20)
    assert "was started from scratch" in str(following.error)
