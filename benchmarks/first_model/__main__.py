"""Which rules of thumb make a first model as accurate as other tools: each rule on each data set, one at a time.

    python -m benchmarks.first_model [SET ...] [--data ../shared/data] [--rules drafted log ...] [--peers lr ...]

Without set names, it uses the choosing half. Every training is one call of `pipeline.train` in this process, stopped by
validation logloss; its figures and test scores are kept in --out and not recomputed. Each row shows the validation
logloss, by which rules are chosen, and the AUC and logloss of the test split, as means over the seeds. With `--against
NAME` it also shows the difference in test AUC from that rule or tool, with a 90 % interval from a paired bootstrap over
test rows.

`--peers` needs the packages of the tools, which the project does not install: scikit-learn, lightgbm, catboost,
vowpalwabbit. `--judge` scores the judging half, which is done only once, when all rules are chosen.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, finish
from benchmarks.first_model.columns import written
from benchmarks.first_model.peers import PEERS, labels_of, logloss
from benchmarks.first_model.rules import CHANGED, DRAFTED, Recipe, workflow_of
from benchmarks.first_model.sets import CHOOSING, JUDGING, LARGE, Rows, data_set, names_of
from benchmarks.once import Json, once, read
from pipeline.init.measures import rank_auc
from pipeline.records import Array

RULES = {name: replace(DRAFTED, **changes) for name, changes in CHANGED.items()}
CANDIDATES = ("LR, l2 10 / n", "LR, l2 2 / n", "drafted", "row rate 3e-3")
"""Rules that `init` tries (see `pipeline.init.trial.candidates`)."""
QUICK_SETS, QUICK_RULES = ["linear_3k"], ["drafted", "LR, l2 10 / n"]
DRAWS = 500


class Study:
    def __init__(self, data: Path, out: Path) -> None:
        self._data, self._out = data, out
        self._loaded: dict[str, Rows] = {}

    def rows(self, name: str) -> Rows:
        if name not in self._loaded:
            self._loaded = {name: data_set(name, self._data)}
        return self._loaded[name]

    def path(self, name: str, of: str, seed: int) -> Path:
        return self._out / f"{name}, {of.replace('/', 'by')}, {seed}.json"

    def train(self, name: str, rule: str, recipe: Recipe, seed: int) -> None:
        path = self.path(name, rule, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        once(path, lambda: self._trained(name, recipe, seed, path))

    def _trained(self, name: str, recipe: Recipe, seed: int, path: Path) -> Json:
        import pipeline.api

        rows = self.rows(name)
        labels_N = labels_of(rows, "train")
        data = written(rows, recipe.numbers, recipe.num_buckets_for(len(labels_N)), self._out / "data", recipe.at_least)
        workflow = workflow_of(recipe, data, len(labels_N), float(labels_N.mean()), seed)
        run_dir = path.with_suffix(".run")
        shutil.rmtree(run_dir, ignore_errors=True)
        with pipeline.api.train(workflow, run_dir, verbose=False, serial=True) as run:
            scores = {split: run.predict(_table(data.root, split)) for split in ("validation", "test")}
        result = read(run_dir / "result.json") or {}
        validated = [e["logloss"] for e in result["epochs"] if e["split"] == "validation"]
        shutil.rmtree(run_dir)
        given = {split: np.asarray(of.column(f"{rows.label}.probability")) for split, of in scores.items()}
        return self._judged(rows, given["validation"], given["test"], path) | {
            "epochs": len(validated), "best": int(np.argmin(validated)) + 1
        }  # fmt: skip

    def peer(self, name: str, tool: str) -> None:
        path = self.path(name, tool, 0)
        path.parent.mkdir(parents=True, exist_ok=True)

        def work() -> Json:
            scored = PEERS[tool](self.rows(name))
            return self._judged(self.rows(name), scored.validation, scored.test, path) | {"setting": scored.setting}

        once(path, work)

    def _judged(self, rows: Rows, validation_N: Array, test_N: Array, path: Path) -> Json:
        np.save(path.with_suffix(".npy"), test_N.astype(np.float32))
        labels_N = labels_of(rows, "test")
        return {
            "validation": logloss(labels_of(rows, "validation"), validation_N),
            "logloss": logloss(labels_N, test_N),
            "auc": rank_auc(test_N, labels_N > 0),
        }

    def found(self, name: str, of: str) -> tuple[list[Json], list[Array]]:
        """Figures and test scores of a rule or tool, for all seeds that were run."""
        begin = f"{name}, {of.replace('/', 'by')}, "
        paths = [path for path in sorted(self._out.glob("*.json")) if path.stem.removeprefix(begin).isdigit()]
        return [read(path) or {} for path in paths], [np.load(path.with_suffix(".npy")) for path in paths]


def _table(root: Path, split: str) -> Any:
    import pyarrow.parquet as pq

    return pq.read_table(root / f"{split}.parquet")


def differences(labels_N: Array, ours: Sequence[Array], theirs: Sequence[Array]) -> tuple[float, float, float]:
    """Difference in mean AUC between two lists of scores of the same rows, and its 90 % interval from a paired
    bootstrap over rows."""
    rng, positive_N = np.random.default_rng(0), labels_N > 0

    def difference(rows_N: Array) -> float:
        means = [np.mean([rank_auc(of[rows_N], positive_N[rows_N]) for of in some]) for some in (ours, theirs)]
        return float(means[0] - means[1])

    every_N = np.arange(len(labels_N))
    drawn = [difference(rng.choice(every_N, len(every_N))) for _ in range(DRAWS)]
    return difference(every_N), float(np.quantile(drawn, 0.05)), float(np.quantile(drawn, 0.95))


def show(study: Study, name: str, order: Sequence[str], against: str | None) -> dict[str, float]:
    """Print the table of a data set, and return its figures."""
    labels_N, figures = labels_of(study.rows(name), "test"), {}
    rate = float(labels_of(study.rows(name), "train").mean())
    print(f"\n{name}: base rate {rate:.4f}, its logloss {logloss(labels_N, np.full(len(labels_N), rate)):.4f}")
    print(f"{'':26} {'validation':>10} {'auc':>7} {'logloss':>8}  epochs")
    other = study.found(name, against)[1] if against else []
    for of in order:
        results, scores = study.found(name, of)
        if not results:
            continue
        mean = {key: statistics.mean(result[key] for result in results) for key in ("validation", "auc", "logloss")}
        ran = ", ".join(f"{r['best']} of {r['epochs']}" if "best" in r else r["setting"] for r in results)
        line = f"{of:26} {mean['validation']:10.4f} {mean['auc']:7.4f} {mean['logloss']:8.4f}  {ran}"
        if other and of != against:
            line += "  {:+.4f} [{:+.4f}, {:+.4f}]".format(*differences(labels_N, scores, other))
        print(line)
        figures |= {f"{name} {of} {key}": value for key, value in mean.items()}
    return figures


def compared(study: Study, name: str) -> dict[str, float]:
    """Compare the choice of `init`, the candidate with the lowest validation logloss for the first seed, with the tool
    with the lowest validation logloss: difference in AUC with its interval, and ratio of the loglosses."""
    ours = {of: study.found(name, of) for of in CANDIDATES}
    theirs = {tool: study.found(name, tool) for tool in PEERS}
    if not all(results for results, _ in ours.values()) or not any(results for results, _ in theirs.values()):
        return {}
    taken = min(ours, key=lambda of: ours[of][0][0]["validation"])
    best = min((tool for tool in theirs if theirs[tool][0]), key=lambda tool: theirs[tool][0][0]["validation"])
    (results, scores), (peer, peer_scores) = ours[taken], theirs[best]
    more, low, high = differences(labels_of(study.rows(name), "test"), scores, peer_scores)
    loss = statistics.mean(result["logloss"] for result in results)
    ratio = loss / peer[0]["logloss"]
    auc = statistics.mean(result["auc"] for result in results)
    print(
        f"first model ({taken}, {len(results)} seeds): {auc:.4f} / {loss:.4f}; {best}: {peer[0]['auc']:.4f} / "
        f"{peer[0]['logloss']:.4f}; AUC {more:+.4f} [{low:+.4f}, {high:+.4f}], logloss x {ratio:.4f}"
    )
    values = {"AUC": auc, "AUC more": more, "AUC more, high": high, "logloss ratio": ratio}
    return {f"{name} {key}": value for key, value in values.items()}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"any of {', '.join(names_of(CHOOSING + LARGE))}")
    parser.add_argument("--rules", nargs="*", default=list(RULES), choices=list(RULES), metavar="RULE")
    parser.add_argument("--peers", nargs="*", default=[], choices=list(PEERS), metavar="TOOL")
    parser.add_argument("--seeds", nargs="*", type=int, default=[1])
    parser.add_argument("--against", metavar="NAME", help="the rule or tool that all are compared with")
    parser.add_argument("--out", type=Path, default=Path("runs/first_model"), help="where results are kept")
    parser.add_argument("--judge", action="store_true", help="take the judging half; once, at the end")
    parser.set_defaults(data=Path("../shared/data"))


def main() -> None:
    args = arguments("first_model", "rules of thumb of a first model", options)
    half = JUDGING if args.judge else CHOOSING
    sets, rules = args.sets or names_of(half), args.rules
    if args.quick:
        sets, rules, args.out = QUICK_SETS, QUICK_RULES, args.data / "first_model"
    if outside := [name for name in sets if name not in names_of((*half, *LARGE))]:
        raise SystemExit(f"{', '.join(outside)}: not in the half that is run; it has {', '.join(names_of(half))}")
    study, figures = Study(args.data, args.out), dict[str, float]()
    for name in sets:
        for tool in args.peers:
            with suppress(ImportError):
                study.peer(name, tool)
        for rule in rules:
            for seed in args.seeds:
                study.train(name, rule, RULES[rule], seed)
        figures |= show(study, name, [*PEERS, *rules], args.against) | compared(study, name)
    finish(args, figures)


if __name__ == "__main__":
    main()
