"""Exchange of key requests between all workers, by a collective."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.comm.group import Group
from pipeline.device.tensors import tensor_of
from pipeline.records import I32, U64, Block, KeyRequest, Refusal

REFUSED = -1
U8 = NDArray[np.uint8]


def exchange_keys(block: Block, sent: Sequence[KeyRequest | Refusal], group: Group) -> list[KeyRequest | Refusal]:
    """Send `sent[w]` to each worker w and return what the workers sent to this one, in rank order. `group` must be used
    for nothing else, and only by one thread."""
    messages = [to_message(key_request) for key_request in sent]
    sizes_W = np.array([len(message) for message in messages], np.int64)
    coming_W = np.empty_like(sizes_W)
    ones = [1] * group.world
    group.all_to_all(tensor_of(sizes_W), ones, tensor_of(coming_W), ones, "keys")
    received: U8 = np.empty(int(coming_W.sum()), np.uint8)
    group.all_to_all(
        tensor_of(np.concatenate(messages)), sizes_W.tolist(), tensor_of(received), coming_W.tolist(), "keys"
    )
    return [from_message(message, block) for message in np.split(received, np.cumsum(coming_W)[:-1])]


def to_message(key_request: KeyRequest | Refusal) -> U8:
    """Pack a request as bytes: the number of keys; for each batch the number of its positions and of its example
    counts; then the arrays. A refusal is packed as `REFUSED` and its fields as JSON."""
    if isinstance(key_request, Refusal):
        fields = json.dumps([key_request.what, key_request.message, key_request.needed, key_request.cap])
        text = np.frombuffer(fields.encode(), np.uint8)
        return np.concatenate([np.array([REFUSED], np.int64).view(np.uint8), text])
    lengths = [
        [len(positions), len(examples_with_key)]
        for positions, examples_with_key in zip(key_request.positions, key_request.examples_with_key, strict=True)
    ]
    header = np.array([len(key_request.keys_U), *(number for pair in lengths for number in pair)], np.int64)
    batches = [
        part
        for batch in zip(key_request.positions, key_request.occurrences, key_request.examples_with_key, strict=True)
        for part in batch
    ]
    parts = [header, key_request.keys_U, *batches]
    return np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts])


def from_message(message: U8, block: Block) -> KeyRequest | Refusal:
    """Unpack a message for this block. The arrays of the result are copies."""
    content = message.tobytes()
    num_keys = int(np.frombuffer(content, np.int64, 1)[0])
    if num_keys == REFUSED:
        return Refusal(block, *json.loads(content[8:]))
    lengths = np.frombuffer(content, np.int64, 2 * block.num_batches, 8).reshape(-1, 2).tolist()
    at = 8 + 16 * block.num_batches
    keys_U: U64 = np.frombuffer(content, np.uint64, num_keys, at)
    at += keys_U.nbytes
    batches: list[tuple[I32, I32, I32]] = []
    for num_positions, num_counted in lengths:
        positions, occurrences, examples_with_key = (
            np.frombuffer(content, np.int32, count, at + 4 * before)
            for count, before in (
                (num_positions, 0), (num_positions, num_positions), (num_counted, 2 * num_positions),
            )
        )  # fmt: skip
        at += 4 * (2 * num_positions + num_counted)
        batches.append((positions, occurrences, examples_with_key))
    return KeyRequest(keys_U, *(tuple(batch[part] for batch in batches) for part in range(3)))
