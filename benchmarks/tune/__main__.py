"""`pipeline tune` against LightGBM and CatBoost that Optuna tunes with the same budget: trials or minutes, whichever
end first. Each is chosen by validation logloss and tested once.

    python -m benchmarks.tune [SET ...] [--data ../shared/data] [--trials 30] [--minutes 15] [--tools ours lightgbm ...]

The sets are those of `benchmarks.first_model`; ours begins from the workflow that `init` drafts, which on `frappe` is
the command's, and elsewhere the study's copy of it. `lightgbm` and `catboost`, which the project does not install, are
left out if they are not there. Every result is kept in --out and not made again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, finish
from benchmarks.first_model.columns import written
from benchmarks.first_model.peers import labels_of, logloss, tabular
from benchmarks.first_model.rules import DRAFTED, workflow_of
from benchmarks.first_model.sets import SPLITS, Rows, data_set
from benchmarks.once import Json, once, read
from pipeline.doctor.measures import rank_auc

SETS, QUICK_SETS = ["criteo", "census", "kuairand_liked", "frappe"], ["linear_3k"]
FIGURES = ("validation", "auc", "logloss")


def ours(rows: Rows, args: argparse.Namespace, folder: Path) -> Json:
    """Tune the drafted workflow in a process, as a user would."""
    workflow = drafted(rows, args, folder)
    command = [sys.executable, "-m", "pipeline", "tune", str(workflow), "--out", str(folder / "study"), "--json"]
    command += ["--trials", str(args.trials), "--hours", str(args.minutes / 60), "--parallel", str(args.parallel)]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return {
        "validation": found["best"]["value"], "auc": found["test"]["auc"], "logloss": found["test"]["logloss"],
        "trials": len(found["trials"]), "setting": found["best"]["settings"],
    }  # fmt: skip


def drafted(rows: Rows, args: argparse.Namespace, folder: Path) -> Path:
    """File of the workflow to begin from."""
    folder.mkdir(parents=True, exist_ok=True)
    if rows.name == "frappe":
        path = folder / "frappe.py"
        command = [
            sys.executable,
            "-m",
            "pipeline",
            "init",
            str(args.data / "frappe_x1"),
            "--out",
            str(path),
            "--fresh",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return path
    labels_N = labels_of(rows, "train")
    data = written(rows, DRAFTED.numbers, folder.absolute()).model_copy(update={"test": ("test.parquet",)})
    workflow = workflow_of(DRAFTED, data, len(labels_N), float(labels_N.mean()), seed=1)
    path = folder / f"{rows.name}.json"
    path.write_text(workflow.model_dump_json(indent=1))
    return path


def lightgbm(rows: Rows, args: argparse.Namespace, folder: Path) -> Json:
    """Trees of LightGBM, stopped early."""
    import lightgbm as tool

    frames, labels = tabular(rows, False), {split: labels_of(rows, split) for split in SPLITS}
    names = list(rows.categories)

    def fitted(trial: Any) -> Callable[[str], Any]:
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
        model = tool.train(settings, train, 3000, [held], callbacks=[tool.early_stopping(100, verbose=False)])
        return lambda split: np.asarray(model.predict(frames[split]))

    return tuned(rows, args, fitted)


def catboost(rows: Rows, args: argparse.Namespace, folder: Path) -> Json:
    """Trees of CatBoost, stopped early."""
    from catboost import CatBoostClassifier, Pool

    frames = tabular(rows, True)
    pools = {split: Pool(frames[split], labels_of(rows, split), cat_features=list(rows.categories)) for split in SPLITS}

    def fitted(trial: Any) -> Callable[[str], Any]:
        model = CatBoostClassifier(
            iterations=2000, thread_count=args.threads, verbose=False, allow_writing_files=False, random_seed=1,
            learning_rate=trial.suggest_float("learning_rate", 0.01, 0.3, log=True),
            depth=trial.suggest_int("depth", 3, 10),
            l2_leaf_reg=trial.suggest_float("l2_leaf_reg", 0.1, 100.0, log=True),
            random_strength=trial.suggest_float("random_strength", 0.0, 10.0),
            bagging_temperature=trial.suggest_float("bagging_temperature", 0.0, 2.0),
            one_hot_max_size=trial.suggest_int("one_hot_max_size", 2, 64, log=True),
        )  # fmt: skip
        model.fit(pools["train"], eval_set=pools["validation"], early_stopping_rounds=50)
        return lambda split: model.predict_proba(pools[split])[:, 1]

    return tuned(rows, args, fitted)


def tuned(rows: Rows, args: argparse.Namespace, fitted: Callable[[Any], Callable[[str], Any]]) -> Json:
    """Tune a tool by TPE. `fitted`: trains a trial's model, and returns its probabilities by split."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    best: dict[str, Any] = {}

    def objective(trial: Any) -> float:
        predict = fitted(trial)
        loss = logloss(labels_of(rows, "validation"), predict("validation"))
        if loss < best.get("validation", np.inf):
            best.update(validation=loss, predict=predict, setting=trial.params)
        return loss

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=args.trials, timeout=60 * args.minutes)
    labels_N, p_N = labels_of(rows, "test"), best["predict"]("test")
    return {
        "validation": best["validation"], "auc": rank_auc(p_N, labels_N > 0), "logloss": logloss(labels_N, p_N),
        "trials": len(study.trials), "setting": best["setting"],
    }  # fmt: skip


TOOLS = {"ours": ours, "lightgbm": lightgbm, "catboost": catboost}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"default: {', '.join(SETS)}")
    parser.add_argument("--tools", nargs="*", default=list(TOOLS), choices=list(TOOLS), metavar="TOOL")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--parallel", type=int, default=1, help="trials of ours at a time")
    parser.add_argument("--threads", type=int, default=2, help="threads of the other tools")
    parser.add_argument("--out", type=Path, default=Path("runs/tune"), help="where results are kept")
    parser.set_defaults(data=Path("../shared/data"))


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
            once(path, lambda tool=tool, name=name, rows=rows: TOOLS[tool](rows, args, args.out / name))
            found = read(path) or {}
            print(
                f"{name:16} {tool:9} {found['trials']:3} trials  " + "  ".join(f"{f} {found[f]:.4f}" for f in FIGURES)
            )
            figures |= {f"{name} {tool} {figure}": found[figure] for figure in FIGURES}
    finish(args, figures)


if __name__ == "__main__":
    main()
