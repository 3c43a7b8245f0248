"""What is called durable is, in the order in which it must be; nothing half written has a name that counts."""

import errno
import os

import numpy as np
import pytest
import safetensors.numpy
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.storage.files import Files, checksum, checksum_of, tensors

pytestmark = pytest.mark.disk


class Watched:
    """The system: keeps the names of calls, with the files they are for; one call may fail; `write` is short."""

    def __init__(self, fails=None, shortest=None):
        self.calls, self._fails, self._shortest, self._names = [], fails, shortest, {}

    def __getattr__(self, name):
        def call(*args):
            of = self._names.get(args[0], args[0])
            self.calls.append((name, os.path.basename(of)))
            if self._fails == name:
                raise OSError(errno.EIO, "the disk failed")
            if name == "write" and self._shortest:
                args = (args[0], args[1][: self._shortest])
            result = getattr(os, name)(*args)
            if name == "open":
                self._names[result] = os.fspath(args[0])
            if name == "close":
                del self._names[args[0]]
            return result

        return call

    @property
    def num_open(self):
        return len(self._names)


def watched(**how):
    files = Files()
    files.system = Watched(**how)
    return files


@settings(deadline=None, max_examples=60)
@given(st.lists(st.binary(max_size=40), max_size=4), st.sampled_from([None, 1, 7]))
def test_short_writes_lose_no_byte_and_give_the_right_checksum(tmp_path_factory, parts, shortest):
    path = tmp_path_factory.mktemp("files") / "a"
    got = watched(shortest=shortest).write(path, parts)
    assert path.read_bytes() == b"".join(parts)
    assert got == xxhash.xxh3_64_hexdigest(b"".join(parts)) == checksum_of(path, 3) == checksum(path.read_bytes())


def test_arrays_are_written_as_their_bytes(tmp_path):
    arrays = [np.arange(6, dtype=np.uint32).reshape(2, 3), np.empty((0, 4), np.uint64), np.arange(3.0)]
    Files(cached=False).write(tmp_path / "a", arrays)
    assert (tmp_path / "a").read_bytes() == b"".join(array.tobytes() for array in arrays)


def test_an_existing_file_is_never_written_over(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        Files().write(tmp_path / "a", [b"new"])
    assert (tmp_path / "a").read_bytes() == b"old"


def test_a_new_name_is_published_after_its_content_is_durable(tmp_path):
    files = watched()
    files.replace(tmp_path / "a", [b"one", b"two"])
    folder = tmp_path.name
    assert [call for call in files.system.calls if call[0] != "close"] == [
        ("open", "a.partial"), ("write", "a.partial"), ("write", "a.partial"), ("fsync", "a.partial"),
        ("rename", "a.partial"), ("open", folder), ("fsync", folder),
    ]  # fmt: skip
    assert files.system.num_open == 0
    assert os.listdir(tmp_path) == ["a"]


def test_leftovers_of_an_earlier_try_are_replaced(tmp_path):
    (tmp_path / "a.partial").write_bytes(b"torn")
    (tmp_path / "a").write_bytes(b"old")
    Files().replace(tmp_path / "a", [b"new"])
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a": b"new"}


@pytest.mark.parametrize("fails", ["open", "write", "fsync", "rename"])
def test_a_failed_replace_leaves_the_old_file(tmp_path, fails):
    (tmp_path / "a").write_bytes(b"old")
    files = watched(fails=fails)
    with pytest.raises(OSError, match="the disk failed") as caught:
        files.replace(tmp_path / "a", [b"new"])
    assert (tmp_path / "a").read_bytes() == b"old"
    assert files.system.num_open == 0
    assert [name for name, _ in files.system.calls].count(fails) == 1, "it was tried again"
    if fails in ("write", "fsync"):
        assert caught.value.filename == str(tmp_path / "a.partial")


def test_the_name_of_a_new_folder_is_made_durable(tmp_path):
    files = watched()
    files.make_folder(tmp_path / "a")
    assert [call for call in files.system.calls if call[0] != "close"] == [
        ("mkdir", "a"), ("open", tmp_path.name), ("fsync", tmp_path.name),
    ]  # fmt: skip
    files.make_folder(tmp_path / "a")
    assert [name for name, _ in files.system.calls].count("mkdir") == 1


def test_a_reserve_takes_its_space_on_disk(tmp_path):
    Files().reserve(tmp_path / "r", 300_000)
    assert os.stat(tmp_path / "r").st_blocks * 512 >= 300_000
    Files().reserve(tmp_path / "r", 0)


ARRAYS = {
    "f": np.array([[1.5, -2.0], [np.inf, 3.0]], np.float32), "empty": np.empty((0, 3), np.int64),
    "scalar": np.array(7.0, np.float64), "flags": np.array([True, False]), "t": np.arange(6, dtype=np.uint8)[::2],
    "column": np.arange(12, dtype=np.int32).reshape(3, 4)[:, 1],
}  # fmt: skip


def test_the_safetensors_library_reads_the_same_arrays():
    loaded = safetensors.numpy.load(b"".join(bytes(part) for part in tensors(ARRAYS)))
    assert loaded.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert (loaded[name].dtype, loaded[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(loaded[name], array)
    assert safetensors.numpy.load(b"".join(bytes(part) for part in tensors({}))) == {}


def test_the_header_of_tensors_ends_at_a_multiple_of_eight_bytes():
    """The tensors follow one another without a gap."""
    for length in range(1, 9):
        size, header, *_ = tensors({"x" * length: np.zeros(3, np.uint8)} | ARRAYS)
        assert len(header) == int.from_bytes(size, "little")
        assert (len(size) + len(header)) % 8 == 0


def test_a_write_that_takes_nothing_is_an_error_with_the_path(tmp_path):
    files = watched()
    files.system.write = lambda descriptor, left: 0
    with pytest.raises(OSError, match="nothing was written") as caught:
        files.write(tmp_path / "a", [b"rows"])
    assert caught.value.filename == str(tmp_path / "a")
