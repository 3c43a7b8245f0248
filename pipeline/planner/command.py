"""The command --explain: a description of the run and what it needs, then the prediction for this machine."""

from __future__ import annotations

import json
import math
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial

from pipeline.data.agenda import START
from pipeline.driver.session import Session, plan_session
from pipeline.errors import PipelineError, error_text
from pipeline.planner.calibrate import this_machine
from pipeline.planner.costs import Basis
from pipeline.planner.hits import forecast
from pipeline.planner.output import as_json, lines_of, lines_of_others
from pipeline.planner.predict import predict, predict_with_other_memory
from pipeline.planner.start import start_of
from pipeline.planner.work import measure_work
from pipeline.preflight.explain import explain, explained
from pipeline.preflight.setup import Setup
from pipeline.workflow import Workflow

Say = Callable[[str], None]
NO_SCHEDULER = "the workers of --scheduler are on machines that are not known here; run --explain on one of them"


def explain_command(args: Namespace, workflow: Workflow, say: Say) -> None:
    """Print the explanation, according to the arguments. `say`: prints warnings. Raises ValueError if anything is wrong
    with the run."""
    report: Say = partial(print, file=sys.stderr, flush=True) if args.json else say
    if args.price is not None and not 0 <= args.price < math.inf:
        raise ValueError(f"--price {args.price}: expected the price of an hour, at least 0")
    cluster = args.serial, args.workers, args.scheduler
    session = plan_session(
        workflow, args.run_dir, *cluster, report, args.dashboard, extend=args.extend or (), known_ok=args.known_ok
    )
    setup, checked = session.set_up(), session.checked
    if not args.json:
        print(explain(setup, args.all), flush=True)
    basis, why = (None, NO_SCHEDULER) if args.scheduler else _tried(session, setup, args, report)
    others = predict_with_other_memory(checked, basis) if basis else {}
    if args.json:
        prediction = as_json(predict(basis), basis, others) if basis else None
        print(json.dumps(explained(setup) | {"prediction": prediction, "no_prediction": why}))
    else:
        lines = [*lines_of(predict(basis), basis), *lines_of_others(others)] if basis else [f"no prediction: {why}"]
        print("\n".join(lines))


def _tried(session: Session, setup: Setup, args: Namespace, report: Say) -> tuple[Basis | None, str | None]:
    """Return the basis of a prediction, or the reason why there is none: training the first batches may fail even
    though all checks passed."""
    try:
        return basis_of(session, setup, args.serial, args.price, report), None
    except (ValueError, OSError, MemoryError, PipelineError) as error:
        return None, error_text(error)


def basis_of(session: Session, setup: Setup, serial: bool, price: float | None, report: Say) -> Basis:
    """Measure this machine and the workflow on it, and replay the keys of the run."""
    run_dir, workflow = session.run_dir.absolute(), setup.workflow
    folder = next(path for path in (run_dir, *run_dir.parents) if path.is_dir())
    machine = this_machine(folder, workflow.storage.direct, report).model_copy(update={"price_per_hour": price})
    compiles = ", and compiling its model" if workflow.model.compile else ""
    report(f"measuring the workflow with the first batches to come{compiles} ...")
    start = start_of(session)
    if start.at != START:
        left = sum(size for _, size in start.legs(setup.agenda))
        report(f"the run resumes: {left:,} examples are left, and {len(start.keys_U):,} keys have a row")
    work = measure_work(setup, session.checked.source, session.device, folder, machine, start.at)
    report("replaying the plans of the run on its keys ...")
    counts = forecast(setup, work.values_of_example, start=start)
    return Basis(setup, machine, work, counts, session.checked.dense.num_bytes, serial, start)
