"""A disk that is full, or can suddenly only be read, ends a preparation with one message; the same command resumes."""

import pytest
from support.data.preparations import SPLIT, contents, prepare, wait_for, write_lines
from support.faults.small_disk import Disk, need_namespaces

IDS = ("--vocabulary", "c1", "c3")
PIECE = ("--piece-size", "50 KiB", "--workers", 1, *SPLIT)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    need_namespaces()
    return write_lines(tmp_path_factory.mktemp("raw") / "day", "criteo", 5_000)


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """By options, what undisturbed preparations leave."""
    left = {}
    for options in ((), IDS):
        out = tmp_path_factory.mktemp("whole") / "out"
        assert prepare("criteo", source, out, *PIECE, *options) == 0
        left[options] = contents(out)
    return left


def ended_with_one_message(process):
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    assert [line.split(":")[0] for line in err.splitlines() if not line.endswith(" left")] == [
        "error", "what is done stays"
    ], err  # fmt: skip
    return err


INSTANTS = [
    ((), ".prepare/write/*.json", 3),
    ((), "train/*.parquet", 12),
    (IDS, ".prepare/count/*.json", 4),
    (IDS, ".prepare/counts/*.merged", 1),
    (IDS, ".prepare/write/*.json", 2),
]


@pytest.mark.prove
@pytest.mark.parametrize(("options", "pattern", "count"), INSTANTS)
def test_a_rerun_completes_after_the_one_message_of_a_full_disk(tmp_path, source, whole, options, pattern, count):
    with Disk(tmp_path / "disk", "64m") as disk:
        process = disk.prepare("criteo", source, *PIECE, *options)
        wait_for(process, disk.seen, pattern, count)
        disk.fill()
        assert "No space left on device" in ended_with_one_message(process)
        disk.free()
        process = disk.prepare("criteo", source, *PIECE, *options)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert contents(disk.seen) == whole[options]


@pytest.mark.prove
@pytest.mark.parametrize(("options", "pattern", "count"), [INSTANTS[0], INSTANTS[2]])
def test_a_rerun_completes_after_a_read_only_disk(tmp_path, source, whole, options, pattern, count):
    with Disk(tmp_path / "disk", "64m") as disk:
        process = disk.prepare("criteo", source, *PIECE, *options)
        wait_for(process, disk.seen, pattern, count)
        disk.remount("ro")
        assert "Read-only file system" in ended_with_one_message(process)
        disk.remount("rw")
        process = disk.prepare("criteo", source, *PIECE, *options)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert contents(disk.seen) == whole[options]
