"""python -m pipeline.run WORKFLOW.py: validate everything, then train."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.cluster.team import Team
from pipeline.data.agenda import Agenda
from pipeline.data.source import Source
from pipeline.data.synthetic import ensure
from pipeline.device.device import RAM, Described
from pipeline.device.gpu import GpusOfWorkers, choose, gets_gpu
from pipeline.driver.driver import open_crew, open_run
from pipeline.errors import PipelineError, told
from pipeline.kernels.read_rows import SCRATCH_BYTES
from pipeline.machine import limits
from pipeline.machine.affinity import Layout, Seat, describe, lay_out
from pipeline.machine.memory import keep_freed_memory
from pipeline.machine.signals import heed_interrupts
from pipeline.machine.threads import share_of
from pipeline.machine.topology import disk_of, read_topology
from pipeline.monitor.auc import SCORE_BYTES, SPILL_BOUND
from pipeline.monitor.group_auc import GROUP_BOUND, GROUP_BYTES
from pipeline.monitor.report import print_report
from pipeline.optim.rates import BYTES_PER_STEP
from pipeline.preflight.check_model import check_model
from pipeline.preflight.dense_cost import dense_cost
from pipeline.preflight.explain import Line, table
from pipeline.preflight.first_window import rehearse
from pipeline.preflight.remarks import remarks
from pipeline.preflight.sizes import Fit, resolve
from pipeline.storage.files import Files
from pipeline.storage.lock import RunLock
from pipeline.storage.reader import NUM_READERS
from pipeline.training.learner import row_layout
from pipeline.workflow import Workflow, format_size, format_size_or_share


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0; 2 for anything wrong before the run; 1 for a run that ended early. One message, no traceback."""
    heed_interrupts()
    args = arguments().parse_args(argv)
    keep_freed_memory()
    try:
        return train(args)
    except KeyboardInterrupt:
        print("interrupted at its end: what was committed stands, and the same command goes on", file=sys.stderr)
        return 130


def train(args: argparse.Namespace) -> int:
    """The exit code."""
    with ExitStack() as stack:
        try:
            world = 1 if args.workers is None else args.workers
            workflow = shared_by(override(load(args.workflow), args.set), world, args.scheduler)
            run_dir = args.run_dir or Path("runs") / workflow.name
            run_dir = run_dir.resolve() if run_dir.is_symlink() else run_dir
            alone = args.workers is None and not args.scheduler
            if args.serial and not alone:
                raise ValueError(
                    "--serial is for one worker in this process; leave it out, or --workers and --scheduler"
                )
            device, team = (choose(workflow.device), None) if alone else recruit(workflow, world, args.scheduler)
            source, fit = open_workflow(workflow, device, world, args.scheduler is None)
            if args.explain:
                explain(workflow, source, fit, world)
                print("\n".join(describe(seats_of(device.on_gpu, world, run_dir))))
                return 0
            stack.enter_context(RunLock(run_dir))
            prepare(run_dir, args.fresh)
            if team:
                # Where it is for the machine to choose, all are to have the same.
                workflow = workflow.model_copy(update={"device": "cuda" if device.on_gpu else "cpu"})
                opened = open_crew(workflow, source, fit, run_dir, team)
            else:
                opened = open_run(workflow, source, fit, run_dir, args.serial, device)
            driver = stack.enter_context(opened)
        except (ValueError, OSError, MemoryError, PipelineError) as error:
            print(f"error: {message(error)}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("interrupted before anything was trained", file=sys.stderr)
            return 130
        try:
            result = driver.run()
        except PipelineError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        if result is None:
            print(driver.what_stands())
            return 0
    print_report(result)
    print(f"left in {run_dir}: {', '.join(sorted(path.name for path in run_dir.iterdir()))}")
    return 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline.run", description="Train the workflow of a Python file.")
    parser.add_argument("workflow", type=Path, help="a Python file with a module-level `workflow`, or FILE.py:NAME")
    parser.add_argument("--set", action="append", default=[], metavar="a.b=value", help="change a field (JSON or text)")
    parser.add_argument("--run-dir", type=Path, help="where the run leaves everything (default: runs/NAME)")
    parser.add_argument("--fresh", action="store_true", help="move what is in the run directory aside first")
    parser.add_argument("--serial", action="store_true", help="one thread, plain order, no Dask")
    parser.add_argument("--workers", type=int, metavar="N", help="N processes, one a GPU where there are GPUs")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="take the workers from this Dask scheduler's cluster")
    parser.add_argument(
        "--explain", action="store_true", help="print the workflow and the bytes it will take, and stop"
    )
    return parser


def load(path: Path) -> Workflow:
    """The value named `workflow` of a Python file, or, of FILE.py:NAME, that of another name."""
    before, colon, wanted = str(path).rpartition(".py:")
    path, wanted = (Path(f"{before}.py"), wanted) if colon else (path, "workflow")
    if not path.is_file():
        raise ValueError(f"{path} is not a file; name a Python file that holds a `workflow`")
    name = f"workflow_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # A model class of the file's own is found again by its dotted name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ValidationError:
        raise
    except Exception as error:
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from error
    workflow = getattr(module, wanted, None)
    if not isinstance(workflow, Workflow):
        raise ValueError(f"{path} has no module-level `{wanted}` of type pipeline.workflow.Workflow")
    return workflow


def override(workflow: Workflow, settings: Sequence[str]) -> Workflow:
    """The workflow with `a.b=value` applied, validated by the same rules as the file's own."""
    fields: dict[str, Any] = workflow.model_dump(mode="json")
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"--set {setting}: expected a.b=value")
        *parents, last = path.split(".")
        at: Any = fields
        for parent in parents:
            at = at.get(parent) if isinstance(at, dict) else None
        if not isinstance(at, dict):
            raise ValueError(f"--set {setting}: the workflow has no {'.'.join(parents)}")
        try:
            at[last] = json.loads(text)
        except json.JSONDecodeError:
            at[last] = text
        except RecursionError as error:
            raise ValueError(f"--set {path}: the value is nested too deeply") from error
    try:
        return Workflow.model_validate_json(json.dumps(fields))
    except RecursionError as error:
        raise ValueError("--set: a value is nested too deeply") from error


def seats_of(on_gpu: bool, world: int, run_dir: Path) -> Layout:
    """What each worker gets of this machine."""
    there = next(path for path in (run_dir.absolute(), *run_dir.absolute().parents) if path.exists())
    return lay_out(read_topology(on_gpu), world, disk_of(there))


def recruit(workflow: Workflow, world: int, scheduler: str | None) -> tuple[Any, Team]:
    """What workers that are processes of their own train on, as far as this one has to know it, and who they are. Of a
    scheduler's workers "auto" asks for what this machine has. ValueError: this machine has too few GPUs, or
    storage.device is a share of memory that is not known here."""
    elsewhere = scheduler and workflow.device == "cuda"
    topology = read_topology(on_gpu := bool(elsewhere or gets_gpu(workflow.device)))
    if on_gpu and not scheduler and world > len(topology.gpus):
        raise ValueError(
            f"--workers {world}: each has a GPU of its own, and there are {len(topology.gpus)} here that NVML, of the "
            "extra gpu, tells of and CUDA_VISIBLE_DEVICES leaves; take fewer workers, or set device to cpu"
        )
    seats = () if scheduler else lay_out(topology, world).seats
    if scheduler and not on_gpu:
        check_is_size(workflow, "workers' machines")
    device = GpusOfWorkers(least_free(workflow, seats)) if on_gpu else RAM
    return device, Team(world, scheduler, seats, own_modules(workflow))


def least_free(workflow: Workflow, seats: Sequence[Seat]) -> int:
    """Bytes of the GPU that has the least. ValueError: nobody knows here, and storage.device is a share."""
    free = [seat.gpu.free_bytes for seat in seats if seat.gpu]
    known = [num_bytes for num_bytes in free if num_bytes is not None]
    if len(known) < max(1, len(free)):
        check_is_size(workflow, "workers' GPUs")
    # A worker that has less than a size says so when it takes it.
    return min(known, default=sys.maxsize)


def check_is_size(workflow: Workflow, whose: str) -> None:
    """ValueError: storage.device is a share of memory that this machine does not see."""
    if isinstance(workflow.storage.device, float):
        raise ValueError(
            f"storage.device is {format_size_or_share(workflow.storage.device)}, and how much memory of the {whose} is "
            "free is not known here; give it as a size"
        )


def shared_by(workflow: Workflow, world: int, scheduler: str | None) -> Workflow:
    """The workflow as each worker trains it: those of a machine share its threads. ValueError: they are too many."""
    if world < 1:
        raise ValueError(f"--workers {world}: give at least 1")
    if world > (most := workflow.workers.num_shards(world)):
        raise ValueError(f"--workers {world}: the table has {most} shards, one a worker at least; raise workers.shards")
    if scheduler or world == 1:
        return workflow
    schedule = workflow.schedule
    threads = max(1, schedule.threads // world)
    return workflow.model_copy(update={"schedule": schedule.model_copy(update={"threads": threads})})


def own_modules(workflow: Workflow) -> dict[str, tuple[str, str]]:
    """Name and source text of the workflow's file, if its model is from there: workers cannot import it."""
    name = workflow.model.kind.__module__
    file = getattr(sys.modules[name], "__file__", None)
    return {name: (file, Path(file).read_text())} if name.startswith("workflow_") and file else {}


def open_workflow(workflow: Workflow, device: Described, world: int = 1, here: bool = True) -> tuple[Source, Fit]:
    """Check data, model and memory; nothing is trained or written, but synthetic data is made once. `here`: all workers
    are on this machine."""
    check_model(workflow)
    check_memory(workflow, device, world if here else 0)
    ensure(workflow.data)
    source = Source(workflow.data, workflow.seed, share_of(workflow.schedule.threads), workflow.metrics.group)
    for remark in remarks(workflow.data):
        print(f"warning: {remark}", file=sys.stderr)
    agenda = Agenda(source.num_examples, workflow.schedule.batch_size, workflow.schedule.epochs)
    row_bytes = row_layout(workflow).num_bytes
    fit = rehearse(workflow, source, agenda, row_bytes, lambda line: print(line, flush=True), device, world)
    return source, fit


def check_memory(workflow: Workflow, device: Described, workers: int = 1) -> None:
    """Refuse caps, which are of each worker, that this machine's memory, or that of each one's GPU, cannot hold.
    `workers`: of this machine."""
    free = device.free_bytes()
    storage = resolve(workflow.storage, free)
    in_ram = {"device": int(storage.device), "host": storage.host, "read": storage.read, "map": storage.map}
    if device.on_gpu and (wanted := in_ram.pop("device")) > free:
        raise ValueError(f"storage.device is {wanted:,} bytes, and {free:,} of the GPU's memory are free; lower it")
    if (wanted := workers * sum(in_ram.values())) > (there_is := limits.memory()):
        names, of_all = ", ".join(list(in_ram)[:-1]), f" of {workers} workers" if workers > 1 else ""
        raise ValueError(
            f"storage.{names} and map{of_all} add up to {wanted:,} bytes, and this machine has {there_is:,}, limits of "
            "control groups counted; lower one of them"
        )


def prepare(run_dir: Path, fresh: bool) -> None:
    """A run directory that is empty, or holds a run of ours. What was there is moved aside if so asked, and never
    deleted."""
    if run_dir.exists() and any(run_dir.iterdir()):
        if fresh:
            beside = (run_dir.with_name(f"{run_dir.name}.{n}") for n in range(1, 1 << 20))
            run_dir.rename(next(path for path in beside if not path.exists()))
        elif not (run_dir / "commits").is_dir():
            raise ValueError(
                f"{run_dir} holds something else than a run; --fresh moves it aside, --run-dir names another place"
            )
    for folder in (run_dir.absolute().parent, run_dir):
        Files().make_folder(folder)


def explain(workflow: Workflow, source: Source, fit: Fit, world: int = 1) -> None:
    """Print the resolved workflow and the predicted bytes of every tier and buffer, of each worker."""
    print(workflow.model_dump_json(indent=1))
    of_each = f"; of each of {world} workers:" if world > 1 else ""
    print(f"\nlook-ahead {fit.look_ahead}, blocks of {fit.block_batches} batches{of_each}")
    for name, num_bytes, what in table(fit.sizes, fit.look_ahead, other_buffers(workflow, source, fit)):
        print(f"{name:22} {num_bytes:>18,} bytes   {what}")
    if cost := dense_cost(workflow, row_layout(workflow), fit.window.keys_of_batch, fit.window.union_of_first[-1]):
        print(cost)
    storage = workflow.storage
    print(f"caps: device {format_size_or_share(storage.device)}, host {format_size(storage.host)}")


def other_buffers(workflow: Workflow, source: Source, fit: Fit) -> list[Line]:
    """What no cap covers: it depends on a batch or on the evaluated splits, not on the table."""
    batch = workflow.schedule.batch_size * (len(workflow.data.categories) * (row_layout(workflow).num_weights))
    splits = ("validation", "test", *(["train"] if workflow.metrics.progressive else []))
    evaluated = max(source.num_examples[split] for split in splits)
    grouped = GROUP_BYTES * min(evaluated, GROUP_BOUND) if workflow.metrics.group else 0
    scores = len(workflow.data.labels) * (SCORE_BYTES * min(evaluated, SPILL_BOUND) + grouped)
    lines = [
        ("batch", 8 * batch, "embeddings of a batch and their gradients, without the model's own activations"),
        ("log readers", NUM_READERS * SCRATCH_BYTES, f"buffers of {NUM_READERS} threads"),
        ("scores", scores, f"of a split's metrics; beyond {SPILL_BOUND:,} a label they go to disk"),
    ]
    if workflow.optimizer.rows.semantics == "dense":
        schedule, keys = workflow.schedule, max(fit.window.keys_of_blocks)
        steps = schedule.epochs * -(-source.num_examples["train"] // schedule.batch_size)
        lines += [
            ("rates", BYTES_PER_STEP * steps, f"learning rate and L2 of each of {steps:,} steps"),
            ("rows that are scored", keys * row_layout(workflow).num_bytes * 3 // 2, "copies, caught up, of a block's"),
        ]
    return lines


def message(error: Exception) -> str:
    """One message; a validation error as one line for each field."""
    if not isinstance(error, ValidationError):
        return told(error)
    lines = [
        f"{_path(e['loc']) or error.title}: {e['msg']}" + (f" (got {e['input']!r})" if e["loc"] else "")
        for e in error.errors()
    ]
    return "\n       ".join(lines)


def _path(location: Sequence[int | str]) -> str:
    """As --set takes it; pydantic names the kind of a row optimizer as well."""
    return ".".join(str(part) for at, part in enumerate(location) if location[max(0, at - 1)] != "rows" or not at)


if __name__ == "__main__":
    sys.exit(main())
