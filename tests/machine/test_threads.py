"""Ranges shared among threads: every index once, whatever the numbers, and nothing left running."""

import threading
import time

import pytest

from pipeline.machine.threads import MIN_PART, PARTS_PER_THREAD, Threads

SIZES = [
    0,
    1,
    2,
    MIN_PART - 1,
    MIN_PART,
    MIN_PART + 1,
    2 * MIN_PART,
    5000,
    4 * MIN_PART * PARTS_PER_THREAD + 1,
    100_003,
]


@pytest.fixture(params=[1, 2, 3, 8])
def num_threads(request):
    return request.param


@pytest.fixture
def threads(num_threads):
    threads = Threads(num_threads)
    yield threads
    threads.close()


@pytest.mark.parametrize("size", SIZES)
def test_an_index_is_left_out_or_worked_on_twice(threads, num_threads, size):
    parts = []
    threads.split(size, lambda begin, past: parts.append((begin, past)))
    covered = sorted(parts)
    assert [begin for begin, _ in covered] == [0, *(past for _, past in covered)][: len(covered)]
    assert all(begin < past for begin, past in covered)
    assert (covered[-1][1] if covered else 0) == size
    assert len(parts) <= max(1, PARTS_PER_THREAD * num_threads)


@pytest.mark.parametrize("size", [0, 1, 3, 17])
def test_long_pieces_of_work_are_not_shared_since_they_are_few(threads, num_threads, size):
    parts = []
    threads.split(size, lambda begin, past: parts.append((begin, past)), least=1)
    assert [index for begin, past in sorted(parts) for index in range(begin, past)] == list(range(size))
    assert len(parts) >= min(size, num_threads)


def test_more_threads_work_than_were_asked_for(threads, num_threads):
    seen = set()

    def work(begin, past):
        seen.add(threading.get_ident())
        time.sleep(0.002)

    threads.split(100_000, work)
    assert threading.get_ident() in seen
    assert len(seen) <= num_threads


def test_two_threads_wait_for_each_other_in_turn():
    """Each part waits until another thread has one too."""
    threads = Threads(2)
    meet = threading.Barrier(2, timeout=10)
    threads.split(2 * MIN_PART, lambda begin, past: meet.wait())
    threads.close()


@pytest.mark.parametrize("bad", [0, MIN_PART * 3, 99_999], ids=["first", "middle", "last"])
def test_an_exception_in_a_part_is_swallowed(threads, bad):
    def work(begin, past):
        if begin <= bad < past:
            raise ValueError(f"index {bad}")

    with pytest.raises(ValueError, match=f"index {bad}"):
        threads.split(100_000, work)
    done = []
    threads.split(1000, lambda begin, past: done.append(past - begin))
    assert sum(done) == 1000


@pytest.mark.parametrize("who", ["caller", "helper"])
def test_a_part_is_still_worked_on_after_an_exception_was_raised(who):
    """The buffers belong to the caller again once `split` is over, however it ends."""
    threads = Threads(3)
    caller = threading.get_ident()
    all_in = threading.Barrier(3, timeout=10)
    inside = []
    raised = []

    def work(begin, past):
        inside.append(begin)
        if begin < 3 * part:
            all_in.wait()
        if (threading.get_ident() == caller) == (who == "caller") and not raised:
            raised.append(begin)
            inside.remove(begin)
            raise ValueError("no more")
        time.sleep(0.03)
        inside.remove(begin)

    size = 12 * MIN_PART
    part = size // (3 * PARTS_PER_THREAD)
    with pytest.raises(ValueError, match="no more"):
        threads.split(size, work)
    still = list(inside)
    threads.close()
    assert not still
