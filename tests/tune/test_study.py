"""A study's trials depend on its seed and on earlier rounds alone: kills, sessions and processes change none."""

import json
import random
from pathlib import Path

import pytest
from support.depth import some
from support.faults.kills import Dying, Killed
from support.runs.studies import make_up, run_here, start_with, trials_of, tune

pytest.importorskip("optuna")

from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial

from pipeline.driver.result import read_result
from pipeline.monitor.history import History
from pipeline.monitor.runs import find_runs
from pipeline.serving.commit import open_commit
from pipeline.storage.files import Files
from pipeline.tune.records import Order, Record, Verdict, lines_of, losses_in, reports_of
from pipeline.tune.study import DRAWN_NEAR, FIRST_TRIALS, bounds_of
from pipeline.tune.trial import Watch, verdict_of
from pipeline.workflow import load

TRIALS, PARALLEL = 14, 2
SPACE = """
from pipeline.api import Between, Tune
tune = Tune(space={"optimizer.rows.lr": Between(low=1e-4, high=1e-1, log=True), "model.embedding_dim": [2, 4, 8],
                   "model.kind": ["DeepFM", "FM"]})
"""


@pytest.fixture
def study_file(workflow_file):
    workflow_file.write_text(workflow_file.read_text() + SPACE)
    return workflow_file


@pytest.fixture
def undisturbed(study_file, tmp_path, monkeypatch):
    make_up(monkeypatch)
    tune(study_file, tmp_path / "whole", "--trials", TRIALS, "--parallel", PARALLEL)
    return trials_of(tmp_path / "whole")


class Journal:
    """Appends to the journal that are system calls of a process that dies: one in two is torn."""

    def __init__(self, system, rng):
        self._system, self._rng, self._really = system, rng, JournalFileBackend.append_logs

    def __call__(self, backend, logs):
        try:
            self._system.live()
        except Killed:
            if self._rng.random() < 0.5:
                with open(backend._file_path, "ab") as file:
                    file.write(json.dumps(logs[0]).encode()[:9])
            raise
        self._really(backend, logs)


@pytest.mark.parametrize("seed", some(range(12), 0))
def test_a_study_killed_again_and_again_equals_an_undisturbed_one(study_file, undisturbed, tmp_path, seed):
    rng, kills = random.Random(seed), 0
    while True:
        system = Dying(rng.randrange(1, 150))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Files, "system", system)
            journal = Journal(system, rng)
            patch.setattr(JournalFileBackend, "append_logs", lambda *args, journal=journal: journal(*args))
            try:
                tune(study_file, tmp_path / "killed", "--trials", TRIALS, "--parallel", PARALLEL)
                break
            except Killed:
                kills += 1
    assert kills > 1
    assert trials_of(tmp_path / "killed") == undisturbed


def test_the_study_has_all_kinds_of_trials(undisturbed):
    assert {state for _, state, *_ in undisturbed} == {"COMPLETE", "PRUNED", "FAIL"}
    own = {"optimizer.rows.lr": 0.001, "model.embedding_dim": 2, "model.kind": "DeepFM"}
    assert [params for _, _, params, *_ in undisturbed[:2]] == [own, own | {"model.kind": "FM"}]


def test_hours_end_a_study_after_a_round(study_file, undisturbed, tmp_path, capsys):
    tune(study_file, tmp_path / "short", "--trials", TRIALS, "--parallel", PARALLEL, "--hours", 1e-9)
    assert trials_of(tmp_path / "short") == undisturbed[:PARALLEL]
    assert "the same command continues for as long again" in capsys.readouterr().err


def test_another_seed_draws_other_trials(study_file, undisturbed, tmp_path):
    tune(study_file, tmp_path / "other", "--trials", 4, "--parallel", PARALLEL, "--seed", 1)
    found = trials_of(tmp_path / "other")
    assert found[0] == undisturbed[0]
    assert found[1:] != undisturbed[1:4]


def test_the_first_trials_differ_from_the_workflow_in_few_values(workflow_file, tmp_path, monkeypatch):
    start_with(monkeypatch, lambda order, record: Verdict(state="complete", value=1.0))
    names = ["optimizer.rows.lr", "optimizer.rows.l2", "optimizer.dense.lr", "optimizer.dense.l2", "model.init_std"]
    names.append("model.initial_bias")
    space = ", ".join(f"{name!r}: Between(low=1e-5, high=1e-1, log=True)" for name in names)
    text = f"from pipeline.api import Between, Tune\ntune = Tune(space={{{space}}})\n"
    workflow_file.write_text(f"{workflow_file.read_text()}\n{text}")
    tune(workflow_file, tmp_path / "out", "--trials", DRAWN_NEAR + 4)
    own, *others = [params for _, _, params, *_ in trials_of(tmp_path / "out")]
    changes = [sum(value != own[name] for name, value in params.items()) for params in others]
    assert {*changes[: DRAWN_NEAR - 1]} == {2}
    assert max(changes[DRAWN_NEAR - 1 :]) > 2
    assert len({name for params in others[: DRAWN_NEAR - 1] for name in names if params[name] != own[name]}) > 4


def test_the_first_trials_see_each_kind_of_model_once(workflow_file, tmp_path, monkeypatch):
    bounds = {}

    def verdict(order, record):
        bounds[int(record.name)] = order.bounds
        return Verdict(state="complete", value=1.0, reports={4: 1.0})

    start_with(monkeypatch, verdict)
    orders = set()
    for seed in range(3):
        bounds.clear()
        tune(workflow_file, tmp_path / f"{seed}", "--trials", 8, "--parallel", PARALLEL, "--seed", seed)
        kinds = [params["model.kind"] for _, _, params, *_ in trials_of(tmp_path / f"{seed}")][:6]
        orders.add(tuple(kinds))
        assert kinds[0] == "DeepFM", "the workflow's own"
        assert sorted(kinds) == ["DCNv2", "DNN", "DeepFM", "FM", "FinalNet", "LR"]
        assert [bool(bounds[number]) for number in range(8)] == [False] * 6 + [True] * 2
    assert len(orders) > 1


def test_the_table_is_in_the_order_of_what_trials_are_judged_by(workflow_file, tmp_path, monkeypatch, capsys):
    """An initial bias moves the logloss alone: by AUC the trials would be in the order of their numbers."""
    run_here(monkeypatch)
    space = 'tune = Tune(space={"model.initial_bias": [5.0, 0.1, -3.0]})'
    workflow_file.write_text(f"{workflow_file.read_text()}\nfrom pipeline.api import Tune\n{space}\n")
    still = ("--set", "model.initial_bias=5.0", "--set", "optimizer.rows.lr=1e-9", "--set", "optimizer.dense.lr=1e-9")
    tune(workflow_file, tmp_path / "out", "--trials", 4, *still)
    table, _, _ = capsys.readouterr().out.partition("the best of 4 trials")
    assert "best logloss of validation first" in table
    values = {number: values[0] for number, _, _, values, *_ in trials_of(tmp_path / "out")}
    order = [int(line.split()[0]) for line in table.splitlines() if line[:3].isdigit()]
    assert order == sorted(values, key=values.get)
    assert order[0] > 0


def complete(*reports):
    return [create_trial(state=TrialState.COMPLETE, value=1.0, intermediate_values=of) for of in reports]


def test_bounds_are_the_median_of_the_best_validations_so_far():
    trials = complete(*({1: 9 + n, 4: n, 8: n - 2, 12: n + 5} for n in range(5)))
    assert bounds_of(trials, "logloss") == {1: 12, 4: 2, 8: 0, 12: 0}
    assert bounds_of(trials[: FIRST_TRIALS - 1], "logloss") == {}
    ended = complete({4: 3}, {4: 3}, {4: 3}, {4: 5, 8: 1})
    assert bounds_of(ended, "logloss") == {4: 3, 8: 3}
    assert bounds_of(complete(*({4: n} for n in range(5))), "auc") == {4: 2}


def test_losses_after_the_commit_are_taken_again_after_a_kill(workflow_file, tmp_path):
    blocks = [(10 * n, 10.0 * n, 10.0) for n in range(1, 5)]
    order, record = order_of(workflow_file, tmp_path), Record(tmp_path, "one")
    record.write(order)
    record.losses.write_bytes(lines_of(blocks) + b"[50, 1")
    assert losses_in(record.losses) == blocks
    Watch(order, record, load(workflow_file)).on_begin(20, History(), None)
    assert record.losses.read_bytes() == lines_of(blocks[:2])
    assert reports_of(blocks, (10, 15, 30), [0.5, 0.4], "logloss") == {1: 1, 2: 1.5, 3: 2, 4: 0.5, 8: 0.4}
    assert reports_of(blocks, (10,), [float("nan"), 0.4], "auc") == {1: -1, 8: 0.4}


def test_a_failed_trial_is_recorded_and_only_the_best_keep_tables(workflow_file, tmp_path, monkeypatch, capsys):
    run_here(monkeypatch)
    space = 'tune = Tune(space={"optimizer.rows.lr": [0.01, 0.02, 0.03], "optimizer.dense.lr": [1e-3, 1e37]})'
    workflow_file.write_text(f"{workflow_file.read_text()}\nfrom pipeline.api import Tune\n{space}\n")
    tune(workflow_file, tmp_path / "out", "--trials", 4, "--keep-tables", 1, "--json")
    found = json.loads(capsys.readouterr().out)
    failed = [trial for trial in found["trials"] if trial["state"] == "fail"]
    assert failed
    assert all("loss of batch" in trial["text"] and trial["params"]["optimizer.dense.lr"] == 1e37 for trial in failed)
    complete = [trial for trial in found["trials"] if trial["state"] == "complete"]
    assert found["best"]["value"] == min(trial["value"] for trial in complete)
    tables = [path.parent.name for path in sorted((tmp_path / "out" / "trials").glob("*/table.zarr"))]
    assert tables == [f"{found['best']['number']:03}"]
    assert len(find_runs(tmp_path / "out" / "trials")[0]) >= len(complete)
    deleted = next(trial["number"] for trial in complete if f"{trial['number']:03}" not in tables)
    with pytest.raises(ValueError, match="a study of `pipeline tune` deletes the tables"):
        open_commit(tmp_path / "out" / "trials" / f"{deleted:03}")
    given = [json.loads((tmp_path / "out" / "trials" / name / "workflow.json").read_bytes()) for name in tables]
    assert given[0]["storage"]["disk"] == "32 MiB", "half of 64 MiB: one that runs, one that is kept"
    assert Record(tmp_path / "out", "000").verdict()


def test_the_best_trial_is_tested_once_and_another_best_is_counted(study_file, tmp_path, monkeypatch, capsys):
    make_up(monkeypatch)
    options = ("--parallel", PARALLEL, "--set", 'data.test=["test.parquet"]')
    tune(study_file, tmp_path / "out", "--trials", 2, *options)
    assert "tested once: epoch 2 test: auc 0.7" in capsys.readouterr().out
    tune(study_file, tmp_path / "out", "--trials", 2, *options)
    out, err = capsys.readouterr()
    assert "tested once: " in out
    assert "once more" not in err
    tune(study_file, tmp_path / "out", "--trials", 2 * TRIALS, *options)
    assert "tested as model 2 of this study" in capsys.readouterr().out


PLATEAU = 'schedule.plateau={"metric": "logloss", "stop_after": 1}'


@pytest.mark.parametrize("more", some([(), ("--set", PLATEAU)], ("--set", PLATEAU)), ids=len)
def test_a_kept_run_is_tested_to_the_bits_of_one_trained_once_more(workflow_file, tmp_path, monkeypatch, capsys, more):
    run_here(monkeypatch)
    space = 'tune = Tune(space={"optimizer.rows.lr": [0.01, 0.02, 0.03]})'
    workflow_file.write_text(f"{workflow_file.read_text()}\nfrom pipeline.api import Tune\n{space}\n")
    options = ("--trials", 2, "--set", 'data.test=["test.parquet"]', "--set", "schedule.epochs=3", *more)
    found, folders = [], []
    for name in ("kept", "deleted"):
        if name == "deleted":
            monkeypatch.setattr("pipeline.tune.tuning.has_table", lambda run_dir: False)
        tune(workflow_file, tmp_path / name, *options, "--json")
        out, err = capsys.readouterr()
        found.append(json.loads(out))
        folders.append(Path(found[-1]["best"]["run_dir"]).relative_to(tmp_path / name))
        assert f"the best trial {'on' if name == 'kept' else 'once more, with'} the test split" in err
        assert "warning" not in err
        tune(workflow_file, tmp_path / name, *options)
        assert f"its run: {tmp_path / name / folders[-1]}" in capsys.readouterr().out
    number = found[0]["best"]["number"]
    assert found[0]["test"] == found[1]["test"] != {}
    assert folders == [Path(f"trials/{number:03}"), Path(f"best-{number:03}")]
    results = [read_result(tmp_path / name / folder) for name, folder in zip(("kept", "deleted"), folders, strict=True)]
    assert [results[0][key] for key in ("epochs", "fingerprint")] == [
        results[1][key] for key in ("epochs", "fingerprint")
    ]


def test_confirmed_trials_are_chosen_by_the_mean_over_other_seeds(study_file, tmp_path, monkeypatch, capsys):
    make_up(monkeypatch)
    tune(study_file, tmp_path / "out", "--trials", 8, "--parallel", PARALLEL, "--confirm", 2, "--json")
    found = json.loads(capsys.readouterr().out)
    complete = [trial for trial in found["trials"] if trial["state"] == "complete"]
    best = sorted(complete, key=lambda trial: trial["value"])[:3]
    assert [*map(int, found["confirmed"])] == [trial["number"] for trial in best]
    assert all(len(values) == 2 for values in found["confirmed"].values())
    means = {int(number): sum(values) for number, values in found["confirmed"].items()}
    assert found["best"]["number"] == min(means, key=means.get)


def order_of(workflow_file, tmp_path, **bounds):
    return Order(
        workflow=str(workflow_file), set=("schedule.epochs=3",), settings={}, run_dir=str(tmp_path / "run"),
        workers=None, metric="logloss", marks=(10, 20, 40), bounds={int(step[1:]): of for step, of in bounds.items()},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("bounds", "steps", "said"),
    [({"_2": 0.01}, 2, "loss at 2/4 of epoch 1 is 0."), ({"_1": 99.0, "_8": 0.01}, 8, "logloss of epoch 2 is 0.")],
)
def test_a_training_beyond_its_bound_is_pruned_and_so_when_it_is_repeated(
    workflow_file, tmp_path, bounds, steps, said, capsys
):
    order, record = order_of(workflow_file, tmp_path, **bounds), Record(tmp_path, "one")
    record.write(order)
    verdict = verdict_of(order, record)
    assert verdict.state == "pruned"
    assert verdict.text.startswith(said)
    assert max(verdict.reports) == steps
    assert verdict_of(order, record) == verdict
