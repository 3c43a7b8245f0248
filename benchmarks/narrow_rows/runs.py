"""Rows of 16-bit words against float32 in runs whose rows come from disk, pair by pair.

    python -m benchmarks.narrow_rows.runs [--pairs 10] [--blocks 8] [--compiled] [--quick]

A table of 20 M rows, slabs with the size of 10 % of its float32 rows, MLP 64, the log read with direct I/O. Both runs
are open in one process and train the same blocks in alternating order. The last line is JSON: the geometric mean of the
ratios of examples/s, the lower end of its 90 % interval, and rows and bytes read from disk relative to float32.

Expected: 0.55 of the bytes per row, and about 0.6 of the rows, since 1.8 times as many are in memory; so a third of the
bytes from disk, and 1.5 times the speed where the disk is the bottleneck. `--compiled` compiles the dense part of both,
so that the disk becomes the bottleneck sooner.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.cases import Case, make_workflow
from benchmarks.common import arguments, finish, interval, machine, spread
from benchmarks.policies.runs import Scale, compare, options, scale_of
from pipeline.cluster.local import local_client
from pipeline.machine.process import keep_freed_memory
from pipeline.monitor.history import StageTimes
from pipeline.settings.optimizer import RowStorage
from pipeline.training.build import row_layout

FORMATS = {"bfloat16": RowStorage(weights="bfloat16", state="bfloat16"), "float32": RowStorage()}


def narrow_options(parser: argparse.ArgumentParser) -> None:
    options(parser)
    parser.add_argument("--compiled", action="store_true", help="compile the dense part")


def open_case(name: str, scale: Scale, data: Path, tmp: Path, client: Any, compiled: bool) -> tuple[Case, int]:
    """Open a run with rows of this format, and train until its tiers are full. Also returns the size of a row in
    bytes."""
    workflow = make_workflow(
        name, data, scale.keys, scale.data_batches * scale.batch, (64,),
        slab_rows=max(scale.keys // 20, scale.ring_rows // 2), host_rows=scale.keys // 20, ring_rows=scale.ring_rows,
        batch_size=scale.batch, block_batches=scale.block_batches,
    )  # fmt: skip
    rows = workflow.optimizer.rows.model_copy(update={"storage": FORMATS[name]})
    workflow = workflow.model_copy(
        update={
            "optimizer": workflow.optimizer.model_copy(update={"rows": rows}),
            "storage": workflow.storage.model_copy(update={"direct": True}),
            "model": workflow.model.model_copy(update={"compile": compiled}),
        }
    )
    case = Case(workflow, tmp / name, client, scale.blocks)
    case.stretches.run(scale.warm_blocks)
    return case, row_layout(workflow).num_bytes


def main() -> None:
    args = arguments("narrow_rows.runs", __doc__ or "", narrow_options)
    print(machine())
    keep_freed_memory()
    scale, pairs = scale_of(args), 2 if args.quick else args.pairs
    with ExitStack() as stack:
        tmp = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=".", prefix=".benchmark-")))
        client = stack.enter_context(local_client())
        cases, row_bytes = {}, {}
        for name in FORMATS:
            cases[name], row_bytes[name] = open_case(name, scale, args.data, tmp, client, args.compiled)
            stack.callback(cases[name].close)
        rates, spans, rows = compare(cases, pairs)
    examples = pairs * scale.blocks * scale.block_batches * scale.batch
    for name, values in rates.items():
        seconds = {
            stage: round(s / (pairs * scale.blocks), 4) for stage, s in StageTimes(spans[name]).cpu_seconds.items()
        }
        print(f"{name:10} {spread(values)}; {rows[name] / examples:.3f} rows an example from disk")
        print(f"    CPU seconds of a block: {seconds}", flush=True)
    mean, lower = interval(rates["bfloat16"], rates["float32"])
    narrow, whole = (rows[name] * row_bytes[name] for name in ("bfloat16", "float32"))
    finish(args, {
        "bfloat16_vs_float32": mean, "lower_end": lower, "rows_from_disk": rows["bfloat16"] / max(1, rows["float32"]),
        "bytes_from_disk": narrow / max(1, whole),
    })  # fmt: skip


if __name__ == "__main__":
    main()
