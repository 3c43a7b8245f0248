"""One worker cannot continue, or was asked not to: all stop at the same block, and no update is lost or made twice."""

import threading

import pytest
from support.depth import some
from support.oracle.worker_cases import RULES, workflow_of
from support.runs.crew_threads import ThreadCrew, crew_driver, train

from pipeline.comm.group import Disconnected, Group
from pipeline.errors import LostTouch
from pipeline.worker.worker import Worker

WORLD = 3


@pytest.fixture(scope="module")
def workflow(data_root):
    return workflow_of(data_root, RULES["dense adam"], block_batches=2, look_ahead=2)


@pytest.fixture(scope="module")
def undisturbed(workflow, tmp_path_factory):
    with crew_driver(workflow, tmp_path_factory.mktemp("undisturbed"), WORLD) as driver:
        train(driver)
        return fingerprint(driver)


def fingerprint(driver):
    hashes = [hashed for hashed, _ in driver.crew.each(Worker.table_hash)]
    return str(driver.crew.first(Worker.fingerprint, sum(hashes) % (1 << 128)))


class Watched:
    """What each worker did, and workers that run as far ahead of training as the edges allow."""

    def __init__(self, driver):
        assert isinstance(driver.crew, ThreadCrew)
        self.crew = driver.crew
        self.refusals = []
        self.moved_only = 0
        """Rows that were first seen in blocks which their worker planned, and none trained on."""
        self._planned = threading.Condition()
        self.crew.before, self.crew.after = self._before, self._after
        self._run, self.crew.run = self.crew.run, self._run_stretch

    def _run_stretch(self, blocks, look_ahead, watch):
        self._last, self._ahead = blocks[-1].number, look_ahead
        self.done = [[] for _ in range(WORLD)]
        refusal = self._run(blocks, look_ahead, watch)
        if refusal:
            self.refusals.append(refusal)
            trained = {tuple(done.number for done in of if done.trained) for of in self.done}
            assert trained == {tuple(range(blocks[0].number, refusal.block.number))}
            for of in self.done:
                end = [done.moves for done in of if done.moves and done.number >= refusal.block.number]
                self.moved_only += sum(moves.new for moves in end)
        return refusal

    def _before(self, rank, stage, number):
        """`train` waits until `plan` is as far ahead of it as it may be."""
        if stage == "train":
            ahead = min(number + self._ahead, self._last)
            with self._planned:
                assert self._planned.wait_for(lambda: self._has_planned(rank, ahead), timeout=60)

    def _has_planned(self, rank, number):
        return any(done.stage == "plan" and done.number == number for done in self.done[rank])

    def _after(self, rank, done):
        with self._planned:
            self.done[rank].append(done)
            self._planned.notify_all()


WINDOW, COMMIT = "window", "commit"
ONCE = (2, 2, 34, [WINDOW])


@pytest.mark.parametrize(
    ("block_batches", "look_ahead", "device_rows", "expected"),
    some([ONCE, (8, 4, 34, [WINDOW] * 6 + [COMMIT]), (2, 4, 38, [WINDOW] * 3)], ONCE, several=True),
)
def test_all_workers_stop_where_one_has_no_room(
    workflow, undisturbed, tmp_path,
    block_batches, look_ahead, device_rows, expected
):  # fmt: skip
    of_each = [{}, {"device_rows": device_rows, "host_rows": 5}, {}]
    changed = workflow.with_settings({"schedule.block_batches": block_batches, "schedule.look_ahead": look_ahead})
    with crew_driver(changed, tmp_path, WORLD, of_each=of_each) as driver:
        watched = Watched(driver)
        train(driver)
        assert fingerprint(driver) == undisturbed
        assert [refusal.what for refusal in watched.refusals] == expected
        assert (driver.runner.pace.look_ahead, driver.runner.pace.block_batches) < (look_ahead, block_batches + 1)
    assert watched.moved_only > 0, "no worker had planned further"


@pytest.mark.parametrize("who", [0, 1])
def test_a_worker_that_pauses_alone_stops_all_at_the_same_block(workflow, undisturbed, tmp_path, who):
    with crew_driver(workflow, tmp_path, WORLD) as driver:
        watched = Watched(driver)
        after = watched.crew.after

        def pause_it(rank, done):
            after(rank, done)
            if rank == who and (done.stage, done.number) == ("plan", 4):
                watched.crew.workers[who].pause("asked alone")

        watched.crew.after = pause_it
        train(driver)
        assert fingerprint(driver) == undisturbed
    first = watched.refusals[0]
    assert (first.what, first.message, first.block.number) == ("pause", f"worker {who}: asked alone", 5)
    assert watched.moved_only > 0, "no worker had planned further"


def test_a_worker_that_is_gone_is_reported_as_lost_touch(workflow, tmp_path, monkeypatch):
    def gone(group, numbers):
        raise Disconnected("nobody came")

    monkeypatch.setattr(Group, "sums", gone)
    with (
        crew_driver(workflow, tmp_path, 2) as driver,
        pytest.raises(LostTouch, match=r"train of block 0 failed: Disconnected: nobody came|waits for failed"),
    ):
        train(driver)
