"""`pipeline tune` against LightGBM and CatBoost, tuned by Optuna with the same budget: trials or minutes of CPU time,
whichever is used up first. Each starts from its defaults, is chosen by validation logloss and tested once. A trial that
is running when time is up is finished; one of trees ends after another half of the time.

    python -m benchmarks.tune [SET ...] [--data ../shared/data] [--trials 30] [--minutes 15] [--tools ours lightgbm ...]

The sets are those of `benchmarks.first_model`. Ours starts from the workflow drafted by `init`: on `frappe` by the
command, elsewhere the study's copy of it. Trees, which cannot read lists, get the length and last value of each list;
ours gets the lists and the last values. `lightgbm` and `catboost`, which the project does not install, are omitted if
missing. Every result is kept in --out and not recomputed. For each tool, the table shows the difference between our
test AUC and its, with a 90 % interval from a paired bootstrap over test rows.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, finish
from benchmarks.first_model.__main__ import differences
from benchmarks.first_model.columns import with_last, written
from benchmarks.first_model.peers import labels_of, logloss, tabular
from benchmarks.first_model.rules import DRAFTED, workflow_of
from benchmarks.first_model.sets import SPLITS, Rows, data_set
from benchmarks.once import Json, once, read
from pipeline.init.measures import rank_auc
from pipeline.records import Array

SETS, QUICK_SETS = ["criteo", "census", "kuairand_liked", "frappe"], ["linear_3k"]
FIGURES = ("validation", "auc", "logloss", "trials", "minutes")
TREES_END = 1.5
"""Multiple of the budget after which a training of trees ends."""


def ours(rows: Rows, args: argparse.Namespace, folder: Path) -> Json:
    """Tune the drafted workflow in a separate process, as a user would."""
    rows = with_last(rows)
    workflow = drafted(rows, args, folder)
    command = [sys.executable, "-m", "pipeline", "tune", str(workflow), "--out", str(folder / "study"), "--json"]
    command += ["--trials", str(args.trials), "--parallel", str(args.parallel)]
    command += ["--set", f"schedule.threads={args.threads}"]
    code, said = until(command, 60 * args.minutes)
    if code == 128 + signal.SIGINT:
        # Finishes the round that was interrupted, and tests.
        code, said = until([*command, "--hours", "1e-9"], np.inf)
    if code:
        raise SystemExit(f"pipeline tune ended with code {code}")
    found = json.loads(said)
    return {
        "validation": found["best"]["value"],
        "trials": len(found["trials"]),
        "setting": found["best"]["settings"],
    } | (tested(rows, scores_of(Path(found["best"]["run_dir"]), rows), folder.with_name(f"{rows.name}, ours.npy")))


def until(command: list[str], seconds: float) -> tuple[int, str]:
    """Run a command, and interrupt it when it and its children have used this much CPU time. Returns its exit code and
    output."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while True:
        try:
            said = process.communicate(timeout=1.0)[0]
            return process.returncode, said
        except subprocess.TimeoutExpired:
            if processor_seconds(process.pid) > seconds:
                process.send_signal(signal.SIGINT)
                seconds = np.inf


def processor_seconds(pid: int) -> float:
    """CPU time of a process and its children, including ended ones; 0 if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + sum(processor_seconds(int(c)) for c in children)


def scores_of(run_dir: Path, rows: Rows) -> Array:
    """Probabilities that a run predicts for the rows of the test split."""
    import pipeline.api

    with pipeline.api.open_run(run_dir) as run:
        return np.asarray(run.predict(rows.splits["test"]).column(f"{rows.label}.probability"))


def tested(rows: Rows, p_N: Array, path: Path) -> Json:
    """Figures of the test split. Writes the scores to `path`."""
    np.save(path, p_N.astype(np.float32))
    labels_N = labels_of(rows, "test")
    return {"auc": rank_auc(p_N, labels_N > 0), "logloss": logloss(labels_N, p_N)}


def drafted(rows: Rows, args: argparse.Namespace, folder: Path) -> Path:
    """File of the workflow from which to start."""
    folder.mkdir(parents=True, exist_ok=True)
    if rows.name == "frappe":
        path = folder / "frappe.py"
        if not path.exists():
            command = [sys.executable, "-m", "pipeline", "init", str(args.data / "frappe_x1"), "--out", str(path)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return path
    labels_N = labels_of(rows, "train")
    num_buckets = DRAFTED.num_buckets_for(len(labels_N))
    data = written(rows, DRAFTED.numbers, num_buckets, folder.absolute()).model_copy(update={"test": ("test.parquet",)})
    workflow = workflow_of(DRAFTED, data, len(labels_N), float(labels_N.mean()), seed=1)
    path = folder / f"{rows.name}.json"
    path.write_text(workflow.model_dump_json(indent=1))
    return path


def lightgbm(rows: Rows, args: argparse.Namespace, folder: Path) -> Json:
    """Trees of LightGBM, stopped early."""
    import lightgbm as tool

    frames, labels = tabular(rows, False), {split: labels_of(rows, split) for split in SPLITS}
    names = list(rows.categories)

    def fitted(trial: Any, end: float) -> Callable[[str], Any]:
        def stop(now: Any) -> None:
            if time.process_time() > end:
                raise tool.callback.EarlyStopException(now.iteration, now.evaluation_result_list)

        settings = {
            "objective": "binary", "num_threads": args.threads, "verbose": -1, "seed": 1,
            "learning_rate": trial.suggest_float("learning_rate", 0.01, 0.3, log=True),
            "num_leaves": trial.suggest_int("num_leaves", 4, 256, log=True),
            "min_data_in_leaf": trial.suggest_int("min_data_in_leaf", 1, 200, log=True),
            "feature_fraction": trial.suggest_float("feature_fraction", 0.3, 1.0),
            "bagging_fraction": trial.suggest_float("bagging_fraction", 0.4, 1.0), "bagging_freq": 1,
            "lambda_l1": trial.suggest_float("lambda_l1", 1e-8, 10.0, log=True),
            "lambda_l2": trial.suggest_float("lambda_l2", 1e-8, 100.0, log=True),
            "cat_smooth": trial.suggest_float("cat_smooth", 1.0, 200.0, log=True),
            "cat_l2": trial.suggest_float("cat_l2", 0.1, 200.0, log=True),
        }  # fmt: skip
        train = tool.Dataset(frames["train"], labels["train"], categorical_feature=names)
        held = tool.Dataset(frames["validation"], labels["validation"], reference=train, categorical_feature=names)
        stops = [tool.early_stopping(100, verbose=False), stop]
        model = tool.train(settings, train, 3000, [held], callbacks=stops)
        return lambda split: np.asarray(model.predict(frames[split]))

    defaults = {
        "learning_rate": 0.05, "num_leaves": 31, "min_data_in_leaf": 20, "feature_fraction": 1.0,
        "bagging_fraction": 1.0, "lambda_l1": 1e-8, "lambda_l2": 1e-8, "cat_smooth": 10.0, "cat_l2": 10.0,
    }  # fmt: skip
    return tuned(rows, args, fitted, defaults, folder.with_name(f"{rows.name}, lightgbm.npy"))


def catboost(rows: Rows, args: argparse.Namespace, folder: Path) -> Json:
    """Trees of CatBoost, stopped early."""
    from catboost import CatBoostClassifier, Pool

    frames = tabular(rows, True)
    pools = {split: Pool(frames[split], labels_of(rows, split), cat_features=list(rows.categories)) for split in SPLITS}

    def fitted(trial: Any, end: float) -> Callable[[str], Any]:
        class Stop:
            def after_iteration(self, now: Any) -> bool:
                return time.process_time() <= end

        model = CatBoostClassifier(
            iterations=2000, thread_count=args.threads, verbose=False, allow_writing_files=False, random_seed=1,
            learning_rate=trial.suggest_float("learning_rate", 0.01, 0.3, log=True),
            depth=trial.suggest_int("depth", 3, 10),
            l2_leaf_reg=trial.suggest_float("l2_leaf_reg", 0.1, 100.0, log=True),
            random_strength=trial.suggest_float("random_strength", 0.0, 10.0),
            bagging_temperature=trial.suggest_float("bagging_temperature", 0.0, 2.0),
            one_hot_max_size=trial.suggest_int("one_hot_max_size", 2, 64, log=True),
        )  # fmt: skip
        model.fit(pools["train"], eval_set=pools["validation"], early_stopping_rounds=50, callbacks=[Stop()])
        return lambda split: model.predict_proba(pools[split])[:, 1]

    defaults = {
        "learning_rate": 0.05, "depth": 6, "l2_leaf_reg": 3.0, "random_strength": 1.0, "bagging_temperature": 1.0,
        "one_hot_max_size": 2,
    }  # fmt: skip
    return tuned(rows, args, fitted, defaults, folder.with_name(f"{rows.name}, catboost.npy"))


def tuned(
    rows: Rows, args: argparse.Namespace, fitted: Callable[[Any, float], Callable[[str], Any]],
    defaults: dict[str, Any], path: Path,
) -> Json:  # fmt: skip
    """Tune a tool with TPE, from its `defaults`. `fitted`: trains a trial's model, up to the given CPU time, and
    returns its probabilities by split. Writes test scores to `path`."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    best: dict[str, Any] = {}
    begun, seconds = time.process_time(), 60 * args.minutes

    def objective(trial: Any) -> float:
        predict = fitted(trial, begun + TREES_END * seconds)
        loss = logloss(labels_of(rows, "validation"), predict("validation"))
        if loss < best.get("validation", np.inf):
            best.update(validation=loss, predict=predict, setting=trial.params)
        return loss

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.enqueue_trial(defaults)
    for _ in range(args.trials):
        study.optimize(objective, n_trials=1)
        if time.process_time() > begun + seconds:
            break
    return {"validation": best["validation"], "trials": len(study.trials), "setting": best["setting"]} | (
        tested(rows, best["predict"]("test"), path)
    )


TOOLS = {"ours": ours, "lightgbm": lightgbm, "catboost": catboost}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"default: {', '.join(SETS)}")
    parser.add_argument("--tools", nargs="*", default=list(TOOLS), choices=list(TOOLS), metavar="TOOL")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=15.0, help="processor time of each tool")
    parser.add_argument("--parallel", type=int, default=1, help="trials of ours at a time")
    parser.add_argument("--threads", type=int, default=1, help="threads of each tool")
    parser.add_argument("--out", type=Path, default=Path("runs/tune"), help="where results are kept")
    parser.set_defaults(data=Path("../shared/data"))


def timed(tool: Callable[..., Json], rows: Rows, args: argparse.Namespace) -> Json:
    """Figures of a tool, with the CPU time in minutes that it took, including testing."""

    def spent() -> float:
        return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))

    begun = spent()
    found = tool(rows, args, args.out / rows.name)
    return found | {"minutes": (spent() - begun) / 60}


def main() -> None:
    args = arguments("tune", "tuning, against tuned trees", options)
    sets = args.sets or SETS
    if args.quick:
        sets, args.out, args.trials, args.tools = QUICK_SETS, args.data / "tune", 2, ["ours"]
    figures: dict[str, float] = {}
    for name in sets:
        rows = data_set(name, args.data)
        for tool in args.tools:
            if tool != "ours" and find_spec(tool) is None:
                print(f"{tool} is not installed, and is left out")
                continue
            path = args.out / f"{name}, {tool}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            once(path, lambda tool=tool, rows=rows: timed(TOOLS[tool], rows, args))
            found = read(path) or {}
            print(f"{name:16} {tool:9} {'  '.join(f'{f} {found[f]:.4f}' for f in FIGURES)}", flush=True)
            figures |= {f"{name} {tool} {figure}": found[figure] for figure in FIGURES}
            scores = {of: args.out / f"{name}, {of}.npy" for of in ("ours", tool)}
            if tool != "ours" and scores["ours"].exists():
                more = differences(labels_of(rows, "test"), *([np.load(path)] for path in scores.values()))
                print("{:16} AUC of ours: {:+.4f} [{:+.4f}, {:+.4f}]".format("", *more), flush=True)
                ends = ("", ", low", ", high")
                figures |= {f"{name} AUC more than {tool}{e}": of for e, of in zip(ends, more, strict=True)}
    finish(args, figures)


if __name__ == "__main__":
    main()
