"""scan: how far the keys of coming blocks are known, and that it depends on numbers of keys alone."""

from types import SimpleNamespace

import numpy as np
import pytest

from pipeline.records import Block
from pipeline.stages.scan import MAX_BLOCKS_AT_ONCE, Scanner, scan
from pipeline.storage.key_map import KeyMap
from pipeline.storage.next_uses import NextUses
from pipeline.storage.policies import Uses

BATCH = 10
BLOCKS = [Block(n, "train", 0, 2 * n, 2, 0, 2 * BATCH, BATCH, 0, False, agenda_batch=2 * n) for n in range(12)]


class Scan:
    """A scanner of blocks with `num_keys` keys each, which notes what it reads."""

    def __init__(self, examples, known=1 << 20, num_keys=50, blocks=BLOCKS):
        self.read, self.num_keys = [], num_keys
        self.next_uses = NextUses(KeyMap(), Uses.none(0), Uses.none(0))
        self.device = SimpleNamespace(keys_S=np.empty(80, np.uint64), num_free=0)
        self.places = SimpleNamespace(next_uses=self.next_uses, device=self.device)
        self.scanner = Scanner(self._keys, examples, known)
        self.scanner.begin(blocks, self.next_uses)

    def _keys(self, block):
        self.read.append(block.number)
        return np.arange(self.num_keys, dtype=np.uint64) + 7 * block.number

    def __call__(self, i):
        scan(BLOCKS[i], self.scanner, self.places)
        return self.next_uses.end

    def plan(self, i):
        self.next_uses.use_up(BLOCKS[i])


@pytest.mark.parametrize(("examples", "end"), [(0, 2), (1, 4), (2 * BATCH, 4), (2 * BATCH + 1, 6), (1 << 20, 24)])
def test_keys_are_known_for_as_many_examples_as_asked_for(examples, end):
    scanned = Scan(examples)
    for i in range(6):
        ends = min(24, end + 2 * i), 2 * MAX_BLOCKS_AT_ONCE * (i + 1)
        assert scanned(i) == min(ends)
        scanned.plan(i)
    assert scanned.read == list(range(12))[: len(scanned.read)], "a block is read twice"


def test_no_keys_are_read_before_the_device_is_nearly_full():
    scanned = Scan(2 * BATCH)
    for i, num_free in enumerate([80, 41, 11]):
        scanned.device.num_free = num_free
        assert scanned(i) == 0
        scanned.plan(i)
    scanned.device.num_free = 10
    assert scanned(3) == 10
    assert scanned.read == [3, 4]


def test_another_stretch_goes_on_behind_the_known_blocks():
    scanned = Scan(4 * BATCH)
    assert scanned(0) == 6
    scanned.plan(0)
    scanned.scanner.begin(BLOCKS[1:], scanned.next_uses)
    assert scanned(1) == 8
    assert scanned.read == [0, 1, 2, 3]


def test_keys_without_room_are_known_later_and_read_once():
    least = Scan(0).next_uses.bytes_with(50)
    scanned = Scan(1 << 20, known=least + 3 * 8 * 50)
    ends = []
    for i in range(12):
        ends.append(scanned(i))
        assert scanned.next_uses.bytes_with(0) <= scanned.scanner.max_bytes
        scanned.plan(i)
    assert 2 < ends[0] < 2 * MAX_BLOCKS_AT_ONCE
    assert ends == sorted(ends)
    assert ends[-1] == 24
    assert scanned.read == list(range(12))
    short = [end - 2 * (i + 1) for i, end in enumerate(ends) if end < 2 * MAX_BLOCKS_AT_ONCE * (i + 1) and end < 24]
    assert scanned.scanner.least_known == BATCH * min(short)


def test_a_block_without_room_for_its_keys_is_passed_over():
    scanned = Scan(1 << 20, known=10)
    for i in range(3):
        assert scanned(i) == 0
        scanned.plan(i)
    assert scanned.scanner.least_known == 0


def test_keys_of_an_unplanned_block_are_no_room_for_others():
    scanned = Scan(4 * BATCH)
    scanned(0)
    with pytest.raises(AssertionError, match="not planned yet"):
        scanned(1)
