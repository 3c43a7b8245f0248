"""Check whether a workflow may resume from a commit: settings that must match, settings that may differ, and warnings
about differences."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline.arguments import REPORT
from pipeline.commits.manifest import OTHER_VERSION, RESERVE_NAME, Commits, Manifest
from pipeline.commits.reading import hold
from pipeline.commits.run_state import naming, newest_state
from pipeline.data.agenda import Agenda, Position
from pipeline.data.identity import Begun, Identity, SplitIdentity, as_json, begun_in, difference, differences
from pipeline.data.side_files import FOLDER, sides_in, with_copies
from pipeline.data.waiting import begun_part, final_part, is_recorded, resumed_at, waiting_in
from pipeline.driver.best import BestEpoch
from pipeline.driver.result import OUTPUTS
from pipeline.files.find import place_of
from pipeline.files.stores import is_file
from pipeline.machine.compiler import CACHE, compiler, compiler_version, processor
from pipeline.monitor.history import History
from pipeline.own_code.code import EDITED, code_digest, is_other_code
from pipeline.preflight.setup import Setup
from pipeline.settings import read_json
from pipeline.spans.waiting import begun_and_done
from pipeline.storage.disk_speed import DiskSpeed
from pipeline.storage.files import Damaged
from pipeline.storage.folder import Folder
from pipeline.workflow import Data, Workflow, read_kept

CHANGE_NO_BIT = (
    "name", "data.root", "data.train", "data.validation", "data.test", "data.synthetic",
    "data.statistics", "data.label_delay", "data.late", "data.ahead", "data.gap", "data.close", "data.complete",
    "storage.memory", "storage.device", "storage.host", "storage.disk", "storage.read", "storage.map",
    "storage.device_policy", "storage.host_policy", "storage.known_examples", "storage.known", "storage.log_multiple",
    "storage.log_growth", "storage.direct", "storage.keep_spans",
    "schedule.block_batches", "schedule.look_ahead", "schedule.epochs", "commit", "metrics", "workers", "device",
    "model.compile_cache",
)  # fmt: skip
"""Settings that may differ, since they change no bit of the result (more epochs change no bit of the earlier ones).
Data are compared by identity instead, and the device by the environment."""
CHANGE_LATER_BITS = (
    "optimizer.dense", "optimizer.max_grad_norm", "optimizer.rows.lr", "optimizer.rows.l2", "optimizer.rows.clip",
    "schedule.plateau", "schedule.threads", "model.compile",
)  # fmt: skip
"""Settings that may differ, with a warning: the result is then not that of any single workflow."""
DECIDE_THE_RESULT = ("optimizer", "metrics", "schedule.plateau", "model.compile")
"""Settings that must not change after a run has ended: with other values, its results would not be those of the
workflow. Threads are exempt, since their default depends on the machine."""
SCORE_SPANS = ("metrics.score_spans", "metrics.score_arrivals", "metrics.guard", "metrics.guard_then")
"""Settings that affect the scoring of later spans only."""
MAX_NAMED, MAX_VALUE = 8, 60
"""Maximum number of differences named in a message, and of characters per value."""
PROCESSOR_VARIABLES = (
    "ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_DEBUG_CPU_TYPE", "MKL_ENABLE_INSTRUCTIONS",
    "NUMBA_CPU_FEATURES", "NUMBA_CPU_NAME", "NUMBA_ENABLE_AVX", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE",
)  # fmt: skip
"""Environment variables that select the CPU instructions that libraries use, and so may change bits."""
COMPILER_VARIABLES = ("TORCHINDUCTOR_", "TORCH_COMPILE_", "TORCHDYNAMO_", "TRITON_")
"""Prefixes of environment variables that configure torch's compiler."""


def description(
    workflow: Workflow, identity: Identity, device: str = "cpu", world: int = 1, steps_of_epoch: int = 0,
    side_files: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:  # fmt: skip
    """Describe the run as JSON values, for its commits and for the comparison on resume. `device`: model of the device;
    `world`: number of workers; `side_files`: checksum of each file that features read."""
    compiled = compiled_by(device != "cpu") if workflow.model.compile else {}
    return {
        "workflow": json.loads(workflow.model_dump_json()),
        "data": as_json(identity),
        "steps_of_epoch": steps_of_epoch,
        "environment": environment() | {"device": device, "workers": str(world)} | compiled,
        "code": code_digest(workflow.model.kind),
        "side_files": dict(side_files),
    }


def environment() -> dict[str, str]:
    """Environment that can change bits: CPU model, library versions, and variables that select CPU instructions."""
    variables = {name: os.environ[name] for name in PROCESSOR_VARIABLES if name in os.environ}
    return {"processor": processor()} | {name: version(name) for name in ("numba", "numpy", "torch")} | variables


def compiled_by(on_gpu: bool) -> dict[str, str]:
    """Environment that can change the bits of a compiled dense part: the version of the C++ compiler, on a GPU also
    that of Triton, and variables that configure torch's compiler."""
    names = sorted(name for name in os.environ if name.startswith(COMPILER_VARIABLES) and name != CACHE)
    triton = {"triton": version("triton")} if on_gpu and find_spec("triton") else {}
    return {"compiler": compiler_version(compiler())} | triton | {name: os.environ[name] for name in names}


def check_same_run(
    before: Mapping[str, Any], now: Mapping[str, Any], position: Position, kind: Callable[..., Any] | None = None,
    ended: bool = False,
) -> list[str]:  # fmt: skip
    """Compare two runs, and return a warning for each allowed difference. Raises ValueError, which lists the
    differences, if any is not allowed.

    `before`, `now`: `description`s. `position`: that of the commit. `kind`: `model.kind` of the current workflow.
    `ended`: nothing is left to train, so the old results are final. Nothing that `before` names is imported.
    """
    other, types = differences(_final_data(before, now["data"]["train"]), now["data"]), now["data"]["train"]["types"]
    if not before["data"]["test"]["files"]:
        # The test follows all training, so it can be added to a run without one, even after the run has ended.
        other.pop("test", None)
    workflow_before = _plain(_completed(before["workflow"]), types, kind, now["workflow"])
    workflow_now = _plain(now["workflow"], types, kind, now["workflow"])
    changes = list(_differences(workflow_before, workflow_now, ""))
    # An Ftrl weight is a function of its sums and of the settings used to accumulate them.
    fixed = ("optimizer.rows",) if now["workflow"]["optimizer"]["rows"]["kind"] == "ftrl" else ()
    may_change = CHANGE_NO_BIT + CHANGE_LATER_BITS
    refused = [text for path, text in changes if not _is_in(path, may_change) or _is_in(path, fixed)]
    side_were, side = before["side_files"], now["side_files"]
    refused += [
        f"data.features: {name} has another content than when the run began"
        for name in side
        if position.span is None and name in side_were and side[name] != side_were[name]
    ]
    steps_were, steps = before["steps_of_epoch"], now["steps_of_epoch"]
    if train := other.pop("train", None):
        way = "" if position.span is None else "; restore the file, or, once all its rows were trained on, remove it"
        refused.append(f"data.train: {train}{way}")
    elif steps != steps_were and not refused and before.get("trained", 1):
        # The last step of a row and the history of rates are counted in steps of the run.
        refused.append(
            f"steps of an epoch: were {steps_were}, are {steps}, since with batch norm a last batch that is too small "
            "for all workers is joined to the one before"
        )
    was, epochs = (d["workflow"]["schedule"]["epochs"] for d in (before, now))
    # The run cannot end at an earlier epoch: the test that follows the last epoch would be skipped.
    if position.span is not None and epochs != was:
        refused.append(f"schedule.epochs: was {was} passes over each span, is {epochs}")
    elif position.epoch >= epochs and epochs != was:
        refused.append(f"schedule.epochs: was {was}, is {epochs}, and the commit is at epoch {position.epoch + 1}")
    more = [f"and {len(refused) - MAX_NAMED} more"] if len(refused) > MAX_NAMED else []
    if refused:
        raise ValueError(
            "the run directory holds a commit of another workflow:\n       "
            + "\n       ".join([*refused[:MAX_NAMED], *more])
            + "\n       change it back; or give this workflow another name=, or its run another folder with --out; "
            "or start over with --fresh, which moves the old run aside"
        )
    edited = is_other_code(before["code"], now["code"])
    code = [EDITED.format(kind=now["workflow"]["model"]["kind"])] if edited else []
    if ended:
        decide = [(path, text) for path, text in changes if not _is_in(path, SCORE_SPANS)]
        asked = [text for path, text in decide if _is_in(path, DECIDE_THE_RESULT)] + code
        _check_answers([*asked, *(f"data.{split}: {text}" for split, text in other.items())], bool(other))
    warned = [text for path, text in changes if _is_in(path, CHANGE_LATER_BITS)] + code
    warned += [text for _, text in _differences(before["environment"], now["environment"], "")]
    return [f"changed since the run began, so the result will not be bit-identical: {text}" for text in warned] + [
        f"metrics of {split} are from here on of other data, and cannot be compared with earlier ones: {text}"
        for split, text in other.items()
    ]


def _final_data(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a commit, without the spans that wait in the training split `now`."""
    (train,) = _train_of(before)
    if train.calendar is None:
        return dict(before["data"])
    epochs = before["workflow"]["schedule"]["epochs"]
    num_begun, _ = begun_and_done(train.calendar.num_rows, epochs, before["trained"])
    final = final_part(train, num_begun)
    parted = begun_part(final, num_begun)
    is_parted = {file.path for file in parted.files} <= {file["path"] for file in now["files"]}
    return {**before["data"], **as_json({"train": parted if is_parted else final})}


def _check_answers(differences: Sequence[str], of_data: bool) -> None:
    """Raises ValueError if the results of a finished run are not those of the current workflow."""
    if differences:
        lines = "\n       ".join(differences)
        score = "; `pipeline score` scores other files with the trained model" if of_data else ""
        raise ValueError(
            f"the run in this directory has ended, and its results are not those of this workflow:\n       {lines}\n"
            "       change it back; or give the run another folder with --out; or start again with --fresh, which "
            f"moves the old run aside{score}"
        )


def _completed(workflow: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fill in the defaults of fields that a commit's workflow lacks, and leave out removed settings. Raises ValueError
    if it is not a valid workflow.

    Validation would import the class that `model.kind` names, so a placeholder class replaces it.
    """
    model = workflow.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("kind"), str):
        raise ValueError(
            f"model.kind of the commit's workflow is not the name of a class: {_short(model)}; {OTHER_VERSION}"
        )
    try:
        completed = json.loads(read_kept(workflow).model_dump_json())
    except ValueError as error:
        raise ValueError(f"the workflow that the commit keeps cannot be read: {error}; {OTHER_VERSION}") from error
    completed["model"]["kind"] = model["kind"]
    return dict(completed)


def _plain(
    workflow: Mapping[str, Any], types: Mapping[str, str], kind: Callable[..., Any] | None, present: Mapping[str, Any]
) -> dict[str, Any]:
    """Normalize a workflow, so that equivalent workflows compare equal: make defaults explicit, and remove settings
    without effect. `types`: column types of the data, by name."""
    categories = [
        c | {"table": c["table"] or c["name"], "pooling": c["pooling"] if "list" in types[c["name"]] else "sum"}
        if c["name"] in types
        else c
        for c in workflow["data"]["categories"]
    ]
    features = [{name: of for name, of in f.items() if name != "changes"} for f in workflow["data"]["features"]]
    model = dict(workflow["model"])
    if kind and model["kind"] == present["model"]["kind"]:
        parameters = inspect.signature(kind).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        model["args"] = json.loads(json.dumps(defaults | model["args"], default=repr))
    return {**workflow, "data": workflow["data"] | {"categories": categories, "features": features}, "model": model}


def _is_in(path: str, prefixes: tuple[str, ...]) -> bool:
    return any(path == prefix or path.startswith(f"{prefix}.") for prefix in prefixes)


def _differences(before: Any, now: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the dotted path and a description of each value that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        separator = "." if path and not path.endswith(" ") else ""
        for name in dict.fromkeys([*before, *now]):
            yield from _differences(before.get(name), now.get(name), f"{path}{separator}{name}")
    elif before != now:
        lists = isinstance(before, list) and isinstance(now, list) and len(json.dumps([before, now])) > MAX_VALUE
        yield path, f"{path}: {_changes(before, now) if lists else f'was {_short(before)}, is {_short(now)}'}"


def _changes(before: list[Any], now: list[Any]) -> str:
    """Summarize how two long lists differ, by the names of their items if they have names."""
    were, are = (
        {str(item.get("name", item) if isinstance(item, dict) else item): item for item in of} for of in (before, now)
    )
    parts = {
        "without": [name for name in were if name not in are], "with": [name for name in are if name not in were],
        "other settings of": [name for name in were if name in are and were[name] != are[name]],
    }  # fmt: skip
    named = [f"{what} {', '.join(names[:5])}{' ...' * (len(names) > 5)}" for what, names in parts.items() if names]
    return f"was a list of {len(before)}, is one of {len(now)}: {'; '.join(named) or 'in another order'}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < MAX_VALUE else f"{text[:MAX_VALUE]} ..."


def begun_of(run_dir: Path) -> Begun:
    """Data of the newest commit of a run directory; empty if there is no commit or it is damaged. Damage is reported
    later, when commits are opened."""
    with suppress(Damaged, ValueError, OSError, LookupError, TypeError), hold(run_dir, "last") as held:
        state = held.manifest.state
        begun = replace(begun_in(state["data"]), keys_of_shards=held.manifest.keys_of_shards)
        train = begun.splits["train"]
        if train.calendar is None:
            return begun
        epochs, trained = state["workflow"]["schedule"]["epochs"], state["trained"]
        num_begun, num_done = begun_and_done(train.calendar.num_rows, epochs, trained)
        final = final_part(train, num_begun)
        return replace(
            begun, splits={**begun.splits, "train": final}, at=resumed_at(state, train, train), begun=num_begun,
            waiting=waiting_in(train, final), sides=sides_in(state, num_begun, num_done, run_dir / FOLDER),
            run_dir=run_dir,
        )  # fmt: skip
    return Begun()


def _train_of(*states: Mapping[str, Any]) -> Iterator[SplitIdentity]:
    return (read_json(SplitIdentity, json.dumps(state["data"]["train"])) for state in states)


def position_over(newest: Manifest, described: Mapping[str, Any]) -> Position:
    """Position at which a run goes on from its newest commit, over the data of this session's `description`."""
    was, now = _train_of(newest.state, described)
    return resumed_at(newest.state, was, now)


def records_all(newest: Manifest | None, described: Mapping[str, Any]) -> bool:
    """True if the newest commit, if any, knows all spans of this session's data."""
    if newest is None:
        return False
    was, now = _train_of(newest.state, described)
    return is_recorded(was, now, position_over(newest, described))


def begun_like(run_dir: Path, data: Data) -> Begun:
    """Data of a new run over the spans that another run has trained on up to its newest commit, in the same order, with
    the same files and side files. Raises ValueError if there are none, or the copy of a side file is gone."""
    with hold(run_dir, "last") as held:
        state = held.manifest.state
        begun = begun_in(state["data"], run_dir)
    train = begun.splits["train"]
    if train.calendar is None:
        raise ValueError(f"--like {run_dir}: the training data of this run has no spans; leave --like out")
    num_begun, _ = begun_and_done(train.calendar.num_rows, state["workflow"]["schedule"]["epochs"], state["trained"])
    if not num_begun:
        raise ValueError(f"--like {run_dir}: this run has not trained on any span yet; train it first")
    sides = sides_in(state, num_begun, 0, run_dir / FOLDER)
    for _, digests in sides.before:
        with_copies(data, digests, run_dir / FOLDER)
    all_due = {"held": None, "unread": None, "num_closed": num_begun, "num_begun": num_begun}
    final = final_part(train, num_begun).model_copy(update=all_due)
    return replace(begun, splits={**begun.splits, "train": final}, sides=sides)


def check_alike(run_dir: Path, begun: Begun, now: Identity, data: Data) -> None:
    """Raises ValueError if files are gone or changed since `begun_like`'s run was trained on them."""
    for name, _ in begun.files("train"):
        if not is_file(place := place_of(name, data.root)):
            raise ValueError(f"--like {run_dir}: {place}, which it was trained on, is gone; put it back")
    if said := difference(begun.splits["train"], now["train"]):
        raise ValueError(f"--like {run_dir}: data.train: {said}; restore the file")


def check_newest(
    kept: Sequence[Manifest], described: Mapping[str, Any], agenda: Agenda, workflow: Workflow
) -> list[str]:
    """Check that the run may resume from the last of `kept` or, if nothing is left to train, that its results are those
    of the workflow. Returns warnings. Raises ValueError if this run may not resume, and Damaged if no run can."""
    newest, history = newest_state(kept), History()
    history.load(kept[-1].state)
    at = position_over(kept[-1], described)
    ended = at == agenda.end or BestEpoch(workflow).stops(history)
    warnings = check_same_run(kept[-1].state, described, at, workflow.model.kind, ended)
    with naming(kept[-1]):
        newest.check_trained(agenda.trained_before(at))
    return warnings


def read_commits(
    commits: Commits, identity: Identity, described: Mapping[str, Any], setup: Setup
) -> tuple[list[Manifest], History, list[str]]:
    """Return the kept commits, the history up to the last one, and warnings. Raises ValueError if this run may not
    resume from the last commit. `described`: its `description`."""
    kept = commits.kept()
    history = History({split: of_split.digest for split, of_split in identity.items()})
    history.spans = dict(enumerate(identity["train"].spans or ()))
    if not kept:
        return kept, history, []
    warnings = check_newest(kept, described, setup.agenda, setup.workflow)
    history.load(kept[-1].state)
    return kept, history, warnings


def known_speed(kept: Sequence[Manifest], direct: bool) -> DiskSpeed | None:
    """Disk speed from the last of `kept` if measured with the same storage.direct; else None."""
    known = dict(kept[-1].state["speed"]) if kept else {"direct": None}
    return DiskSpeed(**known) if known.pop("direct") == direct else None


def remove_leftovers(folder: Folder) -> None:
    """Delete temporary files and reserves of earlier sessions, including sessions with another number of workers."""
    for name in (*OUTPUTS, REPORT):
        if os.path.lexists(partial := folder.path / f"{name}.partial"):
            folder.files.remove(partial)
    for path in folder.path.iterdir():
        if RESERVE_NAME.fullmatch(path.name) and not path.is_dir():
            folder.files.remove(path)
