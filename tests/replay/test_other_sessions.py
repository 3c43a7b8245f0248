"""Replays of runs whose sessions had other agendas, or opened the best epoch."""

import math

import pytest
from conftest import make_workflow
from replaying import Killed, counts_of_commits, opened, replayed, to_the_end, with_settings

from pipeline.settings.optimizer import Plateau

SIZES = {"device_rows": 120, "host_rows": 24}
POLICIES = [("clock", "clock"), ("foresight", "foresight")]


def check(workflow, run_dir, driver):
    totals = replayed(workflow, run_dir)
    assert totals.counts() == driver.history.tiers.counts()
    assert counts_of_commits(totals.disk) == counts_of_commits(driver.history.disk)


@pytest.mark.parametrize("policies", POLICIES)
def test_a_run_that_went_on_for_more_epochs_is_replayed(data_root, tmp_path, policies):
    for epochs in (1, 2):
        workflow = with_settings(make_workflow(data_root, epochs=epochs), policies)
        driver = opened(workflow, tmp_path, **SIZES)
        to_the_end(driver)
    check(workflow, tmp_path, driver)


@pytest.mark.parametrize("policies", POLICIES)
@pytest.mark.parametrize("keep_best", [True, False])
def test_a_run_that_stopped_early_is_replayed_with_its_test(data_root, tmp_path, policies, keep_best):
    workflow = make_workflow(data_root, epochs=4, plateau=Plateau(stop_after=1))
    workflow = with_settings(workflow, policies, keep_best=keep_best)
    driver = opened(workflow, tmp_path, **SIZES)
    driver.run()
    assert driver.history.epochs[-1]["split"] == "test"
    check(workflow, tmp_path, driver)


@pytest.mark.parametrize("policies", POLICIES)
def test_a_run_that_was_killed_in_the_test_of_its_best_epoch_is_replayed(data_root, tmp_path, policies):
    workflow = with_settings(make_workflow(data_root, epochs=4, plateau=Plateau(stop_after=1)), policies)
    driver = opened(workflow, tmp_path, **SIZES)

    def killed(epoch):
        raise Killed

    driver._test = killed
    with pytest.raises(Killed):
        driver.run()
    driver = opened(workflow, tmp_path, **SIZES)
    driver.run()
    assert driver.history.epochs[-1]["split"] == "test"
    check(workflow, tmp_path, driver)


def test_a_test_without_a_best_epoch_forgets_the_keys_of_epochs_that_never_come(data_root, tmp_path, monkeypatch):
    workflow = make_workflow(data_root, epochs=4, plateau=Plateau(stop_after=1))
    driver = opened(with_settings(workflow, ("foresight", "foresight")), tmp_path, **SIZES)

    def not_a_number(metric):
        return [math.nan] * sum(epoch["split"] == "validation" for epoch in driver.history.epochs)

    monkeypatch.setattr(driver.history, "validated", not_a_number)
    driver.run()
    assert driver.history.epochs[-1]["split"] == "test"
