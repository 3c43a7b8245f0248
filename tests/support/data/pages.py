"""Tables of pages on disk for tests, and the expected results of lookups."""

from itertools import pairwise

import numpy as np

from pipeline.serving.page_table import PageTable
from pipeline.serving.pages import pack_part, part_file


def as_stored(format, weights_NC):
    """Weights as a table of this precision stores them."""
    if format.precision == "float16":
        return weights_NC.astype(np.float16).astype(np.float32)
    if format.precision == "int8":
        embeddings, first_orders = weights_NC[:, : format.embedding_dim], weights_NC[:, format.embedding_dim :]
        scales = np.abs(embeddings).max(axis=1, initial=0, keepdims=True) / np.float32(127)
        steps = np.divide(embeddings, scales, where=scales > 0, out=np.zeros_like(embeddings))
        return np.append(np.rint(steps).clip(-127, 127).astype(np.int8) * scales, first_orders, axis=1)
    return weights_NC


def write_table(folder, format, keys_N, weights_NC, begins=()):
    """Write a table whose parts start at the first row and at rows `begins`. Returns its fences part by part."""
    bounds = [0, *begins, len(keys_N)]
    fences = []
    for number, (begin, end) in enumerate(pairwise(bounds)):
        pages, of_part = pack_part(number, format, keys_N[begin:end], weights_NC[begin:end])
        part_file(folder, number).write_bytes(pages.tobytes())
        fences.append(of_part)
    return fences


def least_memory(format):
    """Bytes of the smallest cache: one set, and scratches of one page."""
    return 20 * format.page_bytes + 18_000


def open_table(folder, format, fences, memory_bytes=None):
    every = np.concatenate([*fences, np.empty(0, np.uint32)])
    return PageTable(folder, len(fences), every, format, memory_bytes or least_memory(format))


def random_keys(rng, num_keys, top=2**64 - 1):
    """Sorted distinct keys."""
    keys = np.unique(rng.integers(0, top, num_keys + num_keys // 100 + 9, np.uint64))
    return np.sort(rng.permutation(keys)[:num_keys])


def random_table(folder, format, num_keys, num_parts=3, seed=0):
    """Keys, weights as they are stored, and fences of a table of random keys."""
    rng = np.random.default_rng(seed)
    keys = random_keys(rng, num_keys)
    weights = rng.standard_normal((num_keys, format.num_weights), np.float32)
    begins = np.searchsorted(
        keys, np.arange(1, num_parts, dtype=np.uint64) * np.uint64(2**32 // num_parts) << np.uint64(32)
    )
    fences = write_table(folder, format, keys, weights, begins.tolist())
    return keys, as_stored(format, weights), fences
