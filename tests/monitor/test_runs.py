"""`pipeline runs`: what a folder of runs has, best first, and in which settings they differ."""

import json
import re

import pytest
from conftest import make_workflow, write_data
from harness import make_driver

from pipeline.monitor.runs import different_settings, find_runs, main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two finished runs, and a folder that is none."""
    root, folder = write_data(tmp_path_factory.mktemp("data"), num_train=60, num_keys=20), tmp_path_factory.mktemp("r")
    for seed in (1, 2):
        make_driver(make_workflow(root).model_copy(update={"seed": seed}), folder / f"seed{seed}").run()
    (folder / "other").mkdir()
    return folder


def write_run(folder, name, settings, auc, root="films", labels=("click",), finished=True):
    """Files of a run, as far as the command reads them; settings by their paths."""
    (folder / name / "commits").mkdir(parents=True)
    commit = {"commit": {"state": {"seconds": 12.5}}}
    (folder / name / "commits" / "000003.json").write_text(json.dumps(commit))
    fields = {"name": "w", "data": {"root": f"data/{root}", "labels": list(labels), "numbers": [{"name": root}]}}
    fields |= {"model": {"kind": "pipeline.models.FM"}, "storage": {"device": f"{len(root + name)} MiB"}}
    for path, value in settings.items():
        *parents, last = path.split(".")
        at = fields
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = value
    (folder / name / "workflow.json").write_text(json.dumps(fields))
    several = {f"auc_{label}": auc - n / 10 for n, label in enumerate(labels)} if len(labels) > 1 else {}
    scores = {"auc": auc, "logloss": 0.3, **several}
    lines = [{"epoch": 1, "split": split, **scores} for split in ("validation", "test")[: 1 + finished]]
    (folder / name / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if finished:
        (folder / name / "result.json").write_text('{"stopped": null, "commit": 3, "seconds": 61.7}')


def test_runs_are_listed_with_their_metrics_and_the_settings_that_differ(folder, capsys):
    runs = list(find_runs(folder))
    assert [run.folder for run in runs] == [str(folder / "seed1"), str(folder / "seed2")]
    assert different_settings(runs) == ["seed"]
    assert main([str(folder)]) == 0
    said = capsys.readouterr().out
    for run in runs:
        assert run.is_over
        assert run.seconds
        assert all(f"{split['auc']:.5f}" in said for split in (run.validation, run.test))
    assert re.search(r"2 runs of DeepFM on data\d+, best first", said)


def test_a_run_directory_by_itself_is_listed(folder):
    assert [run.folder for run in find_runs(folder / "seed2")] == [str(folder / "seed2")]


def test_a_folder_without_runs_is_an_error(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "there is no run in it" in capsys.readouterr().err


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Runs on two data sets, with a rate that was varied, and much that differs with the data alone."""
    monkeypatch.setenv("COLUMNS", "80")
    beside = {f"schedule.plateau.name_of_a_setting_{n}": 1 for n in range(9)}
    for n, lr in enumerate((0.001, 0.01, 0.1)):
        write_run(tmp_path, f"films-with-a-long-name-{n}", {"optimizer.rows.lr": lr}, 0.7 + n / 100)
    write_run(tmp_path, "census", beside, 0.9, "census", finished=False)
    return tmp_path


def test_the_table_fits_the_terminal_and_names_what_it_leaves_out(sweep, capsys):
    assert main([str(sweep)]) == 0
    told, _, *table = capsys.readouterr().out.splitlines()
    assert "4 runs of FM, best first" in told
    assert max(map(len, table)) <= 80
    lines, left_out = table[:7], " ".join(table[7:])
    assert [line.split()[0] for line in lines[3:]] == ["census", *(f"films-with-a-long-name-{n}" for n in (2, 1, 0))]
    assert "optimizer." in lines[0]
    assert "rows.lr" in lines[1]
    assert left_out.startswith("left out")
    assert "storage.device" in left_out
    assert "name_of_a_setting_8" in left_out
    assert "not finished" in lines[3]


def test_runs_as_json_have_an_object_each_with_all_that_differs(sweep, capsys):
    assert main([str(sweep), "--json"]) == 0
    first, second, *_ = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (first["data"], first["finished"], first["seconds"], first["test"]) == ("census", False, 12.5, {})
    assert second["run_dir"] == str(sweep / "films-with-a-long-name-2")
    assert (second["test"]["auc"], second["settings"]["optimizer.rows.lr"]) == (0.72, 0.1)
    assert second["settings"]["data.numbers"] == [{"name": "films"}]


def test_each_label_has_its_column(tmp_path, capsys):
    for n in range(2):
        write_run(tmp_path, f"run{n}", {"seed": n}, 0.8 + n / 100, labels=("click", "bought"))
    assert main([str(tmp_path)]) == 0
    _, _, _, heads, _, best, *_ = capsys.readouterr().out.splitlines()[:7]
    assert heads.split()[:6] == ["run", "auc_click", "auc_click", "seed", "auc_bought", "auc_bought"]
    assert best.split()[:6] == ["run1", "0.81000", "0.81000", "1", "0.71000", "0.71000"]
    assert "62" in best
