import numpy as np
import pytest
from support.oracle.tier_contract import check_tier, gathered, made_rows

from pipeline.storage.slab import Slab


@pytest.mark.parametrize(("num_rows", "num_words"), [(2, 2), (17, 8), (300, 56)])
def test_a_slab_keeps_the_tier_contract(num_rows, num_words):
    check_tier(lambda: Slab(num_rows, num_words), num_rows, num_words, np.int32)


def test_a_row_put_twice_has_its_last_value_and_others_stay():
    slab, rows = Slab(5, 3), made_rows(5, 3)
    slab.scatter(np.arange(5, dtype=np.int32), rows)
    slab.scatter(np.array([3, 1], np.int32), rows[[0, 4]])
    np.testing.assert_array_equal(gathered(slab, range(5), 3, np.int32), rows[[0, 4, 2, 0, 4]])


def test_a_slab_of_no_rows_can_be_made():
    slab = Slab(0, 3)
    slab.gather(np.empty(0, np.int32), np.empty((0, 3), np.uint32))
    slab.close()


def test_the_floats_of_a_slab_are_a_view_of_its_words():
    slab = Slab(3, 4)
    slab.scatter(np.arange(3, dtype=np.int32), np.zeros((3, 4), np.uint32))
    slab.floats_SW[1, 2] = 1.0
    assert gathered(slab, [1], 4, np.int32).view(np.float32).tolist() == [[0, 0, 1, 0]]
    assert slab.words_SW.ctypes.data % 64 == 0
