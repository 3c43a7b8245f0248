"""The other workers as seen by one worker: key requests, and agreement on which blocks to train."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.comm.group import Group
from pipeline.device.device import tensor_of
from pipeline.kernels.key_table import ENTRIES_PER_KEY_OF_A_BLOCK, KeyTable
from pipeline.records import I32, U64, Block, Examples, KeyRequest, OwnedKeys, Rank, Refusal, Staged, Unique
from pipeline.stages.dedup import KeyOwners
from pipeline.stages.dedup_on_gpu import Pending
from pipeline.stages.unite import STOPPED_ELSEWHERE, key_requests, unite
from pipeline.worker.flight import Flight, expect
from pipeline.worker.tiers import Membership

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


@dataclass(slots=True)
class FirstRefused:
    """Numbers of the first refused blocks of a stretch; one past its last block if none was refused."""

    here: int
    """First block that this worker refused."""
    anywhere: int
    """First block that any worker is known to have refused, as agreed in `train`. No worker trains on it or on later
    blocks."""


class Peers:
    """The peers of a single worker: none, so nothing is sent and no agreement is needed."""

    idle = frozenset({"unite"})
    """Stages with nothing to do."""
    rank = Rank()
    keeps_reads = True
    """True if blocks that were read before a refusal are still in their buffers."""

    def pack(self, flight: Flight) -> None:
        """Create the key requests to all owners from the result of `dedup`."""

    def take(self, flight: Flight) -> Unique | OwnedKeys | Refusal:
        """Return the working set of the block, for `plan`. May wait for a GPU."""
        if isinstance(flight.unique, Pending):
            flight.unique = flight.unique.get()
        assert flight.unique, "expected what dedup returns, got None"
        return flight.unique

    def unite(self, flight: Flight, refused: bool) -> None:
        """Send the key requests, and unite those of all workers. If this worker has `refused` the block, only take part
        in the exchange."""
        raise AssertionError("one worker has nobody to unite with")

    def agree(self, block: Block, flight: Flight | None, refused: FirstRefused) -> Sequence[float] | None:
        """Return the total example weight of each whole batch (see `Examples.batch_weights`) if all workers have
        planned the block. Otherwise return None: no worker trains on it or on later blocks, and workers that have
        planned these only move their rows."""
        return ()

    def must_run(self, refused: FirstRefused, stage: str, number: int) -> bool:
        """True if this stage must run for a block that this worker refused, since other workers are waiting in a
        collective."""
        return False

    def after_train(self, staged: Staged) -> None:
        """Called after the steps of the block were submitted to the device."""


class OtherWorkers(Peers):
    """The other workers of a run with several workers."""

    idle = frozenset()
    # If another worker refused first, later blocks may have overwritten the buffers of earlier ones on this worker.
    keeps_reads = False

    def __init__(
        self, membership: Membership, owners: KeyOwners, num_fields: int, counts_examples: bool, num_tasks: int = 0
    ) -> None:
        """`num_tasks`: number of labels of a workflow with `data.tasks`, which weighs each label separately; else 0."""
        self._membership, self._owners = membership, owners
        self._num_fields, self._counts_examples = num_fields, counts_examples
        self._num_tasks = num_tasks
        self.rank = membership.rank
        self._union = KeyTable(ENTRIES_PER_KEY_OF_A_BLOCK)

    def pack(self, flight: Flight) -> None:
        if isinstance(flight.unique, Refusal):
            flight.key_requests = [flight.unique] * self._owners.world
        else:
            unique = expect(Unique, flight.unique)
            flight.key_requests = key_requests(unique, self._owners, self._num_fields, self._counts_examples)

    def take(self, flight: Flight) -> Unique | OwnedKeys | Refusal:
        assert flight.owned_keys, "expected what unite returns, got None"
        return flight.owned_keys

    def unite(self, flight: Flight, refused: bool) -> None:
        stopped = Refusal(flight.block, "pause", STOPPED_ELSEWHERE)
        sent = flight.key_requests or [stopped] * self.rank.world
        received = exchange_keys(flight.block, sent, self._membership.key_group)
        flight.key_requests = None
        if not refused:
            flight.owned_keys = unite(flight.block, received, self._union)

    def agree(self, block: Block, flight: Flight | None, refused: FirstRefused) -> Sequence[float] | None:
        refuses = block.number >= refused.here
        weights_K = [0.0] * block.num_batches * max(1, self._num_tasks)
        if not refuses:
            assert flight
            weights_K = expect(Examples, flight.examples).batch_weights(by_label=self._num_tasks > 0)
        refusals, *weights_K = self._membership.group.sums([float(refuses), *weights_K])
        return None if refusals else weights_K

    def must_run(self, refused: FirstRefused, stage: str, number: int) -> bool:
        return stage == "unite" or (stage == "train" and number <= refused.anywhere)

    def after_train(self, staged: Staged) -> None:
        # `upload` copies from the read buffer, which another block may reuse after `train` returns.
        staged.ready.wait()
