"""Layouts of Parquet files for reading: rows of a row group, compression, dictionaries, size of pages.

It measures rows per second of processor time of `Source.read`, for a shuffled epoch of synthetic data in Criteo's
layout, the bytes of the file, and the processor seconds to write it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.cases import CARDINALITIES
from benchmarks.prepare.data import NUM_NUMBERS
from pipeline.data.agenda import Agenda
from pipeline.data.buffer import ReadBuffer
from pipeline.data.source import Source
from pipeline.workflow import Category, Data, Number

BATCH, BLOCK_BATCHES = 8192, 8
Options = Mapping[str, Any]
CHOSEN: Options = {"rows": 1 << 16, "compression": "lz4", "dictionary": True, "page": 1 << 20}
OTHERS: Options = {
    "rows": [1 << 15, 1 << 17, 1 << 18],
    "compression": ["none", "snappy", "zstd"],
    "dictionary": [False],
    "page": [1 << 16, 1 << 23],
}


def cases() -> Iterator[Options]:
    """The chosen options, and all variants that differ from them in one option."""
    yield CHOSEN
    for name, values in OTHERS.items():
        yield from ({**CHOSEN, name: value} for value in values)


def write(table: pa.Table, path: Path, options: Options) -> float:
    """Write the file; return the processor seconds that it took."""
    texts = [name for name in table.column_names if pa.types.is_string(table.schema.field(name).type)]
    begin = time.process_time()
    pq.write_table(
        table,
        path,
        row_group_size=options["rows"],
        compression=options["compression"],
        compression_level=1 if options["compression"] == "zstd" else None,
        use_dictionary=texts if options["dictionary"] else False,
        dictionary_pagesize_limit=1 << 26,
        data_page_size=options["page"],
        write_statistics=False,
    )
    return time.process_time() - begin


def rows_per_second(path: Path, window: int) -> float:
    """Speed of the second of two epochs: the first fills the page cache and compiles kernels."""
    data = Data(
        root=path.parent,
        train=(path.name,),
        labels=("label",),
        numbers=tuple(Number(name=f"i{n}", fill=-3.0, shift=3.0, log1p=True) for n in range(1, NUM_NUMBERS + 1)),
        categories=tuple(Category(name=f"c{n}") for n in range(1, len(CARDINALITIES) + 1)),
        shuffle_window=window,
    )
    source = Source(data, seed=1)
    agenda = Agenda(source.num_examples, BATCH, 2)
    buffer = ReadBuffer(2 * source.block_bytes(BATCH * BLOCK_BATCHES, BLOCK_BATCHES))
    seconds = 0.0
    for block in agenda.blocks(BLOCK_BATCHES):
        begin = time.process_time()
        source.read(block, buffer)
        seconds += (time.process_time() - begin) * (block.split == "train" and block.epoch == 1)
    source.close()
    return source.num_examples["train"] / seconds


def measure(table: pa.Table, folder: Path, repeats: int, window: int = 1 << 17) -> dict[str, float]:
    """Print a line for each case; return the speed of each by the option it changes, as a share of the chosen one's."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {number: (options, folder / f"layout-{number}.parquet") for number, options in enumerate(cases())}
    writing = {number: write(table, path, options) for number, (options, path) in paths.items()}
    speeds: dict[int, list[float]] = {number: [] for number in paths}
    for _ in range(repeats):
        for number, (_, path) in paths.items():
            speeds[number].append(rows_per_second(path, window))
    ratios = {}
    for number, (options, path) in paths.items():
        changed = {name: value for name, value in options.items() if value != CHOSEN[name]} or CHOSEN
        name = ", ".join(f"{name} {value}" for name, value in changed.items())
        speed, size = statistics.median(speeds[number]), path.stat().st_size / table.num_rows
        print(f"{name:60} {speed:12,.0f} rows/s {size:7.1f} bytes a row {writing[number]:6.1f} s to write", flush=True)
        ratios[name] = speed / statistics.median(speeds[0])
        path.unlink()
    return ratios
