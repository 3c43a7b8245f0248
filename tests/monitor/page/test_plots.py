"""Plots: axes with round ticks that cover all values, curves of few points, areas that fill the plot."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.monitor.page.plots import (
    MAX_DOTS,
    MAX_POINTS,
    SIZE,
    Curve,
    area_plot,
    curve_plot,
    number_axis,
    round_step,
    time_axis,
    whole_axis,
)
from pipeline.monitor.report import percent

numbers = st.floats(-1e12, 1e12, allow_subnormal=False)


@given(values=st.lists(numbers, min_size=1, max_size=9), least=st.sampled_from([1e-9, 0.002, 1.0]))
def test_an_axis_of_numbers_covers_them_with_few_ticks(values, least):
    axis = number_axis("x", values, least=least)
    assert all(-1e-6 <= axis.share(value) <= 1 + 1e-6 for value in values)
    assert (axis.ticks[0][0], axis.ticks[-1][0]) == (axis.low, axis.high)
    assert 3 <= len(axis.ticks) <= 8
    assert len({text for _, text in axis.ticks}) == len(axis.ticks)


@pytest.mark.parametrize(
    ("axis", "texts"),
    [
        (number_axis("share", [0.0, 1.0], percent), "0 %, 20 %, 40 %, 60 %, 80 %, 100 %"),
        (number_axis("auc", [0.7412, 0.7583]), "0.740, 0.745, 0.750, 0.755, 0.760"),
        (number_axis("auc", [0.75], least=0.002), "0.7490, 0.7495, 0.7500, 0.7505, 0.7510"),
        (number_axis("examples/s", [7.0, 43.0], from_zero=True), "0, 10, 20, 30, 40, 50"),
        (number_axis("diverges", [7e30]), "6.9996e+30, 6.9998e+30, 7e+30, 7.0002e+30, 7.0004e+30"),
        (number_axis("nothing", []), "0.0, 0.2, 0.4, 0.6, 0.8, 1.0"),
        (time_axis(0.5), "0:00, 0:02, 0:04, 0:06, 0:08, 0:10"),
        (time_axis(61.0), "0:00, 0:15, 0:30, 0:45, 1:00"),
        (time_axis(9000.0), "0:00, 30:00, 1:00:00, 1:30:00, 2:00:00, 2:30:00"),
        (time_axis(6.5 * 86_400), "0:00, 48:00:00, 96:00:00, 144:00:00"),
        (whole_axis("epoch", [1.0]), "0, 1, 2"),
        (whole_axis("epoch", [1.0, 2.0, 100.0]), "20, 40, 60, 80, 100"),
    ],
)
def test_ticks_are_round_and_have_units(axis, texts):
    assert ", ".join(text for _, text in axis.ticks) == texts


@given(size=st.floats(1e-12, 1e12))
def test_a_round_step_is_the_next_one_above(size):
    step = round_step(size)
    assert 1 - 1e-6 <= step / size <= 2.5 + 1e-6


def plotted(curve):
    """Places of the points of a curve on axes from 0 to the number of points, and from 0 to 10."""
    x, y = whole_axis("x", [0.0, 100.0]), number_axis("y", [0.0, 10.0])
    drawn = curve_plot([curve], x, y, [50.0])
    (points,) = re.findall('points="([^"]*)"', drawn)
    return [tuple(map(int, point.split(","))) for point in points.split()], drawn


def test_a_curve_goes_through_its_points_from_the_bottom_up():
    places, drawn = plotted(Curve("<auc>", "#123456", [(0.0, 0.0), (50.0, 5.0), (100.0, 10.0)], "dotted"))
    assert places == [(0, SIZE), (SIZE // 2, SIZE // 2), (SIZE, 0)]
    assert "<title>&lt;auc&gt;, 50: 5.00000</title>" in drawn
    assert f'class="marks" d="M{SIZE // 2} 0V{SIZE}"' in drawn


@pytest.mark.parametrize("count", [1, MAX_POINTS, MAX_POINTS + 1, 7 * MAX_POINTS + 3])
def test_a_long_curve_is_thinned_and_keeps_its_last_point(count):
    places, drawn = plotted(Curve("x", "#000000", [(100 * (n + 1) / count, 1.0) for n in range(count)], "dotted"))
    assert min(count, MAX_POINTS // 2) <= len(places) <= MAX_POINTS
    assert places[-1][0] == SIZE
    assert ("<title>" in drawn) == (count <= MAX_DOTS)


def test_areas_are_stacked_up_to_the_top_of_the_plot():
    colors = {"train": "#00ff00", "disk": "#ff0000", "never": "#0000ff"}
    shares = [{"train": 0.75, "disk": 0.25}, {"train": 0.5, "disk": 0.5}]
    drawn = area_plot(colors, [5.0, 10.0], shares, time_axis(10.0), number_axis("share", [0.0, 1.0]))
    assert re.findall('fill="(#[^"]*)" d="([^"]*)"', drawn) == [
        ("#ff0000", f"M0 {SIZE}V0H500V0H1000V{SIZE}Z"),
        ("#00ff00", f"M0 {SIZE}V250H500V500H1000V{SIZE}Z"),
    ]
