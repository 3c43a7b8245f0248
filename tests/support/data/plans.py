"""Plans for tests of the stages that move rows."""

import numpy as np

from pipeline.records import Block, Moves, Plan
from pipeline.storage.tier import Slab

WORDS = 8


def made_rows(keys, fill):
    """Rows with these keys, each followed by words of value `fill` + row number."""
    rows = np.empty((len(keys), WORDS), np.uint32)
    rows[:, :2] = np.array(keys, np.uint64).reshape(-1, 1).view(np.uint32)
    rows[:, 2:] = fill + np.arange(len(keys), dtype=np.uint32)[:, None]
    return rows


def made_slab(rows, name="device"):
    slab = Slab(len(rows), WORDS, name=name)
    slab.words_SW[...] = rows
    return slab


def made_plan(**fields):
    """Plan that moves nothing except for `fields`, which are given as lists."""
    block = Block(
        number=4, split="train", epoch=0, first_batch=0, num_batches=1, first_example=0, num_examples=1, batch_size=1,
        first_step=0, closes_split=False,
    )  # fmt: skip
    types = {
        "rows_U": np.int32, "arrival_keys_A": np.uint64, "arrival_host_slots": np.int32, "arrival_disk_at": np.int64,
        "arrival_slots": np.int32, "victim_slots_E": np.int32, "host_into": np.int32, "host_victim_slots": np.int32,
    }  # fmt: skip
    arrays = {name: np.array(fields.pop(name, []), dtype) for name, dtype in types.items()}
    return Plan(**({"block": block, "num_new": 0, "disk_writes": (), "moves": Moves()} | fields | arrays))
