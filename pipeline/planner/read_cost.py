"""Cost of reading an example, measured on the first windows of the training data."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from pipeline.data.agenda import Agenda, Position
from pipeline.data.buffer import ReadBuffer
from pipeline.data.source import Source
from pipeline.planner.timing import Cost

WINDOWS, EXAMPLES = 3, 4096
"""Number of windows that are loaded, and of examples whose values are counted."""


def values_of_example(source: Source) -> tuple[float, float]:
    """Return the number of categorical values of an average example, of the first few, and its bytes in the ring."""
    agenda = Agenda(source.num_examples, EXAMPLES, 1)
    block = next(agenda.blocks(1))
    num_bytes = source.block_bytes(block.num_examples)
    examples = source.read(block, ReadBuffer(2 * num_bytes + (1 << 16)))
    return len(examples.keys_V) / block.num_examples, num_bytes / block.num_examples


def read_cost(source: Source, agenda: Agenda) -> Cost:
    """Cost of reading an example, its share of the windows and row groups included."""
    # Of another epoch, of which no window is in memory.
    first = replace(next(agenda.blocks(1)), epoch=1)
    window, batch = source.loads(first)[0], first.num_examples
    buffer = ReadBuffer(2 * source.block_bytes(batch) + (1 << 16))
    starts = [number * window // batch for number in range(WINDOWS)]
    lines, seconds, cpu = [], [], []
    for begin in (at + n for at in starts for n in (0, 1)):
        block = agenda.block_at(Position(0, "train", begin), 1) if begin < agenda.steps_of_epoch else None
        if block is None or block.split != "train" or block.num_examples > batch:
            continue
        block = replace(block, epoch=1)
        loads, start = source.loads(block), (time.perf_counter(), time.process_time())
        source.read(block, buffer)
        seconds.append(time.perf_counter() - start[0])
        cpu.append(time.process_time() - start[1])
        lines.append([*loads, block.num_examples])
    # Least squares with three unknowns: decoding and hashing a row, shuffling it into a window, writing it to a batch.
    each = [float(np.linalg.lstsq(np.array(lines, float), np.array(of), rcond=None)[0].sum()) for of in (seconds, cpu)]
    return Cost(*(max(value, 1e-9) for value in each))
