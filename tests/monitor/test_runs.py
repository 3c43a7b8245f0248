"""`pipeline runs`: what a folder of runs has, and in which settings they differ."""

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


def test_runs_are_listed_with_their_metrics_and_the_settings_that_differ(folder, capsys):
    runs = list(find_runs(folder))
    assert [run.folder for run in runs] == [str(folder / "seed1"), str(folder / "seed2")]
    assert different_settings(runs) == ["seed"]
    assert main([str(folder)]) == 0
    said = capsys.readouterr().out
    for run in runs:
        assert run.is_over
        assert all(f"{split['auc']:.5f}" in said for split in (run.validation, run.test))
    assert "DeepFM" in said


def test_a_run_directory_by_itself_is_listed(folder):
    assert [run.folder for run in find_runs(folder / "seed2")] == [str(folder / "seed2")]


def test_a_folder_without_runs_is_an_error(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "there is no run in it" in capsys.readouterr().err
