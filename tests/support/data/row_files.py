"""Files of rows with tags, the descriptors of this process, and bits that flip."""

import os
import tempfile
from contextlib import contextmanager

import numpy as np

from pipeline.kernels.tag import set_tags


def tagged_rows(file, num_rows, num_words):
    """Rows of a file of this number, no two of any file equal."""
    rows = (100_000 * file + np.arange(num_rows * num_words, dtype=np.uint32)).reshape(num_rows, num_words)
    set_tags(rows)
    return rows


@contextmanager
def files_of(*contents, flags=0, folder=None):
    """Open descriptors of files with these contents."""
    with tempfile.TemporaryDirectory(dir=folder) as folder:
        descriptors = []
        for number, content in enumerate(contents):
            path = os.path.join(folder, str(number))
            with open(path, "wb") as file:
                file.write(content)
            descriptors.append(os.open(path, os.O_RDONLY | flags))
        try:
            yield descriptors
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def num_open(folder):
    """Descriptors of this process that lie in the folder."""
    links = "/proc/self/fd"
    return sum(os.path.realpath(os.path.join(links, fd)).startswith(str(folder)) for fd in os.listdir(links))


def flip(file, at, bit=1):
    """Flip a bit of the byte at this place of a file."""
    content = bytearray(file.read_bytes())
    content[at] ^= bit
    file.write_bytes(content)
