"""A training session, from a workflow to an open driver: the files by which a run is extended, checks, then caps, the
lock of the run directory, and workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.cluster.address import ANY_PORT, free_address
from pipeline.cluster.crew import WorkerSpec
from pipeline.data.identity import Begun, name_of
from pipeline.data.side_files import FOLDER, check_changes, keep_former, keep_side_files, side_digests
from pipeline.data.split_files import added_files
from pipeline.device.gpu import choose
from pipeline.driver.driver import Driver
from pipeline.driver.open import make_run_dir, open_crew, open_local, open_pool, recruit, shared_by
from pipeline.driver.resume import begun_like, begun_of, check_alike
from pipeline.errors import refuse_remote
from pipeline.files.find import find, place_of
from pipeline.messages.uris import is_remote
from pipeline.preflight.checked import Checked
from pipeline.preflight.setup import Setup, check, divide_caps
from pipeline.settings.init_from import FromRun
from pipeline.spans.waiting import Waiting
from pipeline.storage.files import Files
from pipeline.storage.lock import RunLock
from pipeline.workflow import Data, Workflow

MAX_NAMED = 5
"""Maximum number of files named in a message."""


def extended(
    workflow: Workflow, begun: Begun, extend: Sequence[str], known_ok: bool, say: Callable[[str], None],
    as_is: Sequence[str] = (), without: Sequence[str] = (), close: bool = False,
) -> Begun:  # fmt: skip
    """Data of the run, extended. `extend`: files, folders or patterns to add, relative to the current folder.
    `known_ok`: skip files that the run already has; otherwise they are refused, unless the run still has spans to
    train, as after an interruption. `as_is`, `without`: see `Waiting`. `close`: see `Begun`.

    Raises ValueError if the workflow has no spans, if a file is known, or if nothing is found.
    """
    if not workflow.data.spans_by:
        if extend:
            raise ValueError(
                "--extend needs training data with spans; set data.time to the column with the times, or data.span to "
                "'file'"
            )
        return begun
    places = tuple(one if is_remote(one) else str(Path(one).expanduser().absolute()) for one in extend)
    given = [name_of(file, workflow.data.root) for file in added_files(workflow.data, places)]
    matched = _matched(workflow.data) if begun.splits else set()
    known = begun.known_among({*given, *matched})
    again = [name for name in given if name in known]
    if again and begun.is_over and not known_ok:
        raise ValueError(
            f"--extend names {_some(again)}, which the run has already trained on; name only new files, or skip "
            "known ones with --known-ok"
        )
    may_change = {file.path for file in begun.shared}
    places_of = {name: place_of(name, workflow.data.root) for name in known if name not in may_change}
    local = {name: Path(place) for name, place in places_of.items() if not is_remote(place)}
    if changed := [name for name, path in local.items() if path.is_file() and path.stat().st_size != known[name]]:
        say(
            f"warning: {_some(changed)} changed after it was trained on, and is not read again; give new rows under "
            "another name, or go back with --rewind SPAN"
        )
    listed = (begun.splits["train"].spans or [])[begun.begun :] if begun.splits else []
    waiting = (begun.waiting or Waiting(())).with_choices(as_is, without, listed)
    left_out = (begun.splits["train"].unread or {}).keys() if begun.splits else ()
    if others := matched - known.keys() - waiting.files - {*given, *left_out}:
        say(f"data.train matches {_some(sorted(others))}, which the run does not have; --extend trains on them")
    return replace(begun, extend=places, close=close, waiting=waiting if begun.waiting else None)


def _matched(data: Data) -> set[str]:
    """Names of the files that data.train currently matches."""
    with suppress(ValueError, OSError):
        return {name_of(file, data.root) for file in find(data.train, data.root, "data.train", "Parquet").files}
    return set()


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


@dataclass(frozen=True, slots=True)
class Session:
    """A training session with checked workflow, data, model, memory and devices."""

    checked: Checked
    run_dir: Path
    device: Any
    spec: WorkerSpec | None
    """Workers in separate processes; None: one worker in this process."""
    serial: bool
    dashboard: str
    """Address of the dashboard, checked to be free, or "off"."""
    accepted: tuple[str, ...]
    """Names of spans that the guard does not judge."""

    def set_up(self) -> Setup:
        """Divide the caps. Raises ValueError if one is too small."""
        return divide_caps(self.checked)


def plan_session(
    workflow: Workflow, run_dir: Path | None, serial: bool, workers: int | None, scheduler: str | None,
    say: Callable[[str], None], dashboard: str | None = None, fresh: bool = False, extend: Sequence[str] = (),
    known_ok: bool = False, as_is: Sequence[str] = (), without: Sequence[str] = (),
    like: Path | None = None, close: bool = False,
) -> Session:  # fmt: skip
    """Check everything that requires no examples. `run_dir`: by default runs/NAME. `workers`, `scheduler`, `dashboard`:
    as in `pipeline run`. `say`: called with warnings. `fresh`: do not resume an earlier run in `run_dir`. `extend`,
    `known_ok`, `as_is`, `without`, `close`: see `extended`. `like`: see `begun_like`. Raises ValueError if a setting
    conflicts with the data, the machine or another setting."""
    run_dir = folder_of_run(workflow, run_dir)
    world = 1 if workers is None else workers
    workflow = shared_by(workflow, world, scheduler)
    alone = workers is None and not scheduler
    if serial and not alone:
        raise ValueError("--serial is for one worker in this process; leave it out, or --workers and --scheduler")
    if dashboard and (serial or scheduler):
        whose = "--serial has no" if serial else "the cluster of --scheduler has its own"
        raise ValueError(f"--dashboard {dashboard}: {whose} dashboard; leave it out")
    address = free_address(dashboard, say) if dashboard else ANY_PORT
    device, spec = (choose(workflow.device), None) if alone else recruit(workflow, world, scheduler, address, run_dir)
    if spec:
        # Resolve "auto" here, so that all workers use the same kind of device.
        workflow = workflow.model_copy(update={"device": "cuda" if device.on_gpu else "cpu"})
    if fresh and any(
        isinstance(one, FromRun) and one.run.expanduser().resolve() == run_dir.resolve() for one in workflow.init_from
    ):
        raise ValueError(
            f"--fresh would move {run_dir} aside, and init_from begins with it; give the new run another folder with "
            "--out"
        )
    begun = Begun() if fresh else begun_of(run_dir)
    is_new = not begun.splits
    alike = begun_like(like, workflow.data) if like else None
    begun = extended(workflow, alike if alike and is_new else begun, extend, known_ok, say, as_is, without, close)
    begun = replace(begun, sides=replace(alike.sides, done=begun.done)) if alike else begun
    checked = check(workflow, device, say, world, scheduler is None, run_dir, begun)
    for remark in () if alike else check_changes(workflow.data, begun.sides, checked.source.side_files):
        say(remark)
    if like and alike and is_new:
        check_alike(like, alike, checked.source.identity, workflow.data)
    if workflow.init_from and is_new:
        from pipeline.warm_start.first_commit import rows_to_take

        checked = replace(checked, rows_before=rows_to_take(checked))
    accepted = (*as_is, *(alike.splits["train"].spans or () if alike else ()))
    return Session(checked, run_dir, device, spec, serial, address, accepted)


def folder_of_run(workflow: Workflow, run_dir: Path | None) -> Path:
    """Folder of a run: `run_dir`, by default runs/NAME."""
    refuse_remote("--out", run_dir)
    run_dir = run_dir or Path("runs") / workflow.name
    return run_dir.resolve() if run_dir.is_symlink() else run_dir


@contextmanager
def open_session(session: Session, fresh: bool) -> Iterator[Driver]:
    """Open the driver of a session. `fresh`: move an earlier run aside. Raises ValueError if a cap is too small, if the
    run directory is in use, contains something else, or contains a run of another workflow, or if another run is using
    the workers of the scheduler."""
    setup, spec, pool = session.set_up(), session.spec, None
    with ExitStack() as stack:
        if spec and spec.scheduler:
            # Touch no file until it is certain that no other run is using these workers.
            pool = stack.enter_context(open_pool(spec))
        stack.enter_context(RunLock(session.run_dir))
        make_run_dir(session.run_dir, fresh)
        source, data, folder = session.checked.source, session.checked.workflow.data, session.run_dir / FOLDER
        if changed := [name for name, digest in side_digests(data).items() if source.side_files[name] != digest]:
            raise ValueError(
                f"{changed[0]}, which data.features names, was changed while the run began; start it again"
            )
        keep_side_files(data, source.side_files, folder, Files())
        keep_former(source.sides, folder, Files())
        source.sides = replace(source.sides, folder=folder)
        arguments = setup, source, session.run_dir
        if spec:
            pool = pool or stack.enter_context(open_pool(spec))
            driver = stack.enter_context(open_crew(*arguments, pool))
        else:
            driver = stack.enter_context(open_local(*arguments, session.serial, session.device, session.dashboard))
        driver.accepted = session.accepted
        yield driver
