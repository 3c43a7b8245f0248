"""`pipeline runs`: what a folder of runs has, best first, and in which settings they differ."""

import json
import re
import shutil

import pytest
from conftest import make_workflow, write_data
from support.runs.harness import make_driver

from pipeline.monitor.page import page
from pipeline.monitor.runs import different_settings, find_runs, main, run_in


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


def test_runs_are_listed_with_metrics_and_settings_that_differ(folder, capsys):
    runs, damaged = find_runs(folder)
    assert not damaged
    assert [run.folder for run in runs] == [str(folder / "seed1"), str(folder / "seed2")]
    assert different_settings(runs) == ["seed"]
    assert main([str(folder)]) == 0
    said = capsys.readouterr().out
    for run in runs:
        assert run.is_over
        assert run.seconds
        assert all(f"{split['auc']:.5f}" in said for split in (run.validation, run.test))
    assert "2 runs of DeepFM\n" in said
    assert re.search(r"test split of data\d+, label click, 1 file, 9 examples, best AUC first", said)


def test_a_run_directory_by_itself_is_listed(folder):
    assert [run.folder for run in find_runs(folder / "seed2")[0]] == [str(folder / "seed2")]


def test_a_folder_without_runs_is_an_error(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "it holds no run" in capsys.readouterr().err


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Runs on two data sets, with a rate that was varied, and much that differs with the data alone."""
    monkeypatch.setenv("COLUMNS", "80")
    for n, lr in enumerate((0.001, 0.01, 0.1)):
        others = {f"schedule.plateau.name_of_a_setting_{m}": n > 0 for m in range(9)}
        write_run(tmp_path, f"films-with-a-long-name-{n}", {"optimizer.rows.lr": lr, **others}, 0.7 + n / 100)
    write_run(tmp_path, "census", {"storage.device": "1 MiB"}, 0.9, "census", finished=False)
    return tmp_path


def test_the_table_fits_the_terminal_and_names_what_is_left_out(sweep, capsys):
    assert main([str(sweep)]) == 0
    note, *lines = capsys.readouterr().out.splitlines()
    assert note.endswith("4 runs of FM, evaluated on different data: compare only runs of the same table")
    assert max(map(len, lines)) <= 80
    assert lines[1] == "validation split of census, label click"
    assert "not finished" in lines[6]
    assert lines[8] == "test split of films, label click, best AUC first"
    table, left_out = lines[10:16], " ".join(lines[16:])
    assert [line.split()[0] for line in table[3:]] == [f"films-with-a-long-name-{n}" for n in (2, 1, 0)]
    assert "optimizer." in table[0]
    assert "rows.lr" in table[1]
    assert left_out.startswith("left out")
    assert "name_of_a_setting_8" in left_out
    assert "storage" not in left_out


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
    _, _, _, _, _, heads, _, best, *_ = capsys.readouterr().out.splitlines()
    assert heads.split()[:6] == ["run", "auc_click", "auc_click", "seed", "auc_bought", "auc_bought"]
    assert best.split()[:6] == ["run1", "0.81000", "0.81000", "1", "0.71000", "0.71000"]
    assert "62" in best


def as_tested_on(folder, name, num_examples):
    """Make a run one whose test has so many examples in its file."""
    path = folder / name / "result.json"
    file = {"size": 100 + num_examples, "row_groups": [[1, num_examples]], "footer": f"{num_examples}"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"data": {"test": {"digest": name, "files": [file]}}}))
    lines = (folder / name / "metrics.jsonl").read_text().replace('"epoch"', f'"data": "{name}", "epoch"')
    (folder / name / "metrics.jsonl").write_text(lines)


def test_runs_with_other_test_files_are_not_ranked_together(tmp_path, capsys):
    for n, num_examples in enumerate((500, 90, 500)):
        write_run(tmp_path, f"run{n}", {"data.categories": [{"name": f"c{n}"}]}, 0.8 + n / 100)
        as_tested_on(tmp_path, f"run{n}", num_examples)
    assert main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    texts = ("films, label click, 1 file, 500", "run2", "run0", "films, label click, 1 file, 90", "run1")
    at = [said.index(text) for text in texts]
    assert at == sorted(at), "runs of other columns and the same files are ranked together"
    result = tmp_path / "run0" / "result.json"
    result.write_text(result.read_text().replace(' "run0"', ' "of other files, later"'))
    assert len({json.dumps(run.judged_by) for run in find_runs(tmp_path)[0]}) == 3


def test_validation_is_of_the_epoch_that_was_tested_or_is_best(tmp_path):
    write_run(tmp_path, "run", {}, 0.8)
    values = [("validation", 1, 0.9), ("validation", 2, 0.6), ("validation", 3, 0.7), ("test", 2, 0.5)]
    lines = [json.dumps({"epoch": epoch, "split": split, "auc": auc}) for split, epoch, auc in values]
    metrics, commit = (tmp_path / "run" / name for name in ("metrics.jsonl", "commits/000002.json"))
    metrics.write_text("\n".join(lines))
    assert run_in(tmp_path / "run").validation["auc"] == 0.6
    metrics.write_text("\n".join(lines[:3]))
    assert run_in(tmp_path / "run").validation["auc"] == 0.7
    epochs = [{"split": "validation", "epoch": 1}, {"split": "train", "epoch": 1}]
    commit.write_text(json.dumps({"commit": {"name": "best", "state": {"epochs": epochs}}}))
    assert run_in(tmp_path / "run").validation["auc"] == 0.9


DAMAGES = {
    "workflow.json": (b"{", b"[]", b"\xff\xfe", b"{}", b"null", b"[" * 9999, b'{"data": {"labels": 3}}'),
    "metrics.jsonl": (b'{"epoch": 1, "spl', b"[1]", b"\xff", b'{"epoch": 1}', b'{"epoch": "1", "split": "test"}'),
    "result.json": (b"[]", b"", b"1", b'{"a', b"[" * 9999),
    "commits/000003.json": (b"", b"[]", b'{"commit": []}', b'{"commit": {"state": null}}',
                            b'{"commit": {"name": "best"}}'),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_run_is_named_and_the_others_are_listed(tmp_path, capsys, name):
    write_run(tmp_path, "good", {}, 0.7)
    for n, content in enumerate(DAMAGES[name]):
        write_run(tmp_path, f"bad{n}", {}, 0.6)
        (tmp_path / f"bad{n}" / name).write_bytes(content)
    assert main([str(tmp_path)]) == 0
    said, warned = capsys.readouterr()
    assert "good " in said
    if name.startswith("commits"):
        assert all(f"bad{n}" in said for n in range(len(DAMAGES[name]))), "a commit is not needed to list a run"
    else:
        assert "bad" not in said
        assert warned.count("not listed") == len(DAMAGES[name])
        assert all(f"bad{n}/{name} is damaged" in warned for n in range(len(DAMAGES[name])))


@pytest.mark.parametrize("name", ["workflow.json", "result.json"])
def test_what_shows_a_run_names_a_damaged_file(folder, tmp_path, capsys, name):
    for content in DAMAGES[name]:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(folder / "seed1", tmp_path / "run")
        (tmp_path / "run" / name).write_bytes(content)
        assert page.main([str(tmp_path / "run"), "--out", str(tmp_path / "out.html")]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert f"run/{name} is damaged" in said
