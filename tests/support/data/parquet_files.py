"""Helpers that write small Parquet files and split up the examples read from them."""

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.data.buffer import ReadBuffer
from pipeline.kernels.hashing import hash_bytes_reference, hash_integer_reference, table_salt
from pipeline.records import Block
from pipeline.workflow import Category, Data

LIMIT = 1 << 20


def write(path, rows_a_group=1000, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=rows_a_group)


def with_columns(table, **columns):
    """The table with other values of these columns."""
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, values)
    return table


def rewritten(root, folder, change):
    """The folder, with the files of `root`, each with a change of its table and in small row groups."""
    for path in sorted(root.glob("*.parquet")):
        pq.write_table(change(pq.read_table(path)), folder / path.name, row_group_size=8)
    return folder


def data_of(root, **settings):
    settings = {"train": ("train",), "labels": ("label",), "categories": (Category(name="c"),)} | settings
    return Data(root=root, **settings)


def blocks_of(total, batch_size, batches, split="train", epoch=0):
    per_block = batch_size * batches
    for number, first in enumerate(range(0, total, per_block)):
        count = min(per_block, total - first)
        yield Block(number, split, epoch, number * batches, -(-count // batch_size), first, count, batch_size, 0, False)


def examples_in(source, read):
    """Labels, numbers and one tuple of keys per field for each example, decoded by the layout documented in
    records.py."""
    out, layout = [], source.layout
    for b in range(read.block.num_batches):
        begin, end = read.block.batch_bounds(b)
        size, values = end - begin, read.keys_V[read.batch_starts[b] : read.batch_starts[b + 1]].tolist()
        assert read.bags[b].shape == (len(layout.multi_M), size + 1)
        at = len(layout.single_S) * size
        for bag in read.bags[b]:
            assert bag[0] == at
            at = bag[-1]
        assert at == len(values)
        for i in range(size):
            keys = {f: (values[s * size + i],) for s, f in enumerate(layout.single_S)}
            bags = zip(layout.multi_M, read.bags[b], strict=True)
            keys |= {f: tuple(values[bag[i] : bag[i + 1]]) for f, bag in bags}
            floats = tuple(read.labels_NT[begin + i].tolist()), tuple(read.numbers_NX[begin + i].tolist())
            out.append((*floats, tuple(keys[f] for f in range(layout.num_fields))))
    return out


def epoch_of(source, batch_size=7, batches=3, split="train", epoch=0):
    buffer, total = ReadBuffer(LIMIT), source.num_examples[split]
    reads = (source.read(b, buffer) for b in blocks_of(total, batch_size, batches, split, epoch))
    return [example for read in reads for example in examples_in(source, read)]


def numbers_of(examples):
    return [int(numbers[0]) for _, numbers, _ in examples]


def key(value, table="c"):
    salt = int(table_salt(table))
    return hash_integer_reference(value, salt) if isinstance(value, int) else hash_bytes_reference(value, salt)
