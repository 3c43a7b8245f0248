"""Pages as they are written: how rows fill them, and what is refused."""

import re
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples

from pipeline.kernels.page_rows import PRECISION_NUMBERS
from pipeline.serving import pages as module
from pipeline.serving.pages import PageFormat, misplaced, pack_part, part_file, write_part
from pipeline.storage.files import Files, checksum_of

WIDE = PageFormat(250, False)
"""Pages of four rows."""


def zeros(keys, format=WIDE):
    return np.array(keys, np.uint64), np.zeros((len(keys), format.num_weights), np.float32)


@pytest.mark.parametrize(
    ("format", "row_bytes", "max_rows", "page_bytes"),
    [
        (PageFormat(16, True), 76, 53, 4096),
        (PageFormat(16, True, "float16"), 42, 97, 4096),
        (PageFormat(16, True, "int8"), 32, 127, 4096),
        (PageFormat(16, False, "int8"), 28, 146, 4096),
        (PageFormat(8, True), 44, 92, 4096),
        (PageFormat(0, True), 12, 340, 4096),
        (PageFormat(1100, True), 4412, 10, 45_056),
        (PageFormat(250, False), 1008, 4, 4096),
    ],
)
def test_a_page_is_the_smallest_whose_free_bytes_are_few(format, row_bytes, max_rows, page_bytes):
    assert (format.row_bytes, format.max_rows, format.page_bytes) == (row_bytes, max_rows, page_bytes)


@pytest.mark.parametrize("precision", PRECISION_NUMBERS)
def test_a_page_of_rows_of_any_width_has_few_free_bytes(precision):
    for dim in (*range(0, 300), 1000, 4000, 50_000):
        for first_order in {True, dim == 0}:
            format = PageFormat(dim, first_order, precision)
            used, page_bytes = format.max_rows * format.row_bytes, format.page_bytes
            assert page_bytes % 4096 == 0
            assert page_bytes / 1.025 <= used <= page_bytes - 8
            less = page_bytes - 4096
            assert (less - 8) // format.row_bytes * format.row_bytes * 1.025 < less or not less


# Keys that share a prefix, dense keys, the first and the last possible ones, gaps.
KEY = st.one_of(
    st.integers(0, 2**64 - 2),
    st.integers(0, 9),
    st.integers(2**64 - 9, 2**64 - 2),
    st.tuples(st.integers(0, 6), st.integers(0, 5)).map(lambda key: key[0] << 32 | key[1]),
)


@examples(48, 1000)
@given(st.sets(KEY, max_size=60).map(sorted))
def test_keys_with_equal_top_bits_share_a_page_or_are_refused(keys):
    prefixes = [key >> 32 for key in keys]
    most = max(map(prefixes.count, prefixes), default=0)
    if most > 4:
        with pytest.raises(ValueError, match=f"^{most} keys share|share their top 32 bits .* holds at most 4 rows"):
            pack_part(0, WIDE, *zeros(keys))
        return
    pages, fences = pack_part(0, WIDE, *zeros(keys))
    counts = pages.view(np.uint32)[:, 1].tolist()
    of_page = [page.view(np.uint64)[1 : 1 + count].tolist() for page, count in zip(pages, counts, strict=True)]
    assert [*chain(*of_page)] == keys
    assert [page[0] >> 32 for page in of_page] == fences.tolist()
    assert all(first[-1] >> 32 < second[0] >> 32 for first, second in pairwise(of_page))
    # No page ends earlier than it must: the keys that share the next prefix would not have had room.
    for page, after in pairwise(of_page):
        assert len(page) + sum(key >> 32 == after[0] >> 32 for key in after) > 4


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([5, 5], "key 5 (row 1 of part 3) is reserved, or not above the key before it"),
        ([5, 9, 8, 7], "key 8 (row 2 of part 3)"),
        ([5, 2**64 - 1], f"key {2**64 - 1} (row 1 of part 3)"),
    ],
)
def test_keys_that_do_not_ascend_are_refused(keys, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        pack_part(3, WIDE, *zeros(keys))


def test_a_part_of_too_many_pages_is_refused(monkeypatch):
    """More pages than numbers of a part: some would have the numbers of the next part's."""
    monkeypatch.setattr(module, "MAX_PART_PAGES", 3)
    keys, weights = zeros(np.arange(13, dtype=np.uint64) << np.uint64(32))
    assert len(pack_part(0, WIDE, keys[:12], weights[:12])[0]) == 3
    with pytest.raises(ValueError, match="13 rows, which are 4 pages; cut the table into parts of at most 3 pages"):
        pack_part(0, WIDE, keys, weights)


@pytest.mark.parametrize("precision", PRECISION_NUMBERS)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_weight_that_is_not_finite_is_refused_with_its_key(precision, value):
    format = PageFormat(3, True, precision)
    keys, weights = zeros([5, 2**40, 2**50], format)
    weights[1, 3] = value
    with pytest.raises(ValueError, match=re.escape(f"key {2**40}: weight 3 is {value}, not finite")):
        pack_part(0, format, keys, weights)


def test_a_weight_beyond_float16_is_refused_with_its_key():
    keys, weights = zeros([5, 2**40], PageFormat(3, True))
    weights[1, :2] = 65504, -65504.004
    pack_part(0, PageFormat(3, True), keys, weights)
    with pytest.raises(ValueError, match=re.escape(f"key {2**40}: weight 1 is -65504.0")):
        pack_part(0, PageFormat(3, True, "float16"), keys, weights)
    weights[1, 1] = -65504
    pack_part(0, PageFormat(3, True, "float16"), keys, weights)


def test_int8_steps_are_rounded_half_to_even_from_a_row_scale():
    """Also from scales that are 0, or too small, because floats end at 2^-149."""
    format = PageFormat(4, True, "int8")
    rows = np.array([[127, 0.5, 1.5, -2.5, 9.25], [0, 0, 0, 0, -3], [1e-45, -1e-45, 0, 0, 0]], np.float32)
    least = 2.0**-149
    more = np.array([[1e38, -3e38, 0, 1, 1], [190 * least, -190 * least, least, 0, 2]], np.float32)
    pages, _ = pack_part(0, format, np.arange(5, dtype=np.uint64) << np.uint64(33), np.append(rows, more, axis=0))
    max_rows = format.max_rows
    floats = pages[0, 8 + 8 * max_rows :][: 8 * max_rows].view(np.float32).reshape(2, max_rows)[:, :5]
    steps = pages[0, 8 + 16 * max_rows :][: 4 * max_rows].view(np.int8).reshape(max_rows, 4)[:5]
    assert floats[0].tolist() == [1, 0, 0, np.float32(3e38) / np.float32(127), least]
    assert floats[1].tolist() == [9.25, -3, 0, 1, 2]
    assert steps.tolist() == [[127, 0, 2, -2], [0] * 4, [0] * 4, [42, -127, 0, 0], [127, -127, 1, 0]]


def test_a_part_with_its_name_is_whole(tmp_path):
    format = PageFormat(16, True)
    keys, weights = zeros(np.arange(200, dtype=np.uint64) << np.uint64(55), format)
    part_file(tmp_path, 7).with_name("0007.partial").write_text("of a kill")
    checksum, fences = write_part(Files(), tmp_path, 7, format, keys, weights)
    pages, expected = pack_part(7, format, keys, weights)
    assert [file.name for file in tmp_path.iterdir()] == ["0007"]
    assert part_file(tmp_path, 7).read_bytes() == pages.tobytes()
    assert checksum == checksum_of(part_file(tmp_path, 7))
    assert fences.tolist() == expected.tolist()


@pytest.mark.parametrize("format", [PageFormat(16, False, precision) for precision in PRECISION_NUMBERS])
def test_a_key_of_another_page_is_found(format):
    keys_N = np.arange(1, 1000, dtype=np.uint64) << np.uint64(40)
    pages_MB, fences_M = pack_part(0, format, keys_N, np.ones((len(keys_N), 16), np.float32))
    ends_M = np.append(fences_M[1:], 1 << 32).astype(np.uint64)
    assert list(misplaced(pages_MB, fences_M, ends_M, format)) == []
    # The last row of the first page gets the first key of the next one.
    pages_MB[0].view(np.uint64)[format.max_rows] = keys_N[format.max_rows]
    assert list(misplaced(pages_MB, fences_M, ends_M, format)) == [(0, "it has a key of another page")]
