"""Numbers outside the domain of their column: counted, and replaced by the nearest number inside."""

import numpy as np
import pyarrow as pa
import pytest

from pipeline.data.decode import fill_floats
from pipeline.data.files import InputColumn
from pipeline.data.outside import Outside
from pipeline.workflow import Number

MOST = np.finfo(np.float32).max


def converted(values, kind, outside, **spec):
    out = np.empty(len(values), np.float32)
    column = InputColumn("x", "data.numbers", number=Number(name="x", **spec))
    fill_floats(pa.array(values, kind), column, "log.parquet", 10, out, outside)
    return out


@pytest.mark.parametrize(
    ("values", "kind", "spec", "expected"),
    [
        ([-5, -1, 4], pa.int32(), {"log1p": True}, np.log1p([0, 0, 4])),
        ([-5, -2, None], pa.int64(), {"log1p": True, "shift": 2.0, "fill": -2.0}, np.log1p([0, 0, 0])),
        ([-np.inf, -1 + 1e-12, np.inf], pa.float64(), {"log1p": True}, np.log1p([0, 0, MOST])),
        ([np.inf, -1e39, np.nan], pa.float64(), {"fill": 3.0}, [MOST, -MOST, 3]),
        ([None, 1.0], pa.float32(), {"log1p": True, "fill": -7.0}, np.log1p([0, 1])),
    ],
    ids=["negative", "below the shift", "ends", "plain", "fill"],
)
def test_a_bad_number_becomes_the_nearest_one_inside(values, kind, spec, expected):
    outside = Outside("clip")
    assert np.allclose(converted(values, kind, outside, **spec), np.float32(expected), rtol=1e-6)
    assert outside.counts["x"] >= 1


def test_bad_numbers_are_counted_with_the_first_and_their_rows():
    outside = Outside("null")
    converted([1.0, -3.0, np.inf], pa.float64(), outside, log1p=True)
    converted([-2.0], pa.float64(), outside, log1p=True)
    (line,) = outside.lines()
    assert "'x': 3 bad values, the first is -3.0 at row 11 of log.parquet" in line
    assert outside.take_rows().tolist() == [11, 12, 10]
    assert not len(outside.take_rows())
    with pytest.raises(ValueError, match=r"'x' .*: 1 bad value, the first is inf at row 10 of log.parquet"):
        converted([np.inf], pa.float64(), Outside("refuse"))


def test_good_numbers_have_the_bits_of_training():
    values = np.random.default_rng(1).exponential(9, 1000)
    found = converted(values, pa.float64(), Outside("clip"), log1p=True, shift=-0.5)
    assert found.tobytes() == converted(values, pa.float64(), None, log1p=True, shift=-0.5).tobytes()
