"""Caps that would suffice after one was too small for a block: as arguments of --set and in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import cast

from pipeline.messages.sizes import format_size_down, format_size_up, parse_size
from pipeline.preflight.explain import estimated_keys
from pipeline.preflight.guesses import growth_between
from pipeline.preflight.setup import Setup
from pipeline.preflight.sizes import SLACK, DoesNotFit, Sizes
from pipeline.records import Refusal
from pipeline.storage.chunks import MIN_GROWTH, max_chunks
from pipeline.storage.key_map import most_bytes_for
from pipeline.storage.places import max_rows

CAPS = {
    "staging_rows": "host", "outgoing_rows": "device", "device_rows": "device", "read_ring_bytes": "read",
    "disk_chunks": "disk", "map_bytes": "map",
}  # fmt: skip
"""Field of `storage` that determines each field of `Sizes`."""
UNLIMITED = {"device": 1 << 54, "host": 1 << 54, "read": 1 << 50, "map": 1 << 54, "disk": 1 << 60}


def larger_caps(
    refusal: Refusal, setup: Setup, look_ahead: int, keys: int, examples: int, num_shards: int
) -> tuple[str, str]:
    """Find caps with which a run can continue from the block that it refused, with room for the keys still to come.
    Returns a message about the block, and the arguments with which the same command resumes, such as --set
    'storage.disk=96 MiB'; an empty string if there are none.

    `keys`: current number of keys of all workers; `examples`: number of examples trained on, over all epochs.
    """
    if not (name := CAPS.get(refusal.cap)):
        return refusal.message, ""
    holds = partial(_holds, refusal, look_ahead)
    num_keys = keys_at_end(setup, keys, examples)
    enough = _enough(setup, name, lambda sizes: holds(sizes) and _has_room(name, setup, sizes, num_shards, num_keys))
    flags = " ".join(f"--set 'storage.{each}={size}'" for each, size in enough.items())
    text = f"{refusal.message}; storage.{name} is {format_size_down(getattr(setup.storage, name))}"
    if refusal.what == "window":
        return text, flags
    if now := _enough(setup, name, holds).get(name):
        text += f", needed now {now}"
    if (rest := enough.get(name, now)) != now:
        guess = ", if keys come as they did so far" if num_keys > keys else ""
        text += f", for the rest of the training about {rest}{guess}"
    return text, flags


def raise_to(refusal: Refusal, setup: Setup, look_ahead: int) -> str:
    """End of a message about a block that may be trained at a smaller pace: the caps that would have allowed the
    original pace. Empty if there are none."""
    name = CAPS.get(refusal.cap)
    caps = _enough(setup, name, partial(_holds, refusal, look_ahead)) if name else {}
    sizes = " and ".join(f'storage.{each} to "{size}"' for each, size in caps.items())
    return f"; raise {sizes}" if caps else ""


def keys_at_end(setup: Setup, keys: int, examples: int) -> int:
    """Guess of the number of keys at the end of training. Within the first epoch, it grows with a power of the number
    of examples, halfway between the power observed since the first window and proportional growth: too high a guess
    costs disk space, too low a guess another stop. `keys`, `examples`: see `larger_caps`."""
    total = setup.agenda.num_examples["train"]
    if examples >= total:
        return keys
    if not examples or not keys:
        return estimated_keys(setup)
    unions, schedule = setup.fit.window.union_of_first, setup.workflow.schedule
    first, then = setup.world * unions[-1], len(unions) * setup.fit.block_batches * schedule.batch_size
    power = growth_between(then, first, examples, keys, unknown=1.0)
    return math.ceil(keys * (total / examples) ** ((1 + power) / 2))


def _holds(refusal: Refusal, look_ahead: int, sizes: Sizes) -> bool:
    """True if the block fits these sizes; for a "window" refusal, with SLACK."""
    has = int(getattr(sizes, refusal.cap))
    if look_ahead == 0 and refusal.cap in ("outgoing_rows", "device_rows"):
        # When the slab is full, all rows of a block may have to arrive, and as many may have to leave.
        has = min(sizes.outgoing_rows, sizes.device_rows)
    if refusal.what != "window":
        return has >= refusal.needed
    if refusal.cap == "read_ring_bytes":
        has = sizes.read_buffer_bytes(2 * look_ahead + 1)
    elif refusal.cap != "device_rows":
        has //= look_ahead + 1
    return has >= SLACK * refusal.needed


def _has_room(name: str, setup: Setup, sizes: Sizes, num_shards: int, num_keys: int) -> bool:
    """True if map and disk have room for `num_keys` keys. If `name` is not "disk", it is enough that the disk has as
    much room as before."""
    workflow, owned = setup.workflow, -(-num_shards // setup.world)
    keys = -(-num_keys * owned // num_shards)
    if name == "map" and sizes.map_bytes < most_bytes_for(keys):
        return False
    # The newest commit and the best one, plus what is written before `plan` asks for a commit, and by that commit.
    kept = 2 if workflow.commit.keep_best and workflow.schedule.epochs > 1 else 1
    log = kept * (owned + math.ceil(workflow.storage.log_multiple * keys / sizes.chunk_rows))
    written = max(max_chunks(sizes.outgoing_rows, sizes.chunk_rows, owned), MIN_GROWTH * owned)
    needed = log + 2 * written
    return _spare_chunks(sizes, owned) >= (
        needed if name == "disk" else min(needed, _spare_chunks(setup.fit.sizes, owned))
    )


def _spare_chunks(sizes: Sizes, num_owned: int) -> int:
    """Number of disk chunks that remain free after a commit of all rows of device and host."""
    rows = max_rows(sizes.device_rows + sizes.host_rows, sizes.map_bytes)
    return sizes.disk_chunks - max_chunks(rows, sizes.chunk_rows, num_owned)


def _enough(setup: Setup, name: str, suits: Callable[[Sizes], bool]) -> dict[str, str]:
    """Find caps for which `suits` is true. Returns the sizes to set, by field of `storage`, `name` first, without
    fields that need no change. Empty if no caps suit."""

    def suit(caps: Mapping[str, int]) -> bool:
        with suppress(DoesNotFit):
            return suits(setup.fit.again(setup.storage.model_copy(update=caps)))
        return False

    # A larger tier needs more disk space; on a GPU, a larger ring needs more of both tiers.
    tries = ([name], [name, "disk"], [name, "device", "host", "disk"])
    caps = next(filter(suit, ({field: UNLIMITED[field] for field in fields} for fields in tries)), {})
    found: dict[str, str] = {}
    for field in list(caps):
        low, high = getattr(setup.storage, field), UNLIMITED[field]
        if suit(caps | {field: low}):
            caps[field] = low
            continue
        while high - low > low >> 7:
            middle = (low + high) // 2
            low, high = (low, middle) if suit(caps | {field: _rounded(middle)}) else (middle, high)
        caps[field], found[field] = _rounded(high), format_size_up(high)
    return found


def _rounded(num_bytes: int) -> int:
    return cast("int", parse_size(format_size_up(num_bytes)))
