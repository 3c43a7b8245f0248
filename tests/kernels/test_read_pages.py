"""Pages read from files, many in flight, whatever the system does with the requests."""

import errno
import os

import numpy as np
import pytest
from support.faults.linux_reads import NO_FILE, System, outcomes, put_beneath, run_checks

from pipeline.kernels.in_flight import close_context, open_context
from pipeline.kernels.read_pages import WORK_WORDS, read_pages, read_pages_reference
from pipeline.kernels.read_rows import PAGE_BYTES, SHORT
from pipeline.machine.limits import aligned_empty

pytestmark = pytest.mark.disk

CONTENT = np.random.default_rng(0).integers(0, 256, (40, PAGE_BYTES), np.uint8)
AT_ONCE = 16


def read(context, file, pages, page_bytes=PAGE_BYTES):
    """Result, and pages."""
    out = aligned_empty((len(pages), page_bytes), np.uint8, PAGE_BYTES)
    files_R, offsets_R = np.full(len(pages), file, np.int32), np.array(pages, np.int64) * page_bytes
    result = read_pages(context, files_R, offsets_R, out, np.full(len(pages) * WORK_WORDS, 77, np.int64))
    if file != NO_FILE:
        plain = aligned_empty(out.shape, np.uint8, PAGE_BYTES)
        assert result == read_pages_reference(files_R, offsets_R, plain)
    return result, out


@pytest.fixture(params=["many in flight", "one by one"])
def context(request):
    context = open_context(AT_ONCE) if request.param == "many in flight" else 0
    yield context
    close_context(context)


@pytest.fixture(params=["direct", "cached"])
def file(request, tmp_path):
    (tmp_path / "part").write_bytes(CONTENT.tobytes())
    try:
        file = os.open(tmp_path / "part", os.O_RDONLY | (os.O_DIRECT if request.param == "direct" else 0))
    except OSError as error:
        pytest.skip(f"no O_DIRECT here: {error}")
    yield file
    os.close(file)


def test_this_machine_keeps_many_reads_in_flight():
    context = open_context(AT_ONCE)
    assert context != 0
    close_context(context)


@pytest.mark.parametrize("pages", [[0], [39], [5, 3, 3, 8], range(AT_ONCE), []], ids=str)
def test_pages_are_those_asked_for(context, file, pages):
    for _ in range(3):
        result, out = read(context, file, list(pages))
        assert result == (-1, 0)
        assert (out == CONTENT[list(pages)]).all()


def test_larger_pages_are_read_whole(context, file):
    result, out = read(context, file, [3, 0, 12], 3 * PAGE_BYTES)
    assert result == (-1, 0)
    assert (out.reshape(-1, PAGE_BYTES) == CONTENT[[9, 10, 11, 0, 1, 2, 36, 37, 38]]).all()


def test_the_first_page_beyond_the_end_is_named(context, file):
    assert read(context, file, [1, 40, 2, 41])[0] == (1, SHORT)
    assert read(context, file, [1, 13], 3 * PAGE_BYTES)[0] == (1, SHORT)
    assert read(context, file, [39])[0] == (-1, 0)


def test_a_file_that_cannot_be_read_is_told_with_its_errno(context, tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    assert read(context, folder, [0, 1])[0] == (0, errno.EISDIR)
    os.close(folder)


def check(alone=(), **faults):
    system = System(CONTENT.tobytes(), **faults)
    put_beneath(system)
    result, out = read(1, NO_FILE, range(10))
    assert result == (-1, 0)
    assert (out == CONTENT[:10]).all()
    assert system.waiting == []
    assert system.alone == list(alone)


def check_requests_taken_one_by_one_are_all_made():
    check(takes=1)


def check_an_interrupted_wait_is_taken_up_again():
    check(interrupts=5)


def check_requests_that_are_refused_are_read_alone():
    check(range(10), refuses_after=0)
    check(range(7, 10), refuses_after=7)


def check_pages_that_failed_or_were_cut_short_are_read_again_alone():
    check([3, 5, 9], results={3: 512, 5: -errno.EAGAIN, 9: 0})


def test_a_system_that_refuses_requests_is_asked_again():
    assert set(outcomes(__file__).values()) == {"ok"}


if __name__ == "__main__":
    run_checks({name: check for name, check in globals().items() if name.startswith("check_")})
