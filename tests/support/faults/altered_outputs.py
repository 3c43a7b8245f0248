"""Unfinished output of a preparation, and the ways in which tests alter its files."""

import os
import shutil

from support.data import preparations as preparing

from pipeline.prepare import main

OPTIONS = ("--piece-size", "4 KiB", *preparing.SPLIT)


class Inline:
    """Runs tasks one after another in this thread, and stops before the task with number `ends_at`."""

    num_threads = 1

    def __init__(self, ends_at=None):
        self._left = ends_at

    def each(self, name, work, items, tick_seconds):
        for item in items:
            if self._left is not None:
                self._left -= 1
                if self._left < 0:
                    raise OSError("ended")
            work(item)
            yield [item]


def prepare(patch, source, out, ends_at=None):
    """Prepare in this thread."""
    patch.setattr(main, "TaskThreads", lambda _: Inline(ends_at))
    return preparing.prepare("csv", source, out, *OPTIONS)


def flip(path, rng, out):
    content = bytearray(path.read_bytes())
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut(path, rng, out):
    os.truncate(path, rng.randrange(path.stat().st_size + 1))


def delete(path, rng, out):
    path.unlink()


def nest(path, rng, out):
    path.write_bytes(b"[" * 100_000)


def garble(path, rng, out):
    """Insert a value after a JSON delimiter, or at the start of a file without one."""
    content = path.read_bytes()
    values = (b"null", b"-1", b"1e999", b'"\xff"', b"{}", b"[]", b"9" * 5000, b'"../../x"', b"true")
    place = rng.choice([at for at, byte in enumerate(content) if byte in b':,"'] or [0])
    path.write_bytes(content[: place + 1] + rng.choice(values) + content[place + 1 :])


def swap(path, rng, out):
    other = rng.choice([other for other in path.parent.iterdir() if other.is_file()])
    first, second = path.read_bytes(), other.read_bytes()
    path.write_bytes(second)
    other.write_bytes(first)


def be_folder(path, rng, out):
    path.unlink()
    path.mkdir()


def be_link(path, rng, out):
    """Move the file out of the output, and replace it with a link."""
    outside = out.parent / "outside" / path.name
    shutil.move(path, outside)
    path.symlink_to(outside)


WAYS = (flip, flip, flip, cut, delete, nest, garble, swap, be_folder, be_link)
