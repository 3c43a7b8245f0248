"""The history of rates: what a commit keeps of it is all of it."""

import numpy as np
import pytest

from pipeline.device.device import RAM
from pipeline.kernels.row_rules import FACTOR, L2
from pipeline.optim.rates import FIRST_STEP, RUNS, Rates
from pipeline.settings.optimizer import Adam, Ftrl, Sgd

ROWS = Adam(lr=1e-3, l2=0.02, semantics="dense")


def lived(each_step, rows=ROWS):
    rates = Rates(rows, RAM, each_step)
    for last, lr in ((5, 1e-3), (5000, 1e-3), (5003, 1e-4)):
        rates.through(last, lr)
    if each_step:
        for step, factor in ((3, 0.5), (4, 0.5), (700, 0.1), (5003, 1 / 3)):
            rates.clip(step, factor)
    return rates


@pytest.mark.parametrize("each_step", [False, True])
def test_a_resumed_run_catches_up_by_the_same_rates(each_step):
    before = lived(each_step)
    after = Rates(ROWS, RAM, each_step)
    after.load(before.save())
    assert (after.num_steps, after.until(5003), after.until(7)) == (5003, (5003, 0.02, 1e-3), (7, 0.02, 1e-3))
    for rates in (before, after):
        rates.through(5100, 1e-5)
    for mine, its in zip(before.on_host, after.on_host, strict=True):
        assert mine[:5101].tobytes() == its[:5101].tobytes()
    assert before.save()[RUNS].tolist() == after.save()[RUNS].tolist()


def test_a_run_of_equal_steps_is_saved_as_one_line():
    assert len(lived(False).save()[RUNS]) == 2
    assert lived(True).save()[RUNS][:, 2].tolist() == pytest.approx([1, 0.5, 1, 0.1, 1, 1, 1 / 3])


def test_the_factor_of_a_clipped_step_scales_its_l2():
    line = lived(True).on_host[0][700]
    assert line[FACTOR] == np.float32(0.1)
    assert line[L2] == np.float32(0.02) * np.float32(0.1)


def test_a_step_that_may_be_clipped_is_a_separate_run():
    assert lived(True).on_host[1][1:5004].tolist() == list(range(1, 5004))
    assert set(lived(False).on_host[1][1:5004].tolist()) == {1, 5001}


def test_only_the_l2_of_steps_up_to_the_given_one_counts():
    rates = Rates(Adam(l2=0.0), RAM, False)
    rates.through(10, 1e-3)
    assert (rates.until(10), rates.had_l2) == ((0, 0.0, 1e-3), False)
    for last, l2 in ((20, 0.1), (30, 0.3), (40, 0.0)):
        rates._rows = Adam(l2=l2)
        rates.through(last, 1e-3)
    found = [rates.until(step)[:2] for step in (10, 11, 20, 25, 30, 35, 40)]
    assert found == [(0, 0.0), (11, 0.1), (20, 0.1), (25, 0.3), (30, 0.3), (30, 0.3), (30, 0.3)]


def test_a_commit_before_the_first_step_can_be_loaded():
    for each_step in (False, True):
        saved = Rates(ROWS, RAM, each_step).save()
        assert saved[RUNS].shape == (0, 3)
        after = Rates(ROWS, RAM, each_step)
        after.load(saved)
        assert after.num_steps == 0


def test_factors_are_kept_once_nothing_is_clipped_any_more():
    """A workflow without max_grad_norm goes on from a commit of one with it, and is stopped once more."""
    before = lived(True)
    after = Rates(ROWS, RAM, False)
    after.load(before.save())
    after.through(5050, 1e-4)
    once_more = Rates(ROWS, RAM, False)
    once_more.load(after.save())
    for mine, its in zip(before.on_host, once_more.on_host, strict=True):
        assert mine[:5004].tobytes() == its[:5004].tobytes()


def test_the_l2_of_ftrl_is_not_added_to_the_gradient():
    rates = Rates(Ftrl(l2=0.1), RAM, False)
    assert rates.through(3, 0.1)[0][3].tolist() == [np.float32(0.1), 0, 0, 1]


def test_resuming_lazy_rows_skips_the_steps_before():
    saved = lived(False, Sgd(lr=1e-3, l2=0.02)).save()
    after = Rates(Sgd(lr=1e-3, l2=0.02), RAM, False)
    after.load(saved)
    assert after.num_steps == 5003
    assert not after.on_host[0].any()
    assert after.through(5004, 1e-3)[0][5004, L2] == np.float32(0.02)


BEYOND = np.array([9, 1, 20], np.int64)
"""Number of steps, and the first steps of two runs, one of them later than all."""


@pytest.mark.parametrize(
    ("steps", "said"),
    [(None, "the commit has no"), (np.zeros(0), "not a valid history"), (BEYOND, "does not fit 9 steps: .1, 20."),
     (np.array([9, 2, 5], np.int64), "does not start at the first step: .2, 5.")],
)  # fmt: skip
def test_a_history_that_no_run_has_written_is_refused(steps, said):
    saved = {FIRST_STEP: steps, RUNS: np.ones((2, 3))} if steps is not None else {}
    with pytest.raises(ValueError, match=said):
        Rates(ROWS, RAM, False).load(saved)
