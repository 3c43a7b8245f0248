"""The command --explain: what a run is and takes, then the prediction for this machine."""

from __future__ import annotations

import json
import math
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial

from pipeline.driver.session import Session, plan_session
from pipeline.errors import PipelineError, error_text
from pipeline.machine.affinity import affinity_lines, lay_out
from pipeline.machine.topology import read_topology
from pipeline.planner.basis import Basis
from pipeline.planner.calibrate import this_machine
from pipeline.planner.hits import forecast
from pipeline.planner.machine import Machine
from pipeline.planner.other_memory import told, values_of, with_other_memory
from pipeline.planner.predict import predict
from pipeline.planner.told import in_words, values
from pipeline.planner.work import measure_work
from pipeline.preflight.explain import explain, explained
from pipeline.preflight.setup import Setup
from pipeline.workflow import Workflow

Say = Callable[[str], None]
NO_SCHEDULER = "the workers of --scheduler are on machines that are not known here; run --explain on one of them"


def explain_command(args: Namespace, workflow: Workflow, say: Say) -> None:
    """Print the explanation as the arguments ask for it. `say`: prints warnings. Raises ValueError if anything is wrong
    with the run."""
    tell: Say = partial(print, file=sys.stderr, flush=True) if args.json else say
    if args.price is not None and not 0 <= args.price < math.inf:
        raise ValueError(f"--price {args.price}: expected the price of an hour, at least 0")
    session = plan_session(workflow, args.run_dir, args.serial, args.workers, args.scheduler, tell, args.dashboard)
    setup, checked = session.set_up(), session.checked
    where = affinity_lines(lay_out(read_topology(session.device.on_gpu), setup.world))
    if not args.json:
        print("\n".join([explain(setup, args.all), *(where if args.all else [])]), flush=True)
    basis, why = (None, NO_SCHEDULER) if args.scheduler else _tried(session, setup, args, tell)
    others = with_other_memory(checked, basis) if basis else {}
    if args.json:
        prediction = values(predict(basis), basis) | {"other_memory": values_of(others)} if basis else None
        print(json.dumps(explained(setup) | {"prediction": prediction, "no_prediction": why}))
    else:
        print("\n".join([*in_words(predict(basis), basis), *told(others)] if basis else [f"no prediction: {why}"]))


def _tried(session: Session, setup: Setup, args: Namespace, tell: Say) -> tuple[Basis | None, str | None]:
    """Return what a prediction follows from, or the reason why it cannot be had: the first batches that are tried may
    fail where checks find nothing."""
    try:
        return here(session, setup, args.serial, args.price, tell), None
    except (ValueError, OSError, MemoryError, PipelineError) as error:
        return None, error_text(error)


def here(session: Session, setup: Setup, serial: bool, price: float | None, tell: Say) -> Basis:
    """Measure this machine and the workflow on it, and replay its keys."""
    folder = next(path for path in (session.run_dir.absolute(), *session.run_dir.absolute().parents) if path.is_dir())
    machine = _priced(this_machine(folder, setup.workflow.storage.direct, tell), price)
    compiles = ", and compiling its model" if setup.workflow.model.compile else ""
    tell(f"measuring the workflow with its first batches{compiles} ...")
    work = measure_work(setup, session.checked.source, session.device, folder, machine)
    tell("replaying the plans of the run on its keys ...")
    counts = forecast(setup, work.values_of_example)
    return Basis(setup, machine, work, counts, session.checked.dense.num_bytes, serial)


def _priced(machine: Machine, price: float | None) -> Machine:
    return machine if price is None else machine.model_copy(update={"price_per_hour": price})
