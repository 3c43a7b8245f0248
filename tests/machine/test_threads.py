"""Ranges shared among threads: every index once, whatever the numbers, and nothing left running."""

import threading
import time

import pytest

from pipeline.machine.threads import MIN_THREAD_ITEMS, PARTS_PER_THREAD, TaskThreads, Threads

TICK = 0.05

MANY = MIN_THREAD_ITEMS
SIZES = [0, 1, 2, MANY - 1, MANY, MANY + 1, 2 * MANY, 5000, 4 * MANY * PARTS_PER_THREAD + 1, 100_003]


@pytest.fixture(params=[1, 2, 3, 8])
def num_threads(request):
    return request.param


@pytest.fixture
def threads(num_threads):
    threads = Threads(num_threads)
    yield threads
    threads.close()


@pytest.mark.parametrize(
    ("size", "minimum"), [*((size, MANY) for size in SIZES), *((size, 1) for size in (0, 1, 3, 17))]
)
def test_every_index_is_worked_on_once(threads, num_threads, size, minimum):
    """By several threads, also if there are few pieces of work, each of which takes long."""
    parts = []
    threads.split(size, lambda begin, end: parts.append((begin, end)), minimum)
    covered = sorted(parts)
    assert [begin for begin, _ in covered] == [0, *(end for _, end in covered)][: len(covered)]
    assert all(begin < end for begin, end in covered)
    assert (covered[-1][1] if covered else 0) == size
    assert min(size // minimum, num_threads) <= len(parts) <= max(1, PARTS_PER_THREAD * num_threads)


def test_work_uses_at_most_the_requested_threads(threads, num_threads):
    seen = set()

    def work(begin, end):
        seen.add(threading.get_ident())
        time.sleep(0.002)

    threads.split(100_000, work)
    assert len(seen) <= num_threads
    assert num_threads > 1 or seen == {threading.get_ident()}


def test_two_threads_work_at_the_same_time():
    """Each part waits until another thread has one too."""
    threads = Threads(2)
    meet = threading.Barrier(2, timeout=10)
    threads.split(2 * MIN_THREAD_ITEMS, lambda begin, end: meet.wait())
    threads.close()


@pytest.mark.parametrize("bad", [0, MANY * 3, 99_999], ids=["first", "middle", "last"])
def test_an_exception_in_a_part_is_raised(threads, bad):
    def work(begin, end):
        if begin <= bad < end:
            raise ValueError(f"index {bad}")

    with pytest.raises(ValueError, match=f"index {bad}"):
        threads.split(100_000, work)
    done = []
    threads.split(1000, lambda begin, end: done.append(end - begin))
    assert sum(done) == 1000


@pytest.mark.parametrize("who", ["caller", "helper"])
def test_no_part_is_worked_on_after_an_exception_was_raised(who):
    """The buffers belong to the caller again once `split` is over, however it ends."""
    threads = Threads(3)
    caller = threading.get_ident()
    all_in = threading.Barrier(3, timeout=10)
    inside = []
    raised = []

    def work(begin, end):
        inside.append(begin)
        if begin < 3 * part:
            all_in.wait()
        if (threading.get_ident() == caller) == (who == "caller") and not raised:
            raised.append(begin)
            inside.remove(begin)
            raise ValueError("no more")
        time.sleep(0.03)
        inside.remove(begin)

    size = 12 * MIN_THREAD_ITEMS
    part = size // (3 * PARTS_PER_THREAD)
    with pytest.raises(ValueError, match="no more"):
        threads.split(size, work)
    still = list(inside)
    threads.close()
    assert not still


class Seen:
    """What tasks did in this process."""

    def __init__(self):
        self.lock, self.running, self.maximum, self.done = threading.Lock(), 0, 0, []

    def work(self, item):
        with self.lock:
            self.running += 1
            self.maximum = max(self.maximum, self.running)
        time.sleep(0.01)
        with self.lock:
            self.running -= 1
            self.done.append(item)


def test_each_task_is_done_once_and_one_at_a_time_per_thread():
    seen, items = Seen(), [*range(40), 7]
    yielded = [item for some in TaskThreads(3).each("work", seen.work, items, TICK) for item in some]
    assert sorted(seen.done) == sorted(yielded) == sorted(items)
    assert seen.maximum == 3


def test_a_tasks_failure_is_raised_after_running_ones_have_ended():
    done = []

    def fail_at_1(item):
        if item == 1:
            raise ValueError("one is no good")
        time.sleep(0.2)
        done.append(item)

    with pytest.raises(ValueError, match="one is no good"):
        list(TaskThreads(2).each("work", fail_at_1, range(10), TICK))
    assert 0 in done, "the task next to it has ended"


def test_a_wait_for_a_long_task_yields_at_every_tick():
    assert sum(1 for _ in TaskThreads(1).each("work", time.sleep, [20 * TICK], TICK)) > 5


def test_no_task_begins_after_its_generator_is_closed():
    seen = Seen()
    for _ in TaskThreads(1).each("work", seen.work, range(100), TICK):
        break
    before = list(seen.done)
    time.sleep(3 * TICK)
    assert seen.done == before
    assert len(before) < 100
