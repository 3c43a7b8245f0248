"""Lookups in a table of pages: one read of one page a key, in bounded memory, by many threads, and over damage."""

import errno
import itertools
import os
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.data.pages import as_stored, open_table, random_table, write_table
from support.data.row_files import flip, num_open
from support.depth import examples, some

from pipeline.kernels.page_rows import NO_PAGE, PRECISION_NUMBERS, find_pages, find_slots, take_rows
from pipeline.kernels.read_pages import check_pages
from pipeline.messages.sizes import parse_size
from pipeline.records import RESERVED
from pipeline.serving import page_table
from pipeline.serving.page_table import KEYS_AT_ONCE, NUM_SCRATCHES
from pipeline.serving.pages import PageFormat, part_file
from pipeline.storage.files import Damaged

pytestmark = pytest.mark.disk

SMALL = PageFormat(16, True)


def look_up(table, keys, width):
    """Weights and found; rows that are not found must stay as they are."""
    weights = np.full((len(keys), width), np.float32(-7.5))
    found = table.look_up(np.array(keys, np.uint64), weights)
    assert (weights[~found] == -7.5).all()
    return weights, found


def empty_cache(table):
    table.cache._page_of_S[:] = NO_PAGE
    table.cache._marked_S[:] = 0


def pages_of(fences, keys):
    return np.maximum(np.searchsorted(np.concatenate(fences), keys >> np.uint64(32), side="right") - 1, 0)


def absent_keys(keys, rng, num):
    """Keys between those of the table: neighbours of some, and random ones."""
    drawn = np.concatenate([rng.choice(keys, num) + np.uint64(1), rng.integers(0, keys[-1], num, np.uint64)])
    return rng.permutation(drawn[~np.isin(drawn, keys)])[:num]


@pytest.fixture
def reads(monkeypatch):
    """(file, offset) of each read of a page."""
    made = []

    def counted(context, files_R, offsets_R, *rest):
        made.extend(zip(files_R.tolist(), offsets_R.tolist(), strict=True))
        return real(context, files_R, offsets_R, *rest)

    real = page_table.read_pages
    monkeypatch.setattr(page_table, "read_pages", counted)
    return made


@pytest.fixture
def from_memory(monkeypatch):
    """Files stay in the system's page cache: reads are counted, not timed."""
    monkeypatch.setattr(page_table.os, "open", refuse_direct)
    monkeypatch.setattr(page_table.os, "posix_fadvise", lambda *_: None)


def refuse_direct(path, flags, *more, real=os.open, **named):
    if flags & os.O_DIRECT:
        raise OSError(errno.EINVAL, "no O_DIRECT")
    return real(path, flags, *more, **named)


CASES = [(dim, precision, 20_000) for dim, precision in itertools.product((8, 16, 64, 1100), PRECISION_NUMBERS)]
QUICK = [(16, "float32", 400), (8, "int8", 400), (64, "float16", 300), (1100, "int8", 100)]


@pytest.mark.parametrize(("dim", "precision", "num"), some([*QUICK, *CASES], *QUICK, several=True))
def test_a_key_looked_up_alone_costs_one_read_of_one_page(tmp_path, reads, from_memory, dim, precision, num):
    """Keys that are there, that are not, and beyond the last. The first two kinds are looked up in calls whose keys lie
    on different pages, as many calls as keys of one page; `num` / 100 of each kind, and all beyond the last, alone."""
    format, rng = PageFormat(dim, True, precision), np.random.default_rng(num)
    keys, stored, fences = random_table(tmp_path, format, max(num, 10_000))
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert size <= 1.03 * len(keys) * format.row_bytes
    table = open_table(tmp_path, format, fences)

    def check(asked):
        empty_cache(table)
        reads.clear()
        weights, found = look_up(table, asked, dim + 1)
        assert len(reads) == len({*reads}) == len(asked)
        at = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
        assert found.tolist() == (keys[at] == asked).tolist()
        assert weights[found].tobytes() == stored[at[found]].tobytes()

    before = table.cache.counts["pages_read"]
    asked = rng.choice(keys, num, replace=False), absent_keys(keys, rng, num)
    for of_kind in asked:
        pages = pages_of(fences, of_kind)
        order = np.argsort(pages, kind="stable")
        nth_of_page = np.arange(num) - np.searchsorted(pages[order], pages[order])
        for n in range(nth_of_page.max() + 1):
            check(of_kind[order[nth_of_page == n]])
        for key in of_kind[: num // 100]:
            check(key[None])
    reads.clear()
    beyond, weights = rng.integers(int(keys[-1]) + 1, int(RESERVED), num, np.uint64, endpoint=True), stored[:1].copy()
    for n in range(num):
        empty_cache(table)
        assert not table.look_up(beyond[n : n + 1], weights).any()
        assert len(reads) == n + 1
    assert table.cache.counts["pages_read"] - before == 3 * num + 2 * (num // 100)
    table.close()
    shutil.rmtree(tmp_path)


def test_keys_of_one_page_and_keys_asked_for_twice_cost_one_read(tmp_path, reads):
    keys, stored, fences = random_table(tmp_path, SMALL, 2000)
    table = open_table(tmp_path, SMALL, fences)
    weights, found = look_up(table, [*keys[:50], *keys[:50][::-1]], 17)
    assert found.all()
    assert (weights == np.append(stored[:50], stored[:50][::-1], axis=0)).all()
    assert len(reads) == table.cache.counts["pages_read"] == 1
    assert table.cache.counts == {"keys_hit": 0, "keys_missed": 100, "pages_read": 1, "bytes_read": 4096}
    assert look_up(table, keys[:53], 17)[1].all()
    assert (table.cache.counts["keys_hit"], len(reads)) == (53, 1)
    table.close()


# Keys that share a prefix, dense keys, the first and the last possible ones, gaps.
KEY = st.one_of(
    st.integers(0, 2**64 - 2),
    st.integers(0, 3),
    st.integers(2**64 - 4, 2**64 - 2),
    st.tuples(st.integers(0, 50), st.integers(0, 3)).map(lambda key: key[0] << 32 | key[1]),
    st.tuples(st.integers(0, 50), st.integers(0, 3)).map(lambda key: (2**32 - 1 - key[0]) << 32 | key[1]),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rows")


@examples(20, 500)
@given(
    st.sampled_from([PageFormat(250, False), PageFormat(500, True, "float16"), PageFormat(1000, True, "int8")]),
    st.sets(KEY, max_size=80), st.lists(st.integers(0, 2**32), max_size=3),
    st.lists(st.lists(KEY, max_size=30), min_size=1, max_size=4),
)  # fmt: skip
def test_any_keys_are_answered_as_by_a_dictionary(folder, format, keys, cuts, calls):
    """Pages of four rows, parts cut at any prefix, some of them empty; known and unknown keys in one call."""
    keys = np.array(sorted(keys), np.uint64)
    prefixes, counts = np.unique(keys >> np.uint64(32), return_counts=True)
    keys = keys[~np.isin(keys >> np.uint64(32), prefixes[counts > 4])]
    weights = np.random.default_rng(0).standard_normal((len(keys), format.num_weights), np.float32)
    begins = np.searchsorted(keys >> np.uint64(32), np.array(sorted(cuts), np.uint64))
    fences = write_table(folder, format, keys, weights, begins.tolist())
    held = dict(zip(keys.tolist(), as_stored(format, weights), strict=True))
    # The system takes its time to close a context.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_table, "open_context", lambda _: 0)
        table = open_table(folder, format, fences)
    for asked in [*calls, [*held], calls[0]]:
        got, found = look_up(table, asked, format.num_weights)
        assert found.tolist() == [key in held for key in asked]
        assert got[found].tobytes() == b"".join(held[key].tobytes() for key in asked if key in held)
    table.close()


@pytest.mark.parametrize("way", ["direct", "page cache", "one by one"])
def test_many_keys_of_one_call_are_found_however_pages_are_read(tmp_path, monkeypatch, way):
    """More keys than the cache is locked for at once, more pages than scratches and cache hold."""
    if way == "one by one":
        monkeypatch.setattr(page_table, "open_context", lambda _: 0)
    if way == "page cache":
        monkeypatch.setattr(page_table.os, "open", refuse_direct)
    keys, stored, fences = random_table(tmp_path, SMALL, 9000)
    table = open_table(tmp_path, SMALL, fences, 200_000)
    assert table.files.direct == (way != "page cache")
    at = np.random.default_rng(0).integers(0, len(keys), 3 * KEYS_AT_ONCE)
    asked = keys[at]
    asked[::7] += np.uint64(1)
    weights, found = look_up(table, asked, 17)
    assert found.tolist() == [n % 7 != 0 for n in range(len(at))]
    assert (weights[found] == stored[at[found]]).all()
    table.close()


def test_threads_get_the_right_values_through_a_tiny_cache(tmp_path):
    keys, stored, fences = random_table(tmp_path, SMALL, 4000)
    table = open_table(tmp_path, SMALL, fences)

    def ask(seed):
        rng = np.random.default_rng(seed)
        for _ in range(40):
            at = rng.integers(0, len(keys), rng.integers(1, 80))
            asked = keys[at] + (rng.random(len(at)) < 0.2).astype(np.uint64)
            weights, found = look_up(table, asked, 17)
            assert found.tolist() == (asked == keys[at]).tolist()
            assert weights[found].tobytes() == stored[at[found]].tobytes()
            assert table.cache.counts["pages_read"] >= 0
        return 0

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(ask, range(8))) == 0
    assert table.cache.counts["keys_hit"] > 0
    table.close()


def test_no_page_leaves_its_slot_while_rows_are_copied_from_it(tmp_path, monkeypatch):
    keys, _, fences = random_table(tmp_path, SMALL, 2000)
    table, waited = open_table(tmp_path, SMALL, fences), []
    look_up(table, keys[:9], 17)

    def take_while_another_inserts(*args):
        pages = np.arange(16, dtype=np.int32), np.zeros((16, 4096), np.uint8)
        other = threading.Thread(target=table.cache.insert, args=pages)
        other.start()
        other.join(0.05)
        waited.append((other, other.is_alive()))
        take_rows(*args)

    monkeypatch.setattr(page_table, "take_rows", take_while_another_inserts)
    assert look_up(table, keys[:9], 17)[1].all()
    (other, alive), *_ = waited
    assert alive
    other.join()
    table.close()


@pytest.mark.parametrize("format", [SMALL, PageFormat(64, True, "float16"), PageFormat(1100, True)])
@pytest.mark.parametrize("memory_bytes", ["least", 3 << 20, 7_654_321])
def test_cache_and_reads_use_the_memory_and_no_more(tmp_path, format, memory_bytes):
    _, _, fences = random_table(tmp_path, format, 4000, 1)
    # As many pages as the memory never holds: of an empty file.
    fences = np.arange(3000 if format is not SMALL else 12_000, dtype=np.uint32)
    os.truncate(part_file(tmp_path, 0), len(fences) * format.page_bytes)
    if memory_bytes == "least":
        memory_bytes = least_of(tmp_path, format, fences)
    table = open_table(tmp_path, format, [fences], memory_bytes)
    assert memory_bytes - 16 * (format.page_bytes + 5) - 4096 * NUM_SCRATCHES - 1 < table.num_bytes <= memory_bytes
    table.close()


def least_of(folder, format, fences):
    page_bytes = format.page_bytes
    least = NUM_SCRATCHES * page_table.scratch_bytes(1, page_bytes) + page_table.set_bytes(page_bytes)
    with pytest.raises(ValueError, match="too little for a cache of pages") as error:
        open_table(folder, format, [fences], least - 1)
    assert least <= parse_size(re.search(r'raise it to "([^"]+)"', str(error.value))[1]) < 1.1 * least + 1024
    return least


def test_a_cache_is_no_larger_than_its_table(tmp_path, reads):
    keys, _, fences = random_table(tmp_path, SMALL, 5000)
    table = open_table(tmp_path, SMALL, fences, 1 << 30)
    assert table.num_bytes < 6 << 20
    for _ in range(3):
        assert look_up(table, np.random.default_rng(0).permutation(keys), 17)[1].all()
    assert len(reads) == sum(map(len, fences))
    table.close()


def test_a_damaged_page_is_named_and_other_keys_are_still_found(tmp_path):
    keys, stored, fences = random_table(tmp_path, SMALL, 3000)
    flip(part_file(tmp_path, 1), 3 * 4096 + 77)
    flip(part_file(tmp_path, 1), 6 * 4096)
    table = open_table(tmp_path, SMALL, fences, 400_000)
    pages = pages_of(fences, keys) - len(fences[0])
    message = f"{part_file(tmp_path, 1)}: page 3 (at offset 12288) is damaged: its tag is wrong"
    for asked in (keys, keys[pages == 3][:1], keys[pages == 3][-1:] + np.uint64(1)):
        with pytest.raises(Damaged, match=re.escape(message)):
            look_up(table, asked, 17)
    fine = (pages != 3) & (pages != 6)
    weights, found = look_up(table, keys[fine], 17)
    assert found.all()
    assert (weights == stored[fine]).all()
    table.close()


def test_a_page_of_another_table_is_named(tmp_path):
    """Its tag is right: the same place of a table that was exported before."""
    format, keys = PageFormat(250, False), np.arange(1, 13, dtype=np.uint64) << np.uint64(40)
    fences = write_table(tmp_path, format, keys, np.zeros((12, 250), np.float32))
    write_table(tmp_path, format, keys + np.uint64(1 << 39), np.zeros((12, 250), np.float32))
    table = open_table(tmp_path, format, fences)
    with pytest.raises(Damaged, match=r"page 1 .* its first key is not that of its fence"):
        look_up(table, keys[4:], 250)
    table.close()


def test_a_file_cut_short_under_a_table_is_named_with_the_offset(tmp_path):
    keys, stored, fences = random_table(tmp_path, SMALL, 3000)
    table = open_table(tmp_path, SMALL, fences)
    os.truncate(part_file(tmp_path, 2), 5 * 4096 + 1000)
    message = f"{part_file(tmp_path, 2)}: could not read page 5, 4096 bytes at offset 20480 (the file has 21480)"
    with pytest.raises(OSError, match=re.escape(message)) as error:
        look_up(table, keys, 17)
    assert not isinstance(error.value, Damaged)
    there = pages_of(fences, keys) < len(fences[0]) + len(fences[1]) + 5
    assert (look_up(table, keys[there], 17)[0] == stored[there]).all()
    table.close()


def test_a_disk_error_keeps_its_errno_and_names_file_and_offset(tmp_path):
    """A folder can be opened, and not read."""
    keys, _, fences = random_table(tmp_path, SMALL, 3000)
    table = open_table(tmp_path, SMALL, fences)
    folder = os.open(tmp_path, os.O_RDONLY)
    os.dup2(folder, table.files._files[1])
    os.close(folder)
    said = re.escape(f"{part_file(tmp_path, 1)}: could not read page 0, ")
    with pytest.raises(IsADirectoryError, match=said) as error:
        look_up(table, keys, 17)
    assert error.value.errno == errno.EISDIR
    assert look_up(table, keys[pages_of(fences, keys) < len(fences[0])], 17)[1].all()
    table.close()


def resized(more):
    return lambda part, fences: os.truncate(part, part.stat().st_size + more if more else 0)


@pytest.mark.parametrize(
    ("damage", "error", "said"),
    [
        *((resized(more), Damaged, "{folder}: its files have") for more in (0, -1, -4096, 4096)),
        (lambda part, fences: fences.reverse(), Damaged, "{folder}: its fences do not ascend"),
        (lambda part, fences: part.unlink(), FileNotFoundError, "{folder}/0001"),
    ],
)
def test_files_that_do_not_fit_their_fences_are_refused(tmp_path, damage, error, said):
    _, _, fences = random_table(tmp_path, SMALL, 3000)
    damage(part_file(tmp_path, 1), fences)
    with pytest.raises(error, match=re.escape(said.format(folder=tmp_path))):
        open_table(tmp_path, SMALL, fences)
    assert num_open(tmp_path) == 0


def test_weights_of_another_width_are_refused(tmp_path):
    keys, _, fences = random_table(tmp_path, SMALL, 200)
    table = open_table(tmp_path, SMALL, fences)
    for shape in ((200, 16), (199, 17)):
        with pytest.raises(ValueError, match="for 200 keys with 17 weights each"):
            table.look_up(keys, np.empty(shape, np.float32))
    table.close()


def test_closing_waits_for_reads_and_closes_all(tmp_path):
    keys, _, fences = random_table(tmp_path, SMALL, 3000)
    table = open_table(tmp_path, SMALL, fences)
    assert num_open(tmp_path) == 3
    with table._scratch():
        closing = threading.Thread(target=table.close)
        closing.start()
        closing.join(0.05)
        assert closing.is_alive()
        assert num_open(tmp_path) == 3
    closing.join()
    assert num_open(tmp_path) == 0
    for _ in range(2):
        with pytest.raises(ValueError, match="closed"):
            look_up(table, keys, 17)
    table.close()


def test_read_only_keys_and_fences_need_no_other_kernels(tmp_path):
    """Arrays from files and messages are read-only, and a kernel that is compiled for a request takes seconds."""
    keys, stored, fences = random_table(tmp_path, SMALL, 300, 1)
    fences[0].flags.writeable = keys.flags.writeable = False
    table = open_table(tmp_path, SMALL, fences)
    weights = np.empty((300, 17), np.float32)
    assert table.look_up(keys, weights).all()
    assert (weights == stored).all()
    for kernel in (find_pages, find_slots, take_rows, check_pages):
        assert len(kernel.signatures) == 1
    table.close()
