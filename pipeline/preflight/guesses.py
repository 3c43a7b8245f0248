"""Guesses made before a run: its final number of keys, and buffers that no cap covers."""

from __future__ import annotations

import math

from pipeline.data.agenda import Agenda
from pipeline.metrics.evaluation import evaluation_bytes
from pipeline.optim.rates import BYTES_PER_STEP
from pipeline.preflight.sizes import FirstWindow, Line
from pipeline.storage.layout import RowLayout
from pipeline.storage.reads import BUFFERS_BYTES
from pipeline.workflow import Workflow

HEAPS_GROWTH = 0.7
"""Exponent of the growth of the number of keys with the number of examples, if only one block was read: approximately
that of the Criteo and Avazu logs."""
PLANNED_BYTES, DEDUP_BYTES = 20, 120
"""Bytes of index arrays per unique key of a block in flight, and of `dedup`'s tables per unique key of a block."""


def guessed_keys(window: FirstWindow, block_examples: int, examples: int) -> int:
    """Guess of a worker's number of keys after `examples`: a power of the number of examples, fitted to the first
    window (Heaps' law), with an exponent of at most 1. `block_examples`: examples per block of `window`."""
    unions, block = window.union_of_first, min(examples, block_examples)
    seen = min(examples, block * len(unions))
    if not seen or not unions[-1]:
        return 0
    return int(unions[-1] * (examples / seen) ** growth_between(block, unions[0], seen, unions[-1]))


def growth_between(before: float, keys_before: float, now: float, keys: float) -> float:
    """Exponent, 0 to 1, of the growth of the number of keys from `keys_before` after `before` examples to `keys` after
    `now` examples (Heaps' law); HEAPS_GROWTH if these numbers do not determine it."""
    if not 0 < before < now or not 0 < keys_before <= keys:
        return HEAPS_GROWTH
    return min(1.0, math.log(keys / keys_before) / math.log(now / before))


def most_evaluated(workflow: Workflow, agenda: Agenda) -> int:
    """Maximum number of examples that are evaluated together."""
    legs = [leg for leg in agenda.legs if workflow.metrics.progressive or leg.split != "train"]
    return max([agenda.num_examples.get("test", 0), *map(agenda.size, legs)])


def other_buffers(workflow: Workflow, agenda: Agenda, row: RowLayout, keys_of_block: int) -> list[Line]:
    """Buffers that no cap covers. Their sizes depend on the batch or the evaluated splits, not on the table.
    `keys_of_block`: number of unique keys of the first window's largest block."""
    # The lengths of lists are unknown until they are read.
    values = sum(len(sequence.items) * -(-sequence.max_length // 2) for sequence in workflow.data.sequences)
    batch = workflow.schedule.batch_size * ((len(workflow.data.categories) + values) * row.num_weights)
    half = ", lists of half of max_length," if values else ""
    scores = evaluation_bytes(workflow, most_evaluated(workflow, agenda))
    lines = [
        ("batch", 8 * batch, f"embeddings of a batch{half} and their gradients, without the model's own activations"),
        ("log readers", BUFFERS_BYTES, "buffers of the reads in flight"),
        ("scores", scores, "for the metrics of the largest split" + " with its groups" * bool(workflow.metrics.group)),
    ]
    if workflow.optimizer.rows.semantics == "dense":
        schedule = workflow.schedule
        steps = schedule.epochs * -(-agenda.num_examples["train"] // schedule.batch_size)
        lines += [
            ("rates", BYTES_PER_STEP * steps, f"learning rate and L2 of each of {steps:,} steps"),
            ("rows that are scored", keys_of_block * row.num_bytes * 3 // 2, "caught-up copies of the rows of a block"),
        ]
    return lines
