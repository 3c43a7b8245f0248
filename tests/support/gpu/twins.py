"""Checks that every CUDA twin produces the bits of its CPU twin, at any size. `gpu.to_device` copies arrays to the
device, and `gpu.back` copies them back. The simulator and a real GPU run the same checks."""

from dataclasses import replace

import numpy as np
from support.data.batches import make_batch
from support.oracle.row_table import Table

from pipeline.kernels.catch_up import catch_up
from pipeline.kernels.dedup import group_sources, unique_keys_reference
from pipeline.kernels.dedup_cuda import index_batch_cuda, unique_keys_cuda
from pipeline.kernels.init_rows import clear_unused
from pipeline.kernels.narrow_rows import BFLOAT16, FLOAT16_WORD, FULL_WORD, narrow_rows, widen_rows
from pipeline.kernels.pool import lookup, pool_bags, pool_singles
from pipeline.kernels.requests import count_examples
from pipeline.kernels.rows import gather_rows, scatter_rows
from pipeline.kernels.segment_sum import bag_scale, segment_sum
from pipeline.kernels.update_rows import clip_gradients, update_rows
from pipeline.records import RESERVED, TILE


def same(gpu, operation, args, changed):
    """Run both twins on copies of the same arguments. Afterwards, the arguments at indices `changed` must have the same
    bits."""
    here = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    there = [gpu.to_device(a) if isinstance(a, np.ndarray) else a for a in args]
    operation(*here)
    operation(*there)
    for number in changed:
        got, expected = gpu.back(there[number]), here[number]
        assert got.tobytes() == expected.tobytes(), f"argument {number} of {operation.__name__} differs"


def check_rows(gpu, rng, slots, rows, words):
    slab = rng.integers(0, 2**32, (slots, words), np.uint32)
    at = rng.permutation(slots)[:rows].astype(np.int32)
    same(gpu, gather_rows, (slab, at, np.zeros((rows, words), np.uint32)), [0, 2])
    same(gpu, scatter_rows, (slab, at, rng.integers(0, 2**32, (rows, words), np.uint32)), [0, 2])


def check_narrow(gpu, rng, slots, rows, width):
    """Check values of all magnitudes and arbitrary float32 bits, in each format, from the slab and from staging."""
    for number_format in (FULL_WORD, BFLOAT16, FLOAT16_WORD):
        parts = np.array([[FULL_WORD, 0, 2, 0], [number_format, 2 if number_format == FULL_WORD else 4, width, 2]])
        slab, staged = rng.integers(0, 2**32, (2, slots, 2 + width), np.uint32)
        for stored in (slab, staged):
            halves = stored.view(np.uint16)
            halves[halves & 0x7C00 == 0x7C00] &= 0xFC00  # Only one kind of NaN is stored.
        wide = rng.integers(0, 2**32, (rows, 2 + width), np.uint32)
        wide.view(np.float32)[::2, 2:] = np.ldexp(1 + rng.random(width), rng.integers(-45, 17, width))
        at = rng.permutation(slots)[:rows].astype(np.int32)
        parts = parts.astype(np.int32)
        for step in (0, 7):
            same(gpu, narrow_rows, (wide, at, parts, 3, step, slab), [5])
        at[rng.random(rows) < 0.3] *= -1
        same(gpu, widen_rows, (slab, staged, at, parts, wide), [4])


def check_pool(gpu, rng, batch, dim, first_order):
    width = dim + first_order
    slab = rng.standard_normal((2 * batch.num_unique + 1, width + 3)).astype(np.float32)
    staged = rng.standard_normal((batch.num_unique + 1, width + 3)).astype(np.float32)
    rows = rng.permutation(2 * batch.num_unique)[: batch.num_unique].astype(np.int32)
    away = rng.random(batch.num_unique) < 0.3
    rows[away] = -1 - np.flatnonzero(away)
    weights = np.zeros((batch.num_unique, width), np.float32)
    same(gpu, lookup, (slab, staged, rows, 2, weights), [4])
    lookup(slab, staged, rows, 2, weights)
    out = np.zeros((batch.num_examples, batch.num_fields, dim), np.float32)
    first = np.zeros((batch.num_examples, batch.num_fields if first_order else 0), np.float32)
    begin = batch.num_examples // 3
    args = (weights, batch.inverse_V, batch.single_S, begin, batch.num_examples, out, first)
    same(gpu, pool_singles, args, [5, 6])
    mean = rng.integers(0, 2, len(batch.multi_M)).astype(np.int32)
    bags = (weights, batch.inverse_V, batch.bags_MB, batch.multi_M, mean, begin, batch.num_examples, out, first)
    same(gpu, pool_bags, bags, [7, 8])


def check_segment_sum(gpu, rng, batch, dim, first_order, mean, sources=None):
    """Check the sum by key. `sources`: those of the batch, given if the plain reference would take too long."""
    source, starts = sources or batch.sources()
    grads = rng.standard_normal((batch.num_examples * batch.num_fields, dim)).astype(np.float32)
    first = rng.standard_normal(len(grads) if first_order else 0).astype(np.float32)
    scale = np.empty(0, np.float32)
    if mean and len(batch.multi_M):
        means = (True,) * len(batch.multi_M)
        scale = bag_scale(batch.bags_MB, tuple(batch.multi_M.tolist()), means, batch.num_fields)
    out = np.zeros((batch.num_unique, dim + first_order), np.float32)
    same(gpu, segment_sum, (grads, first, source, starts, scale, TILE * batch.num_fields, out), [6])


def check_update(gpu, rng, kind, slots, rows, width):
    table = random_table(rng, kind, slots, width)
    at = rng.permutation(slots)[:rows].astype(np.int32)
    grads = rng.standard_normal((rows, width)) * 10.0 ** rng.integers(-18, 3, (rows, 1))
    starts = np.concatenate([[0], np.cumsum(rng.integers(1, 5, rows))]).astype(np.int32)
    arrays = table.floats, table.words, at, grads.astype(np.float32), starts, table.rates

    def update(floats_SW, words_SW, at_P, grads_PC, starts_P, rates_T4):
        for whole in (False, True):
            update_rows(
                table.rule, floats_SW, words_SW, 0, 0, at_P, grads_PC.copy(), starts_P, table.dim, 7, rates_T4,
                table.settings, whole,
            )  # fmt: skip

    same(gpu, update, arrays, [0, 1])


def check_clip(gpu, rng, rows, width, clip):
    rates = np.array([(0, 0, 0, 0), (0.1, 1e-8, 1e-3, 0.7)], np.float32)
    weights = rng.standard_normal((rows, width)) * 10.0 ** rng.integers(-8, 1, (rows, 1))
    grads = rng.standard_normal((rows, width)) * 10.0 ** rng.integers(-18, 3, (rows, 1))
    arrays = (
        grads.astype(np.float32), weights.astype(np.float32), rng.integers(1, 5, rows).astype(np.int32), rates,
        np.zeros(rows, np.uint8),
    )  # fmt: skip

    def clip_them(grads_PC, weights_PC, counts_P, rates_T4, clipped_P):
        args = width - 1, 1, rates_T4, tuple(map(np.float32, clip)), clipped_P
        clip_gradients(grads_PC, weights_PC, counts_P, *args)

    same(gpu, clip_them, arrays, [0, 4])


def check_catch_up(gpu, rng, kind, slots, rows, width):
    table = random_table(rng, kind, slots, width)
    arrays = table.floats, table.words, rng.permutation(slots)[:rows].astype(np.int32), table.rates, table.begins

    def catch(floats_SW, words_SW, at_P, rates_T4, begins_T):
        catch_up(
            table.rule, floats_SW, words_SW, 0, 0, at_P, width, table.dim, 300, rates_T4, begins_T, table.settings,
            (*table.ahead[:3], 290, table.ahead[4]),
        )  # fmt: skip

    same(gpu, catch, arrays, [0, 1])


def random_table(rng, kind, slots, width):
    """Table with rows last trained at some step up to 320, rates that change over the steps, and a range of steps
    without L2."""
    table = Table(
        kind, np.float32, slots, width - 1, True, lambda t: (0.1 / (1 + t // 100), 1e-3 * (t < 150 or t > 260)), 320,
        eps=1e-8, ftrl=(1.0, 1e-3, 0.1),
    )  # fmt: skip
    table.floats[:] = rng.standard_normal(table.floats.shape) * 10.0 ** rng.integers(-12, 1, (slots, 1))
    table.floats[:, width:] **= 2
    table.floats[rng.random(table.floats.shape) < 0.1] = 0
    table.words[:, 0] = rng.integers(0, 320, slots)
    table.words[rng.random(slots) < 0.1, 0] = 0
    return table


def check_clear_unused(gpu, rng, slots, rows):
    """Check weights of 32 and of 16 bits; half of the rows were never trained."""
    words = rng.integers(1, 2**32, (slots, 6), np.uint32)
    words[:, 5] *= rng.integers(0, 2, slots, np.uint32)
    args = rng.permutation(slots)[:rows].astype(np.int32), rng.integers(0, 4, rows).astype(np.int32)

    def clear(values_at, words_SW, rows_P, widths_P):
        values_SX = words_SW.view(np.uint32 if values_at == 2 else np.uint16)
        clear_unused(words_SW, values_SX, 5, values_at, 3, rows_P, widths_P)

    for values_at in (2, 4):
        same(gpu, clear, (values_at, words, *args), [1])


def check_count_examples(gpu, batch):
    source, starts = batch.sources()
    counts = np.zeros(batch.num_unique, np.int32)
    same(gpu, count_examples, (source, starts, batch.num_fields, counts), [3])


def check_unique(gpu, keys, limit):
    """Check against the plain reference. With more than `limit` keys, check only that the count exceeds the limit."""
    expected, inverse = unique_keys_reference(keys) if len(keys) < 10_000 else by_first_appearance(keys)
    slots = 1 << (2 * limit - 1).bit_length()
    table, first, position, unique, count = map(
        gpu.to_device,
        (np.zeros(slots, np.uint64), np.zeros(slots, np.int32), np.zeros(len(keys), np.int32),
         np.zeros(limit, np.uint64), np.zeros(1, np.int32)),
    )  # fmt: skip
    unique_keys_cuda(gpu.to_device(keys), table, first, position, limit, unique, count)
    found = int(gpu.back(count)[0])
    if len(expected) > limit:
        assert found > limit
        assert gpu.back(position).max() < limit
        return
    assert found == len(expected)
    np.testing.assert_array_equal(gpu.back(unique)[:found], np.array(expected, np.uint64))
    np.testing.assert_array_equal(gpu.back(position), inverse)


def by_first_appearance(keys):
    unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return unique[order], rank[inverse.reshape(-1)]


def check_index(gpu, batch, shift):
    """Check that the index of a batch, whose keys are numbered from `shift` in its block, equals that of the CPU
    kernels."""
    size, limit = len(batch.inverse_V), batch.num_unique + shift
    position = (batch.inverse_V[::-1] + shift).astype(np.int32) if size else batch.inverse_V
    unique, expected = by_first_appearance(position)
    found = len(unique)
    starts, source = fast_sources(replace(batch, inverse_V=expected.astype(np.int32), num_unique=found))[::-1]
    out = [gpu.to_device(np.zeros(n, np.int32)) for n in (size, size + 1, size, size, 1)]
    single, multi, bags = map(gpu.to_device, (batch.single_S, batch.multi_M, batch.bags_MB))
    first = gpu.to_device(np.zeros(limit, np.int32))
    index_batch_cuda(gpu.to_device(position), bags, single, multi, first, *out)
    unique_P, starts_P, inverse_V, source_V, count = map(gpu.back, out)
    assert count[0] == found
    np.testing.assert_array_equal(unique_P[:found], unique)
    np.testing.assert_array_equal(starts_P[: found + 1], starts)
    np.testing.assert_array_equal(inverse_V, expected)
    np.testing.assert_array_equal(source_V, source)


def fast_sources(batch):
    """Result of `batch.sources()`, computed by the CPU's kernel."""
    starts, source = np.empty(batch.num_unique + 1, np.int32), np.empty(len(batch.inverse_V), np.int32)
    group_sources(batch.inverse_V, batch.bags_MB, batch.single_S, batch.multi_M, batch.num_examples, starts, source)
    return source, starts


def zipf_keys(rng, size, num_keys):
    """Keys with arbitrary bits, except the reserved key; some occur very often."""
    ranks = np.minimum(rng.zipf(1.3, size), num_keys).astype(np.uint64)
    keys = ranks * np.uint64(0x9E3779B97F4A7C15)
    return np.where(keys == RESERVED, np.uint64(1), keys)


def small_batches(rng):
    for num_examples in (1, 5, TILE + 3):
        for num_single, num_multi in ((2, 0), (1, 2), (0, 1)):
            for num_keys in (1, 6, 50):
                if num_examples < 10 or num_keys == 6:
                    yield make_batch(int(rng.integers(2**31)), num_examples, num_single, num_multi, num_keys, 2)


def batches_with_lists(rng):
    """Batches with sequences: with few values, many, and more than a tile."""
    for num_examples, longest in ((1, 2), (5, 3), (TILE + 3, 5)):
        yield make_batch(int(rng.integers(2**31)), num_examples, 1, 1, 9, longest, num_lists=2)
