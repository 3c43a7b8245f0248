"""A file is there whole, or not at all."""

import pytest

from pipeline.settings import Count, Strict
from pipeline.storage.durable import read_sealed, replacing, write_sealed


def test_concurrent_attempts_at_one_file_leave_it_whole(tmp_path):
    path = tmp_path / "a"
    with replacing(path) as first:
        first.write(b"the")
        with replacing(path) as second:
            second.write(b"the same")
        assert path.read_bytes() == b"the same"
        first.write(b" same")
    assert path.read_bytes() == b"the same"
    assert list(tmp_path.iterdir()) == [path]


def fail_at(path):
    with replacing(path) as file:
        file.write(b"after")
        assert [p.name.endswith(".partial") for p in sorted(path.parent.iterdir())] == [False, True]
        raise OSError("full")


def test_a_failed_attempt_leaves_the_file_unchanged(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"before")
    with pytest.raises(OSError, match="full"):
        fail_at(path)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


class Record(Strict):
    count: Count


def test_every_flipped_bit_of_a_sealed_record_is_found(tmp_path):
    write_sealed(path := tmp_path / "record", Record(count=7))
    assert read_sealed(path, Record) == Record(count=7)
    content = path.read_bytes()
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="record is damaged"):
            read_sealed(path, Record)
