"""Parcels of keys by one collective: past a few workers, a future for each pair of them is too many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.comm.group import Group
from pipeline.device.tensors import tensor_of
from pipeline.records import I32, U64, Block, Parcel, Refusal

REFUSED = -1
U8 = NDArray[np.uint8]


def exchange(block: Block, sent: Sequence[Parcel | Refusal], group: Group) -> list[Parcel | Refusal]:
    """Return what all workers, in the order of ranks, sent of a block, for what one sends to each. `group` is for
    this alone, and used by one thread."""
    letters = [pack(parcel) for parcel in sent]
    sizes_W = np.array([len(letter) for letter in letters], np.int64)
    coming_W = np.empty_like(sizes_W)
    ones = [1] * group.world
    group.all_to_all(tensor_of(sizes_W), ones, tensor_of(coming_W), ones, "keys")
    received: U8 = np.empty(int(coming_W.sum()), np.uint8)
    group.all_to_all(
        tensor_of(np.concatenate(letters)), sizes_W.tolist(), tensor_of(received), coming_W.tolist(), "keys"
    )
    return [unpack(letter, block) for letter in np.split(received, np.cumsum(coming_W)[:-1])]


def pack(parcel: Parcel | Refusal) -> U8:
    """As bytes: how many keys, how many of each batch and of how many of those the examples are counted, then all."""
    if isinstance(parcel, Refusal):
        text = np.frombuffer(parcel.message.encode(), np.uint8)
        return np.concatenate([np.array([REFUSED], np.int64).view(np.uint8), text])
    lengths = [
        [len(positions), len(holders)] for positions, holders in zip(parcel.positions, parcel.holders, strict=True)
    ]
    header = np.array([len(parcel.keys_U), *(number for pair in lengths for number in pair)], np.int64)
    batches = [
        part for batch in zip(parcel.positions, parcel.occurrences, parcel.holders, strict=True) for part in batch
    ]
    parts = [header, parcel.keys_U, *batches]
    return np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts])


def unpack(letter: U8, block: Block) -> Parcel | Refusal:
    """Return what was packed for this block; copies."""
    content = letter.tobytes()
    num_keys = int(np.frombuffer(content, np.int64, 1)[0])
    if num_keys == REFUSED:
        return Refusal(block, "window", content[8:].decode())
    lengths = np.frombuffer(content, np.int64, 2 * block.num_batches, 8).reshape(-1, 2).tolist()
    at = 8 + 16 * block.num_batches
    keys_U: U64 = np.frombuffer(content, np.uint64, num_keys, at)
    at += keys_U.nbytes
    batches: list[tuple[I32, I32, I32]] = []
    for num_positions, num_holders in lengths:
        positions, occurrences, holders = (
            np.frombuffer(content, np.int32, count, at + 4 * before)
            for count, before in (
                (num_positions, 0), (num_positions, num_positions), (num_holders, 2 * num_positions),
            )
        )  # fmt: skip
        at += 4 * (2 * num_positions + num_holders)
        batches.append((positions, occurrences, holders))
    return Parcel(keys_U, *(tuple(batch[part] for batch in batches) for part in range(3)))
