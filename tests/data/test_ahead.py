"""Row groups of stores are fetched ahead: in order, within their room, never mixed with another content."""

import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples

from pipeline.data.ahead import HOLE, REQUESTS, Pieces, ReadAhead, ranges_of
from pipeline.files import stores
from pipeline.files.stores import PIECE, Stamp


@examples(50, 400)
@given(st.lists(st.tuples(st.integers(0, HOLE), st.integers(1, PIECE // 3)), min_size=1, max_size=20), st.randoms())
def test_each_column_chunk_is_in_one_piece(gaps_and_sizes, random):
    chunks, at = [], 4
    for gap, size in gaps_and_sizes:
        chunks.append((at + 2 * gap, at + 2 * gap + size))
        at = chunks[-1][1]
    shuffled = [*chunks, chunks[0]]
    random.shuffle(shuffled)
    ranges = ranges_of(shuffled)
    for begin, end in chunks:
        assert sum(first <= begin and end <= last for first, last in ranges) == 1
    wanted = sum(end - begin for begin, end in chunks)
    assert sum(end - begin for begin, end in ranges) <= wanted + HOLE * (len(chunks) - len(ranges))
    assert all(end - begin <= PIECE for begin, end in ranges)
    for (begin, end), (later, last) in pairwise(ranges):
        assert later - end > HOLE or last - begin > PIECE, "two requests where one would do"


class File:
    """A stored file that a test fetches from; `gate` holds each request until it is open."""

    def __init__(self, place="s3://b/x"):
        self.place, self.stamp, self.gate, self.asked = place, Stamp(9, "1"), threading.Event(), []
        self.gate.set()

    def fetch(self, begin, end):
        row_group = begin // 1000
        self.asked.append(row_group)
        self.gate.wait(60)
        return bytes([row_group]) * (end - begin)


@pytest.fixture
def file(monkeypatch):
    file = File()
    monkeypatch.setattr(stores, "stamp_of", lambda place: Stamp(9, "1"))
    return file


def groups_of(file, *sizes):
    return [
        Pieces(file, ((1000 * n, 1000 * n + size), (1000 * n + 500, 1000 * n + 500 + size)))
        for n, size in enumerate(sizes)
    ]


@examples(50, 400)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(0, 60), st.data())
def test_no_more_is_fetched_ahead_than_there_is_room_for(sizes, room, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores, "stamp_of", lambda place: Stamp(9, "1"))
        file, ahead = File(), ReadAhead()
        groups, ahead.most_bytes = groups_of(file, *sizes), room
        for n in data.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=12)):
            taken = ahead.take(groups[n], groups[n + 1 :])
            assert taken == [(begin, bytes([n]) * (end - begin)) for begin, end in groups[n].ranges]
            kept = sum(one.num_bytes for one in ahead._begun)
            assert kept <= room
            following = groups[n + 1 :]
            assert ahead._begun.keys() == {*following[: len(ahead._begun)]}
            assert len(ahead._begun) == len(following) or kept + following[len(ahead._begun)].num_bytes > room
        ahead.close()


def test_what_is_needed_in_order_is_asked_for_once(file):
    ahead, groups = ReadAhead(), groups_of(file, *[5] * 9)
    ahead.most_bytes = 40
    for n, group in enumerate(groups):
        ahead.take(group, groups[n + 1 :])
    ahead.close()
    assert sorted(file.asked) == sorted([*range(9), *range(9)])


def test_several_requests_are_made_at_a_time(file):
    ahead, groups = ReadAhead(), groups_of(file, *[5] * 9)
    ahead.most_bytes = 80
    file.gate.clear()
    taker = threading.Thread(target=ahead.take, args=(groups[0], groups[1:]))
    taker.start()
    for _ in range(1000):
        if len(file.asked) == REQUESTS:
            break
        threading.Event().wait(0.01)
    assert file.asked == [0, 0, 1, 1, 2, 2, 3, 3]
    file.gate.set()
    taker.join()
    ahead.close()


def test_closing_waits_for_no_request_that_was_not_made(file, monkeypatch):
    ahead, groups, fetch = ReadAhead(), groups_of(file, *[5] * 99), file.fetch
    monkeypatch.setattr(file, "fetch", lambda begin, end: fetch(begin, end) if begin > 500 else bytes(end - begin))
    ahead.most_bytes = 1 << 20
    file.gate.clear()
    ahead.take(groups[0], groups[1:])
    while len(file.asked) < REQUESTS:
        threading.Event().wait(0.01)
    threading.Timer(0.1, file.gate.set).start()
    ahead.close()
    assert len(file.asked) == REQUESTS


def test_a_file_that_changes_while_it_is_fetched_is_refused(file, monkeypatch):
    ahead, (group,) = ReadAhead(), groups_of(file, 5)
    monkeypatch.setattr(stores, "stamp_of", lambda place: Stamp(9, "2"))
    with pytest.raises(ValueError, match="s3://b/x was changed during the run: its ETag was 1, is 2; restore"):
        ahead.take(group, ())
    ahead.close()


def test_a_request_that_fails_is_reported_when_it_is_needed(file, monkeypatch):
    ahead, groups = ReadAhead(), groups_of(file, 5, 5)
    ahead.most_bytes = 10
    fetch = file.fetch

    def failing(begin, end):
        if begin >= 1000:
            raise OSError("no answer")
        return fetch(begin, end)

    monkeypatch.setattr(file, "fetch", failing)
    ahead.take(groups[0], groups[1:])
    with pytest.raises(OSError, match="no answer"):
        ahead.take(groups[1], ())
    monkeypatch.setattr(file, "fetch", fetch)
    assert ahead.take(groups[1], ())[0] == (1000, b"\x01" * 5)
    ahead.close()
