"""Keys: kernels against their plain twins, and what the rest of the project relies on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.kernels import hashing
from pipeline.kernels.hashing import add_row_hashes, row_hash_reference

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
SALT = hashing.table_salt("t")


def integer_keys(values, salt=SALT):
    values = np.asarray(values)
    out, expected = np.empty(len(values), np.uint64), np.empty(len(values), np.uint64)
    hashing.hash_integers(values, salt, out)
    hashing.hash_integers_reference(values, salt, expected)
    np.testing.assert_array_equal(out, expected)
    return out


def text_keys(texts, offsets_dtype=np.int32, salt=SALT):
    data = np.frombuffer(b"".join(texts), np.uint8)
    offsets = np.cumsum([0, *map(len, texts)]).astype(offsets_dtype)
    out, expected = np.empty(len(texts), np.uint64), np.empty(len(texts), np.uint64)
    hashing.hash_strings(data, offsets, salt, out)
    hashing.hash_strings_reference(data, offsets, salt, expected)
    np.testing.assert_array_equal(out, expected)
    return out


@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_integer_kernel_matches_its_reference(dtype):
    info = np.iinfo(dtype)
    integer_keys(np.array([info.min, info.max, 0, 1, 77], dtype))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
def test_a_narrow_integer_has_the_key_of_its_64_bit_value(dtype):
    values = np.array([-128, -1, 0, 5, 127])
    np.testing.assert_array_equal(integer_keys(values.astype(dtype)), integer_keys(values))


def test_an_unsigned_value_has_the_key_of_its_64_bit_value():
    assert integer_keys(np.array([2**32 - 1], np.uint32))[0] == integer_keys(np.array([2**32 - 1]))[0]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=20), st.sampled_from([np.int32, np.int64]))
def test_the_text_kernel_matches_its_reference(texts, offsets_dtype):
    keys = text_keys(texts, offsets_dtype)
    assert len(set(keys.tolist())) == len(set(texts))


def test_keys_never_change_between_versions():
    assert integer_keys([0, 1, -1], np.uint64(0)).tolist() == [0, 0x5692161D100B05E5, 0xB4D055FCF2CBBD7B]
    assert text_keys([b"", b"a", b"12345678", b"123456789"], salt=np.uint64(0)).tolist() == [
        0,
        0x071717D2D36B6B11,
        0x758F67D162B2D202,
        0x4977490251674330,
    ]


def undo_mix(x):
    """The integer whose mix, without a salt, is x."""
    mask = (1 << 64) - 1
    x ^= (x >> 31) ^ (x >> 62)
    x = x * pow(0x94D049BB133111EB, -1, 1 << 64) & mask
    x ^= (x >> 27) ^ (x >> 54)
    x = x * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & mask
    return x ^ (x >> 30) ^ (x >> 60)


def test_the_reserved_key_is_replaced():
    culprit = np.array([undo_mix(2**64 - 1)], np.uint64)
    assert integer_keys(culprit, np.uint64(0))[0] == hashing.INSTEAD_OF_RESERVED


def test_no_two_integers_of_a_table_share_a_key():
    values = np.concatenate([np.arange(-50_000, 50_000), np.arange(50_000) << 40])
    keys = np.empty(len(values), np.uint64)
    hashing.hash_integers(values, SALT, keys)
    assert len(np.unique(keys)) == len(np.unique(values))


def test_key_bits_are_spread_evenly():
    keys = integer_keys(np.arange(4096))
    ones = np.unpackbits(keys.view(np.uint8)).reshape(4096, 64).mean(axis=0)
    assert (abs(ones - 0.5) < 0.05).all()


def test_each_table_has_its_own_salt_and_missing_key():
    names = [f"c{i}" for i in range(100)]
    salts = {int(hashing.table_salt(n)) for n in names}
    missing = {int(hashing.missing_key(n)) for n in names}
    assert len(salts | missing) == 200
    assert type(hashing.table_salt("a")) is type(hashing.missing_key("a")) is np.uint64


MASK = (1 << 128) - 1


def hash_of(rows, num_words=None, total=0):
    rows = np.asarray(rows, np.uint32)
    total = np.array([total >> 64, total & (2**64 - 1)], np.uint64)
    add_row_hashes(rows, rows.shape[1] if num_words is None else num_words, total)
    return int(total[0]) << 64 | int(total[1])


TABLES = st.integers(1, 6).flatmap(
    lambda width: st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=width, max_size=width), min_size=1, max_size=8)
)


@settings(deadline=None, max_examples=60)
@given(TABLES, st.data())
def test_the_hash_is_the_sum_of_the_references(rows, data):
    num_words = data.draw(st.integers(0, len(rows[0])))
    total = data.draw(st.integers(0, MASK))
    expected = total + sum(row_hash_reference(row[:num_words]) for row in rows)
    assert hash_of(rows, num_words, total) == expected & MASK


def test_a_change_of_any_one_bit_changes_the_hash():
    rows = np.random.default_rng(0).integers(0, 2**32, (3, 9), np.uint32)
    seen = {hash_of(rows)}
    for u in range(3):
        for w in range(9):
            for bit in range(32):
                changed = rows.copy()
                changed[u, w] ^= np.uint32(1 << bit)
                seen.add(hash_of(changed))
    assert len(seen) == 1 + 3 * 9 * 32


def test_swapped_words_change_the_hash():
    row = list(range(1, 10))
    swapped = {tuple(row)}
    for a in range(9):
        for b in range(a):
            other = row.copy()
            other[a], other[b] = other[b], other[a]
            swapped.add(tuple(other))
    assert len({hash_of([other]) for other in swapped}) == 1 + 36
    # Words that change places between two rows, too.
    assert hash_of([[1, 2], [3, 4]]) != hash_of([[3, 2], [1, 4]])


def test_zeros_change_the_hash():
    assert hash_of([[0, 0]]) != 0
    assert hash_of([[0, 0]]) != hash_of([[0]])
    assert hash_of([[0], [0]]) != hash_of([[0]])


def test_the_low_half_carries_into_the_high_half():
    row = [1, 2, 3]
    low = row_hash_reference(row) & (2**64 - 1)
    assert low > 1
    for total in (2**64 - low, 2**64 - low - 1, 2**64 - 1, MASK):
        assert hash_of([row], total=total) == (total + row_hash_reference(row)) & MASK
