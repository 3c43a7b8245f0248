"""The Python interface: workflows and their parts, and functions that do what the commands do.

Importing this module changes no settings of the process and loads neither torch nor Arrow: functions, models and opened
runs import these on first use."""

# Type checkers take the models' names from `import *`, so `__all__` is the only list of them here.
# ruff: noqa: F403, F405

from __future__ import annotations

import sys

from pipeline.machine.process import NOT_LINUX, brief_spinning

if sys.platform != "linux":
    raise ImportError(NOT_LINUX)

import json
import re
from collections import abc
from collections.abc import Mapping
from contextlib import nullcontext, redirect_stdout
from importlib import import_module
from io import StringIO
from multiprocessing import current_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import COPY_IT, PipelineError, refuse_remote
from pipeline.features.settings import Bucket, Calendar, Cross, Lookup, Rare, Standardize
from pipeline.machine.process import keep_freed_memory, share_one_arena
from pipeline.machine.signals import interruption
from pipeline.monitor.observer import Observer
from pipeline.optim.scaling import scale_batch
from pipeline.run import say
from pipeline.settings.caps import Storage
from pipeline.settings.init_from import FromParquet, FromRun
from pipeline.settings.optimizer import (
    Adagrad,
    Adam,
    CowClip,
    DenseAdam,
    Ftrl,
    KStep,
    Optimizer,
    Plateau,
    RowStorage,
    RowWiseAdagrad,
    Sgd,
)
from pipeline.settings.tuning import Between, Tune
from pipeline.workflow import (
    Category,
    Commit,
    Data,
    Metrics,
    Model,
    Number,
    Schedule,
    Sequence,
    Synthetic,
    Task,
    Time,
    Workers,
    Workflow,
)  # fmt: skip

if TYPE_CHECKING:
    from pipeline.data.outside import BadValues
    from pipeline.models import *
    from pipeline.serving.open_servable import OpenServable, open_servable
    from pipeline.serving.opened import OpenRun, open_run
    from pipeline.serving.servable import Precision, ServableManifest

__all__ = [
    "AITM", "BST", "DCN", "DIEN", "DIN", "DNN", "ESMM", "FCN", "FM", "LR", "PLE", "Adagrad", "Adam", "AutoInt",
    "Between", "Bucket", "Calendar", "Category", "Commit", "CowClip", "Cross", "DCNMix", "DCNv2", "Data", "DeepFM",
    "DenseAdam", "FinalNet", "FromParquet", "FromRun", "Ftrl", "KStep", "Lookup", "MMoE", "MaskNet",
    "MeanPooling", "Metrics", "Model", "Number", "Observer", "OpenRun", "OpenServable", "Optimizer", "PipelineError",
    "Plateau", "Rare", "RowStorage", "RowWiseAdagrad", "SASRec", "Schedule", "Sequence", "ServableManifest", "Sgd",
    "SharedBottom", "Standardize", "Storage", "Synthetic", "Task", "Time", "Tune", "WideDeep", "Workers", "Workflow",
    "explain", "export", "load", "open_run", "open_servable", "rewind", "scale_batch", "score", "train", "xDeepFM",
]  # fmt: skip

FOUND_IN = {
    "OpenRun": "pipeline.serving.opened",
    "OpenServable": "pipeline.serving.open_servable",
    "ServableManifest": "pipeline.serving.servable",
    "open_run": "pipeline.serving.opened",
    "open_servable": "pipeline.serving.open_servable",
}
"""Module of each name that is imported on first use; all other such names are models."""

AnyWorkflow = Workflow | str | Path
"""A workflow, or the file that contains one."""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(FOUND_IN.get(name, "pipeline.models")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load(path: str | Path) -> Workflow:
    """Load the workflow of a Python, JSON or TOML file; FILE.py:NAME selects the value NAME instead of `workflow`.
    Raises ValueError, with file and line, if there is no workflow or it is invalid."""
    from pipeline.workflow import load as load_file

    return load_file(Path(path))


def train(
    workflow: AnyWorkflow, run_dir: str | Path | None = None, *, settings: Mapping[str, Any] | None = None,
    fresh: bool = False, serial: bool = False, workers: int | None = None, scheduler: str | None = None,
    dashboard: str | None = None, verbose: bool = True, observers: abc.Sequence[Observer] = (),
    extend: abc.Sequence[str | Path] = (), known_ok: bool = False, like: str | Path | None = None,
    as_is: abc.Sequence[str] = (), without: abc.Sequence[str] = (), close: bool = False,
) -> OpenRun:  # fmt: skip
    """Train, and return the run, opened at its best commit; close it, or use it in a `with` block.

    `run_dir`: folder for everything that the run writes (default: runs/NAME). `settings`: values of fields by path,
    such as {"optimizer.rows.lr": 0.01, "model.kind": MyModel}. `verbose`: False prints only warnings; during the call,
    the process's standard output is discarded. `observers`: called for each event of the training. `extend`: files,
    folders or patterns with which to continue the run, whose data must have spans. `known_ok`: skip files that the run
    has already trained on. `like`: folder of a run. `as_is`, `without`: names of spans. These and the other arguments
    are options of `pipeline run`. The call resumes the run of an earlier call.

    For the rest of the process, the C allocator keeps freed memory and uses one arena. Signal handlers and the
    environment are restored at the end.

    Raises ValueError if anything is wrong before training, and PipelineError if training fails (GuardStopped of
    `pipeline.spans.guard` if `metrics.guard` ends it). After Ctrl-C, raises KeyboardInterrupt, and after SIGTERM,
    SystemExit with code 143, when the planned blocks are trained and committed: the same call resumes from there, and
    `open_run(run_dir)` opens what is committed.
    """
    if getattr(current_process(), "_inheriting", False):
        # A worker process imports the script that started it, and must not train on its own.
        raise SystemExit('a worker imports this script: put pipeline.train under `if __name__ == "__main__":`')
    try:
        with brief_spinning(), nullcontext() if verbose else redirect_stdout(StringIO()):
            share_one_arena()
            found = with_settings(workflow, settings)
            # These import torch, Arrow and Dask.
            from pipeline.driver.finished import finished
            from pipeline.driver.resume import begun_of
            from pipeline.driver.session import open_session, plan_session
            from pipeline.serving.opened import open_run
            from pipeline.spans.waiting import Waiting

            keep_freed_memory()
            run_dir = Path(run_dir) if run_dir else None
            choices = {"as_is": as_is, "without": without}
            added = [*map(str, [extend] if isinstance(extend, str | Path) else extend)]
            goes_on = lists_again = True
            while goes_on:
                of_spans = added, known_ok, choices["as_is"], choices["without"], Path(like) if like else None, close
                session = plan_session(found, run_dir, serial, workers, scheduler, say, dashboard, fresh, *of_spans)
                if not fresh and (lines := finished(session)):
                    print(in_python("\n".join(lines)))
                    break
                with open_session(session, fresh) as driver:
                    driver.lists_again = lists_again
                    driver.runner.observers += observers
                    result = driver.run()
                    goes_on = bool(driver.held or driver.changed)
                    if result is None and not goes_on:
                        print(in_python(driver.what_is_kept()))
                    if driver.pauses.signal:
                        raise interruption(driver.pauses.signal)
                spans = begun_of(session.run_dir).waiting or Waiting(())
                choices = {name: [one for one in labels if one in spans] for name, labels in choices.items()}
                fresh, known_ok, lists_again = False, True, lists_again and not driver.changed
            return open_run(session.run_dir, workflow=found)
    except (ValueError, PipelineError) as error:
        if error.args and isinstance(error.args[0], str):
            error.args = in_python(error.args[0]), *error.args[1:]
        cause: BaseException = error
        while cause.__cause__:
            cause = cause.__cause__
        if isinstance(cause, FloatingPointError):
            # The message names the class and the line; the frames in between belong to this package.
            raise error.with_traceback(None) from None
        raise


def rewind(workflow: AnyWorkflow, span: str, run_dir: str | Path | None = None) -> None:
    """Take a run back to the commit before a span, as `pipeline run --rewind` does. Raises ValueError if that is not
    possible."""
    from pipeline.driver.rewind import rewind as go_back
    from pipeline.driver.session import folder_of_run

    folder = folder_of_run(with_settings(workflow), Path(run_dir) if run_dir else None)
    print(in_python("\n".join(go_back(folder, span))))


def explain(
    workflow: AnyWorkflow, run_dir: str | Path | None = None, *, settings: Mapping[str, Any] | None = None,
    serial: bool = False, workers: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return what `pipeline run --explain --json` prints: the workflow, the sizes of tiers and buffers, and the share
    of rows that would be in memory when they are needed, for these and other sizes. Reads keys of the data; writes
    nothing. Raises ValueError if anything is wrong with the run."""
    with brief_spinning():
        found = with_settings(workflow, settings)
        from pipeline.driver.session import plan_session
        from pipeline.preflight.explain import explained
        from pipeline.preflight.hit_curve import hit_curve

        session = plan_session(found, Path(run_dir) if run_dir else None, serial, workers, None, say)
        setup = session.set_up()
        return explained(setup) | {"hits": hit_curve(session.checked, setup).as_json(setup)}


def score(
    run: str | Path, data: str | abc.Sequence[str], out: str | Path, *, commit: str | int | None = None,
    keep: abc.Sequence[str] = (), workers: int | None = None, bad_values: BadValues = "clip", fresh: bool = False,
    workflow: AnyWorkflow | None = None,
) -> str:  # fmt: skip
    """Score Parquet files as the evaluation of a run does, and write one file of scores for each to the folder `out`.

    `data`: files, folders or globs. `commit`: "best", "last" or a number (default: best if there is one, else last).
    `keep`: columns to copy. `bad_values`: see `open_run`. `fresh`: first move the contents of `out` aside. `workflow`:
    the run's workflow if it defines the model class, or one with other caps.

    Returns a line with the metrics if the files have labels, else "". Raises ValueError if an argument or the data do
    not fit, PipelineError if scoring fails, and KeyboardInterrupt after a signal; the same call then scores the rest.
    """
    from pipeline.serving.commit import open_commit
    from pipeline.serving.scoring import ScoringOrder
    from pipeline.serving.scoring import score as score_files

    refuse_remote("out", out, way=COPY_IT)
    files = [data] if isinstance(data, str) else [*map(str, data)]
    opened = open_commit(Path(run), commit, _file_or_value(workflow))
    with opened.held:
        found = score_files(opened, ScoringOrder(files, Path(out), [*keep], workers, bad_values, fresh))
    if found is None:
        raise KeyboardInterrupt
    return found


def export(
    run: str | Path, out: str | Path, *, commit: str | int | None = None, precision: Precision = "float32",
    negatives: float = 1.0, memory: str | int = "1 GiB", publish: bool = False,
    workflow: AnyWorkflow | None = None,
) -> ServableManifest:  # fmt: skip
    """Write a servable of a run to the folder `out`: everything that scoring needs, without the run. Resumes an
    interrupted call, and does nothing if the servable exists.

    `negatives`: share of the negative examples that the training data kept; scores are corrected to all negatives.
    `memory`: for sorting rows. `publish`: name the servable in the file `current` of the folder that contains `out`,
    which servers read. `commit`, `workflow`: see `score`. Raises ValueError if an argument does not fit the run or
    `out` contains something else, and Damaged if the commit is damaged.
    """
    from pipeline.messages.sizes import bytes_of_memory
    from pipeline.serving.commit import open_commit
    from pipeline.serving.exporting import ExportSettings
    from pipeline.serving.exporting import export as export_commit
    from pipeline.serving.exporting import publish as name_current
    from pipeline.storage.lock import RunLock

    out = Path(out).absolute()
    opened = open_commit(Path(run), commit, _file_or_value(workflow))
    with opened.held, RunLock(out):
        settings = ExportSettings(precision=precision, negatives=negatives, memory=bytes_of_memory(memory))
        manifest = export_commit(opened, out, settings, lambda line: None)
    if publish:
        name_current(out.parent, out.name)
    return manifest


def _file_or_value(workflow: AnyWorkflow | None) -> Workflow | Path | None:
    return Path(workflow) if isinstance(workflow, str) else workflow


def with_settings(workflow: object, settings: Mapping[str, Any] | None = None) -> Workflow:
    """Return the workflow, or that of a file, with `settings` (values of fields by path) applied. Raises ValueError if
    it is not a workflow, or if a setting is wrong."""
    if not isinstance(workflow, Workflow | str | Path):
        raise ValueError(
            f"pipeline.train takes a workflow or the file of one, got a {type(workflow).__name__}; to train on "
            "a table, write it to a Parquet file; `pipeline init FILE` then writes a workflow"
        )
    found = workflow if isinstance(workflow, Workflow) else load(workflow)
    return found.with_settings(settings or {})


IN_PYTHON = (
    ("the same command", "the same call"), ("--fresh", "fresh=True"), ("--serial", "serial=True"),
    ("--out", "run_dir="), ("--workers", "workers="), ("--scheduler", "scheduler="), ("--workflow", "workflow="),
    ("--dashboard", "dashboard="), ("--extend", "extend="), ("--known-ok", "known_ok=True"), ("--set ", "settings: "),
    ("--as-is", "as_is="), ("--accept", "as_is="), ("--without", "without="), ("--close", "close=True"),
    ("--like", "like="), ("--rewind", "pipeline.rewind"),
)  # fmt: skip
SETTING = re.compile(r"--set (?:'([\w.]+)=([^']*)'|([\w.]+)=([^\s;,]+))")


def in_python(text: str) -> str:
    """Translate a command's message to Python: options become arguments of the call, and `--set a.b=c` becomes
    settings={"a.b": c}."""

    def setting(found: re.Match[str]) -> str:
        path, value = found[1] or found[3], found[2] if found[1] else found[4]
        try:
            return f"settings={{{path!r}: {json.loads(value)!r}}}"
        except ValueError:
            return f"settings={{{path!r}: {value!r}}}"

    text = SETTING.sub(setting, text)
    for option, argument in IN_PYTHON:
        text = text.replace(option, argument)
    return text
