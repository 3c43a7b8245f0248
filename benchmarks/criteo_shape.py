"""DeepFM in the shape of Criteo, with the whole table initially on disk: 26 fields with 33.8 M keys, 13 numbers,
D = 10, MLP 400-400-400, batches of 131,072 synthetic examples, Adam. Runs on a GPU if there is one.

(a) a device tier for the whole table: ten epochs; the first, which reads the table, is measured separately
(b) a device tier for part of the table, so that rows constantly move up and down: how much of this training hides
(d) the ceiling: the same steps repeated on one block whose rows, examples and indices are on the device

The aim on one H200-class GPU is 5 M examples/s in (a), and 0.8 of (d). The authors of CowClip report 0.76 M examples/s
on a V100.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cases import keys_per_field
from benchmarks.common import arguments, finish, machine
from benchmarks.table import Stretches, drop_log_pages, fill_log
from pipeline.cluster.local import local_client
from pipeline.device.gpu import choose
from pipeline.machine.process import keep_freed_memory
from pipeline.models import DeepFM
from pipeline.monitor.history import StageTimes
from pipeline.preflight.setup import set_up
from pipeline.records import StageCall
from pipeline.workflow import Category, Data, Model, Number, Schedule, Storage, Synthetic, Workflow

COWCLIP = 760_000
AIM = 5_000_000


@dataclass(frozen=True)
class Scale:
    """Sizes of everything; a quick run only shows that it works, its speeds mean nothing."""

    keys: int = 33_800_000
    hidden: tuple[int, ...] = (400, 400, 400)
    batch: int = 131_072
    block_batches: int = 4
    blocks: int = 16
    epochs: int = 10
    small_blocks: int = 12
    device: str = "40 GiB"
    small_device: str = "9 GiB"
    host: str = "12 GiB"
    read: str = "1536 MiB"
    repeats: int = 8


QUICK = Scale(200_000, (16,), 512, 2, 4, 3, 4, "64 MiB", "22 MiB", "64 MiB", "160 MiB", 2)


def make_workflow(scale: Scale, root: Path, device: str, precision: str) -> Workflow:
    fields = keys_per_field(scale.keys)
    examples = scale.blocks * scale.block_batches * scale.batch
    numbers = tuple(Number(name=f"i{n}") for n in range(13))
    return Workflow(
        name="criteo_shape",
        data=Data(
            root=root / f"criteo_shape_{examples}",
            train=("train",),
            labels=("label",),
            numbers=numbers,
            categories=tuple(Category(name=f"c{f}") for f in range(len(fields))),
            synthetic=Synthetic(
                train_examples=examples, keys_per_field=fields, num_numbers=len(numbers), zipf=1.05
            ),
        ),
        model=Model(kind=DeepFM, embedding_dim=10, args={"hidden": scale.hidden}, precision=precision),
        storage=Storage(device=device, host=scale.host, disk="40 GiB", map="3 GiB", read=scale.read),
        schedule=Schedule(batch_size=scale.batch, epochs=1000, block_batches=scale.block_batches),
    )  # fmt: skip


def open_case(scale: Scale, stack: ExitStack, tmp: Path, data: Path, client: Any, device: str, precision: str) -> Any:
    workflow = make_workflow(scale, data, device, precision)
    setup, source = set_up(workflow, choose(workflow.device), print)
    run_dir = tmp / f"{device} {precision}".replace(" ", "_")
    run_dir.mkdir()
    stretches = Stretches(setup, source, run_dir, client)
    stack.callback(stretches.worker.close)
    assert workflow.data.synthetic
    fill_log(stretches.worker, workflow.data.synthetic.keys_per_field)
    return stretches


def table_read_seconds(log_path: Path) -> float:
    """Seconds to read every row of the log once from disk, in whole chunks and in order."""
    buffer = bytearray(1 << 23)
    with drop_log_pages(log_path, 1.0):
        start = time.perf_counter()
        for path in sorted((log_path / "rows").glob("c.*")):
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
        return time.perf_counter() - start


def ceiling(stretches: Stretches, repeats: int) -> float:
    """Case (d): examples per second of the repeated steps of one block, whose rows continue to be trained."""
    worker, number = stretches.worker, stretches._at
    stages, tiers = worker.stages, worker.tiers
    block = stretches._blocks[number]
    stretches._at += 1
    stages.start([block], 0)
    for stage in stages.names[: stages.names.index("write_back")]:
        stages.run(stage, number)
    flight = stages._flights[number]
    tiers.device.drain()
    start = time.perf_counter()
    plan = flight.staged.plan or flight.plan
    blocks = [tiers.learner.learn(plan, flight.examples, flight.unique, flight.staged) for _ in range(repeats)]
    tiers.device.drain()
    seconds = time.perf_counter() - start
    assert all(found().loss > 0 for found in blocks)
    stages.run("write_back", number)
    stages.drain()
    return repeats * block.num_examples / seconds


def print_timeline(name: str, calls: list[StageCall]) -> None:
    print(f"\n{name}: seconds, and the share hidden behind training")
    seconds, hidden = StageTimes(calls).seconds, StageTimes(calls).hidden()
    for stage in seconds:
        share = f"{hidden[stage]:6.1%}" if stage in hidden else "     -"
        print(f"  {stage:14} {seconds[stage]:8.2f} {share}")


def measure(scale: Scale, stack: ExitStack, tmp: Path, data: Path, client: Any, precision: str) -> dict[str, float]:
    whole = open_case(scale, stack, tmp, data, client, scale.device, precision)
    rows = sum(keys_per_field(scale.keys))
    table_seconds = table_read_seconds(whole.worker.tiers.log.path)
    examples = scale.blocks * scale.block_batches * scale.batch
    with drop_log_pages(whole.worker.tiers.log.path, 1.0):
        first, _ = whole.run(scale.blocks)
    epochs = [whole.run(scale.blocks) for _ in range(scale.epochs - 1)]
    rate = statistics.median(epoch[0] for epoch in epochs)
    print_timeline(f"(a) {precision}, an epoch after the first", epochs[-1][1])
    maximum = ceiling(whole, scale.repeats)
    part = open_case(scale, stack, tmp, data, client, scale.small_device, precision)
    part.run(scale.small_blocks)
    part_rate, calls = part.run(scale.small_blocks)
    print_timeline(f"(b) {precision}", calls)
    hidden = StageTimes(calls).hidden()
    print(f"\n(a) {rate:,.0f} examples/s (first epoch {first:,.0f}), (b) {part_rate:,.0f}, (d) {maximum:,.0f}")
    # An epoch has only some of the keys, and their rows are scattered over the table.
    part_of_table = whole.disk_rows_read / rows
    print(
        f"the first epoch took {examples / first:.1f} s and read {part_of_table:.0%} of the rows; reading all of the "
        f"table in order takes {table_seconds:.1f} s"
    )
    up, down = (hidden.get(name, float("nan")) for name in ("gpu upload", "gpu copy back"))
    ratios = {
        "a_vs_aim": rate / AIM,
        "a_vs_cowclip_v100": rate / COWCLIP,
        "a_vs_d": rate / maximum,
        "b_vs_a": part_rate / rate,
        "first_epoch_vs_table_read": examples / first / table_seconds,
        "rows_of_the_table_read": part_of_table,
    }
    if up == up:
        ratios |= {"upload_hidden": up, "copy_back_hidden": down}
    return {f"{name}_{precision}": value for name, value in ratios.items()}


def main() -> None:
    args = arguments("criteo_shape", __doc__ or "")
    scale = QUICK if args.quick else Scale()
    device = choose("auto")
    print(f"{machine()}\non {device.model}")
    keep_freed_memory()
    ratios: dict[str, float] = {}
    with ExitStack() as stack:
        tmp = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=".", prefix=".benchmark-")))
        client = stack.enter_context(local_client())
        for precision in ("float32", "bfloat16"):
            with ExitStack() as cases:
                ratios |= measure(scale, cases, tmp, args.data, client, precision)
    finish(args, ratios)


if __name__ == "__main__":
    main()
