"""The command --explain: what a run is and takes, then the prediction for this machine or for another one."""

from __future__ import annotations

import json
import math
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial

from pipeline.device.device import Described
from pipeline.driver.open import affinities_for, shared_by
from pipeline.driver.session import Session, plan_session
from pipeline.errors import PipelineError, error_text
from pipeline.machine.affinity import layout_lines
from pipeline.machine.limits import cpus
from pipeline.planner.basis import Basis
from pipeline.planner.calibrate import this_machine
from pipeline.planner.elsewhere import work_elsewhere
from pipeline.planner.hits import MAX_VALUES, forecast
from pipeline.planner.machine import DeviceElsewhere, Machine, load_machine
from pipeline.planner.other_memory import told, values_of, with_other_memory
from pipeline.planner.predict import predict
from pipeline.planner.told import in_words, values
from pipeline.planner.work import Work, measure_work
from pipeline.preflight.checked import Checked
from pipeline.preflight.chosen_caps import SHARE_OF_FREE
from pipeline.preflight.explain import explain, explained
from pipeline.preflight.setup import Setup, check, divide_caps
from pipeline.workflow import Workflow

Say = Callable[[str], None]
NO_SCHEDULER = "the workers of --scheduler are on machines that are not known here; give one of them with --on"


def explain_command(args: Namespace, workflow: Workflow, say: Say) -> None:
    """Print the explanation as the arguments ask for it. `say`: prints warnings. Raises ValueError if anything is wrong
    with the run, or with the other machine."""
    tell: Say = partial(print, file=sys.stderr, flush=True) if args.json else say
    if args.price is not None and not 0 <= args.price < math.inf:
        raise ValueError(f"--price {args.price}: expected the price of an hour, at least 0")
    basis_of: Callable[[], Basis]
    device: Described
    if args.on:
        if args.scheduler:
            raise ValueError("--on and --scheduler exclude each other: --on takes its workers from the machine's file")
        machine = _priced(load_machine(args.on), args.price)
        device = DeviceElsewhere(machine, machine.gpus > 0)
        checked, setup = set_up_elsewhere(workflow, machine, device, args.workers, tell)
        where: list[str] = []
        basis_of = partial(elsewhere, checked, setup, machine, args.serial, tell)
    else:
        session = plan_session(workflow, args.run_dir, args.serial, args.workers, args.scheduler, tell, args.dashboard)
        setup, checked, device = session.set_up(), session.checked, session.device
        where = list(layout_lines(affinities_for(session.device.on_gpu, setup.world, session.run_dir)))
        basis_of = partial(here, session, setup, args.serial, args.price, tell)
    if not args.json:
        print("\n".join([explain(setup, args.all), *(where if args.all else [])]), flush=True)
    basis, why = _tried(basis_of) if not args.scheduler else (None, NO_SCHEDULER)
    others = with_other_memory(checked, device, basis) if basis else {}
    if args.json:
        prediction = values(predict(basis), basis) | {"other_memory": values_of(others)} if basis else None
        print(json.dumps(explained(setup) | {"prediction": prediction, "no_prediction": why}))
    else:
        print("\n".join([*in_words(predict(basis), basis), *told(others)] if basis else [f"no prediction: {why}"]))


def _tried(basis_of: Callable[[], Basis]) -> tuple[Basis | None, str | None]:
    """Return what a prediction follows from, or the reason why it cannot be had: the first batches that are tried may
    fail where checks find nothing."""
    try:
        return basis_of(), None
    except (ValueError, OSError, MemoryError, PipelineError) as error:
        return None, error_text(error)


def here(
    session: Session, setup: Setup, serial: bool, price: float | None, tell: Say, max_values: int = MAX_VALUES
) -> Basis:
    """Measure this machine and the workflow on it, and replay its keys, `max_values` values of them at most."""
    folder = next(path for path in (session.run_dir.absolute(), *session.run_dir.absolute().parents) if path.is_dir())
    machine = _priced(this_machine(folder, setup.workflow.storage.direct, tell), price)
    compiles = ", and compiling its model" if setup.workflow.model.compile else ""
    tell(f"measuring the workflow with its first batches{compiles} ...")
    work = measure_work(setup, session.checked.source, session.device, folder, machine)
    return _basis(session.checked, setup, machine, work, serial, tell, max_values)


def set_up_elsewhere(
    workflow: Workflow, machine: Machine, device: DeviceElsewhere, workers: int | None, say: Say
) -> tuple[Checked, Setup]:
    """Check the workflow and divide its caps as that machine would. Raises ValueError if it does not fit there."""
    if workflow.device == "cuda" and not machine.gpus:
        raise ValueError(f"device is cuda, and {machine.name} has no GPU (gpus is 0); set device to auto")
    on_gpu = machine.gpus > 0
    if on_gpu and workflow.device == "cpu":
        raise ValueError(f"device is cpu, and the rates of {machine.name} are those of its GPUs; set device to auto")
    world = workers or machine.workers
    if on_gpu and world > machine.gpus:
        raise ValueError(f"--workers {world}: {machine.name} has {machine.gpus} GPUs, and each worker needs one")
    schedule = workflow.schedule
    if schedule.threads == cpus():
        # The default here is the number of CPUs, and so it would be there.
        schedule = schedule.model_copy(update={"threads": machine.cores})
    storage = workflow.storage
    if storage.leaves_out and storage.memory is None:
        storage = storage.model_copy(update={"memory": int(SHARE_OF_FREE * machine.ram / world)})
    workflow = shared_by(workflow.model_copy(update={"schedule": schedule, "storage": storage}), world, None)
    checked = check(workflow, device, say, world, here=False)
    return checked, divide_caps(checked, device, say)


def elsewhere(checked: Checked, setup: Setup, machine: Machine, serial: bool, tell: Say) -> Basis:
    """Compute the costs on another machine, and replay the keys here."""
    tell("counting the operations of the model ...")
    work = work_elsewhere(setup, checked.source, machine)
    return _basis(checked, setup, machine, work, serial, tell)


def _basis(
    checked: Checked, setup: Setup, machine: Machine, work: Work, serial: bool, tell: Say, max_values: int = MAX_VALUES
) -> Basis:
    tell("replaying the plans of the run on its keys ...")
    counts = forecast(setup, work.values_of_example, max_values)
    return Basis(setup, machine, work, counts, checked.dense.num_bytes, serial)


def _priced(machine: Machine, price: float | None) -> Machine:
    return machine if price is None else machine.model_copy(update={"price_per_hour": price})
