"""Keys: 64-bit hashes of (table, value). The same value of the same table has the same key in every column.

The key of an integer is a bijection of the value within its table, so two integers of a table never share a key
(except the one value that would have the reserved key). Texts are hashed with 64-bit MurmurHash2. 2**64 - 1 is reserved
(it means "no key" in maps and on disk) and is never returned.

`mix` is SplitMix64's output function (Steele, Lea and Flood, OOPSLA 2014), a bijection on 64 bits with good avalanche.
The hash of rows is the sum, modulo 2^128, of the 128-bit hashes of all rows; it does not depend on their order.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pipeline.kernels import cpu, need_cpu
from pipeline.records import I32, I64, RESERVED, U32, U64, Array


def mix_reference(x: int) -> int:
    mask = (1 << 64) - 1
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & mask
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & mask
    return x ^ (x >> 31)


@cpu
def mix(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


WORD_BYTES = 8


@intrinsic
def load_word(typingctx: Any, address: Any) -> Any:
    """Load the uint64 at any address, little-endian. Byte by byte takes four times as long: 73 ms instead of 20 to hash
    6.5 M texts of eight bytes, 92 ms instead of 19 to compare them."""
    return types.uint64(types.intp), _loading(ir.IntType(64))


@intrinsic
def _load_byte(typingctx: Any, address: Any) -> Any:
    return types.uint8(types.intp), _loading(ir.IntType(8))


def _loading(kind: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], kind.as_pointer()), align=1)

    return codegen


@cpu
def load_bytes(address: int, count: int, past: int) -> np.uint64:
    """Load fewer than eight bytes, little-endian. `past`: address just after the last byte of the array.

    The array is not an argument because Numba would count references to it, which takes twice as long as the rest.
    """
    if address + WORD_BYTES <= past:
        return load_word(address) & ((np.uint64(1) << np.uint64(8 * count)) - np.uint64(1))
    word = np.uint64(0)
    for i in range(count):
        word |= np.uint64(_load_byte(address + i)) << np.uint64(8 * i)
    return word


INSTEAD_OF_RESERVED = np.uint64(0x5BD1E995C6A4A793)
MASK = (1 << 64) - 1

# The multiplier of MurmurHash64A: a published constant, tested for avalanche.
MURMUR = np.uint64(0xC6A4A7935BD1E995)
S47 = np.uint64(47)

# Namespaces that keep a table's salt, its shared key and a field's missing key unrelated.
SALT_NAMESPACE = 0x7461626C65
MISSING_NAMESPACE = 0x6D697373696E67
SHARED_NAMESPACE = 0x736861726564


def table_salt(table: str) -> np.uint64:
    """Salt for hashing a table's values; depends only on the table's name."""
    return np.uint64(hash_bytes_reference(table.encode(), SALT_NAMESPACE))


def missing_key(field: str) -> np.uint64:
    """Key of "no value" in this field. Each field has its own, even within the same table."""
    return np.uint64(hash_bytes_reference(field.encode(), MISSING_NAMESPACE))


def shared_key(table: str) -> np.uint64:
    """Key shared by all values of a table that have no individual row."""
    return np.uint64(hash_bytes_reference(table.encode(), SHARED_NAMESPACE))


@cpu
def _key(h: np.uint64) -> np.uint64:
    return INSTEAD_OF_RESERVED if h == RESERVED else h


@cpu
def hash_integers(values: Array, salt: np.uint64, out: U64) -> None:
    """Hash integers of any width to keys. The key of a value does not depend on the width."""
    need_cpu(len(out), len(values))
    for i in range(len(values)):
        out[i] = _key(mix(np.uint64(values[i]) ^ salt))


@cpu
def _hash_words(begin: int, end: int, past: int, salt: np.uint64) -> np.uint64:
    """Hash of a range of addresses. `past`: address just after the array's last byte."""
    h = salt ^ (np.uint64(end - begin) * MURMUR)
    while end - begin >= WORD_BYTES:
        k = load_word(begin) * MURMUR
        h = (h ^ ((k ^ (k >> S47)) * MURMUR)) * MURMUR
        begin += WORD_BYTES
    if begin < end:
        h = (h ^ load_bytes(begin, end - begin, past)) * MURMUR
    h = (h ^ (h >> S47)) * MURMUR
    return h ^ (h >> S47)


@cpu
def hash_strings(data: Array, offsets: I32 | I64, salt: np.uint64, out: U64) -> None:
    """Hash texts to keys: text i is data[offsets[i] : offsets[i + 1]] (uint8)."""
    need_cpu(max(1, len(offsets)), len(out) + 1)
    if out.size:
        need_cpu(data.size, offsets[out.size])
    address = data.ctypes.data
    past = address + data.size
    for i in range(len(out)):
        out[i] = _key(_hash_words(address + np.int64(offsets[i]), address + np.int64(offsets[i + 1]), past, salt))


def hash_integer_reference(value: int, salt: int) -> int:
    """`hash_integers` for one value, with Python integers."""
    x = mix_reference((int(value) ^ int(salt)) & MASK)
    return int(INSTEAD_OF_RESERVED) if x == MASK else x


def hash_bytes_reference(text: bytes, salt: int) -> int:
    """`hash_strings` for one text, with Python integers."""
    m = int(MURMUR)
    h = (int(salt) ^ (len(text) * m)) & MASK
    whole = len(text) // 8 * 8
    for at in range(0, whole, 8):
        k = (int.from_bytes(text[at : at + 8], "little") * m) & MASK
        h = ((h ^ (((k ^ (k >> 47)) * m) & MASK)) * m) & MASK
    if text[whole:]:
        h = ((h ^ int.from_bytes(text[whole:], "little")) * m) & MASK
    h = ((h ^ (h >> 47)) * m) & MASK
    h ^= h >> 47
    return int(INSTEAD_OF_RESERVED) if h == MASK else h


def hash_integers_reference(values: Array, salt: np.uint64, out: U64) -> None:
    """`hash_integers`, one value at a time."""
    out[:] = [hash_integer_reference(v, int(salt)) for v in values.tolist()]


def hash_strings_reference(data: Array, offsets: I32 | I64, salt: np.uint64, out: U64) -> None:
    """`hash_strings`, one text at a time."""
    ends = offsets.tolist()
    texts = [data[b:e].tobytes() for b, e in pairwise(ends)]
    out[:] = [hash_bytes_reference(text, int(salt)) for text in texts]


SEEDS = (0x243F6A8885A308D3, 0x13198A2E03707344)
PRIME = 0x100000001B3


def row_hash_reference(words: list[int]) -> int:
    """128-bit hash of a row's words: two chains of SplitMix64's output function with different starts."""
    mask = (1 << 64) - 1
    high, low = SEEDS
    for word in words:
        high = mix_reference((high * PRIME + word) & mask)
        low = mix_reference((low + word * PRIME) & mask)
    return high << 64 | low


@cpu
def add_row_hashes(rows_UW: U32, num_words: int, total: U64) -> None:
    """Add the hashes of the rows' first `num_words` words to `total` [2], high and low."""
    need_cpu(rows_UW.shape[1], num_words)
    prime = np.uint64(PRIME)
    for u in range(rows_UW.shape[0]):
        high = np.uint64(SEEDS[0])
        low = np.uint64(SEEDS[1])
        for w in range(num_words):
            word = np.uint64(rows_UW[u, w])
            high = mix(high * prime + word)
            low = mix(low + word * prime)
        total[1] += low
        total[0] += high + (np.uint64(1) if total[1] < low else np.uint64(0))
