"""A training from a workflow to an open driver: checks first, then the caps, the run directory's lock, and workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.cluster.address import ANY_PORT, free_address
from pipeline.cluster.crew import WorkerSpec
from pipeline.data.identity import Begun
from pipeline.data.side_files import FOLDER, keep_side_files
from pipeline.device.gpu import choose
from pipeline.driver.driver import Driver
from pipeline.driver.extend import extended
from pipeline.driver.open import make_run_dir, open_crew, open_local, open_pool, recruit, shared_by
from pipeline.driver.resume import begun_of
from pipeline.errors import refuse_remote
from pipeline.preflight.checked import Checked
from pipeline.preflight.setup import Setup, check, divide_caps
from pipeline.settings.init_from import FromRun
from pipeline.storage.files import Files
from pipeline.storage.lock import RunLock
from pipeline.workflow import Workflow


@dataclass(frozen=True, slots=True)
class Session:
    """A training whose workflow, data, model, memory and devices were checked."""

    checked: Checked
    run_dir: Path
    device: Any
    spec: WorkerSpec | None
    """Workers in separate processes; None: one in this process."""
    serial: bool
    dashboard: str
    """Address of the dashboard, free and checked, or "off"."""

    def set_up(self) -> Setup:
        """Divide the caps. Raises ValueError if one is too small."""
        return divide_caps(self.checked)


def plan_session(
    workflow: Workflow, run_dir: Path | None, serial: bool, workers: int | None, scheduler: str | None,
    say: Callable[[str], None], dashboard: str | None = None, fresh: bool = False, extend: Sequence[str] = (),
    known_ok: bool = False,
) -> Session:  # fmt: skip
    """Check everything that needs no example of the data. `run_dir`: by default runs/NAME. `workers`, `scheduler`,
    `dashboard`: as `pipeline run` takes them. `say` is called with warnings. `fresh`: an earlier run there does not go
    on. `extend`, `known_ok`: see `extended`. Raises ValueError if a setting does not fit the data, the machine or
    another setting."""
    refuse_remote("--out", run_dir)
    world = 1 if workers is None else workers
    workflow = shared_by(workflow, world, scheduler)
    run_dir = run_dir or Path("runs") / workflow.name
    run_dir = run_dir.resolve() if run_dir.is_symlink() else run_dir
    alone = workers is None and not scheduler
    if serial and not alone:
        raise ValueError("--serial is for one worker in this process; leave it out, or --workers and --scheduler")
    if dashboard and (serial or scheduler):
        whose = "--serial has no" if serial else "the cluster of --scheduler has its own"
        raise ValueError(f"--dashboard {dashboard}: {whose} dashboard; leave it out")
    address = free_address(dashboard, say) if dashboard else ANY_PORT
    device, spec = (choose(workflow.device), None) if alone else recruit(workflow, world, scheduler, address, run_dir)
    if spec:
        # "auto" is resolved here, so that all workers use the same kind of device.
        workflow = workflow.model_copy(update={"device": "cuda" if device.on_gpu else "cpu"})
    if fresh and any(
        isinstance(one, FromRun) and one.run.expanduser().resolve() == run_dir.resolve() for one in workflow.init_from
    ):
        raise ValueError(
            f"--fresh would move {run_dir} aside, and init_from begins with it; give the new run another folder with "
            "--out"
        )
    begun = extended(workflow, Begun() if fresh else begun_of(run_dir), extend, known_ok, say)
    checked = check(workflow, device, say, world, scheduler is None, run_dir, begun)
    if workflow.init_from and not (begun and begun.splits):
        from pipeline.warm_start.first_commit import rows_to_take

        checked = replace(checked, rows_before=rows_to_take(checked))
    return Session(checked, run_dir, device, spec, serial, address)


@contextmanager
def open_session(session: Session, fresh: bool) -> Iterator[Driver]:
    """Open the driver of a training. `fresh`: move an earlier run aside. Raises ValueError if a cap is too small, if
    the run directory is in use, holds something else, or holds a run of another workflow, or if another run has the
    workers of the scheduler."""
    setup, spec, pool = session.set_up(), session.spec, None
    with ExitStack() as stack:
        if spec and spec.scheduler:
            # No file is touched before it is known that no other run has these workers.
            pool = stack.enter_context(open_pool(spec))
        stack.enter_context(RunLock(session.run_dir))
        make_run_dir(session.run_dir, fresh)
        keep_side_files(session.checked.workflow.data, session.run_dir / FOLDER, Files())
        if find_spec("prometheus_client"):
            from pipeline.monitor.tools.prometheus import metrics_of

            stack.enter_context(metrics_of(session.run_dir))
        arguments = setup, session.checked.source, session.run_dir
        if spec:
            pool = pool or stack.enter_context(open_pool(spec))
            yield stack.enter_context(open_crew(*arguments, pool))
        else:
            yield stack.enter_context(open_local(*arguments, session.serial, session.device, session.dashboard))
