"""What the scaling model says of cases that can be worked out by hand, and which way it goes."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.scaling.inputs import CRITEO, MACHINE, TWO_CORES, Cluster, Costs, Link, Run, Shape
from benchmarks.scaling.model import Point, bytes_sent, check, predict
from benchmarks.scaling.zipf import Fields, unique_keys
from pipeline.data.planted import draw_keys

NOTHING = Costs(0, 0, 0, 0, 0, 0, 0, 0, 0)
FAST = Link(1e30, 0)
ENDLESS = Cluster(1, 1, 1e9, 1, False, FAST, FAST, 1e30, 1e30, 1e30, 1e12, 1e12)
# Of a field with ten keys every worker sees all.
SHAPE = Shape("ten", (Fields(10, 1),), 1_000, 4, 100, 0.5)
RUN = Run(1_000_000, block_batches=1)


def of(workers, machines=1, **others):
    return replace(ENDLESS, workers=workers, machines=machines, **others)


def test_bytes_are_counted_for_remote_unique_keys():
    sent = bytes_sent(SHAPE, of(4), RUN)
    remote = 10 * 3 / 4
    assert sent.read == 8 * 250_000
    assert sent.keys == pytest.approx(8 * remote, rel=1e-4)
    assert sent.rows == pytest.approx(4 * 4 * remote, rel=1e-4)
    assert sent.gradients == pytest.approx(4 * 5 * remote, rel=1e-4)
    assert sent.dense == 4 * 1_000
    alone = bytes_sent(SHAPE, of(1), RUN)
    assert alone[1:] == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("machines", "every", "words", "payload"),
    [(1, (1, 1), 1, 1), (1, (20, 20), 2, 2 / 20), (4, (1, 1), 1, 1 + 1 / 8), (4, (1, 20), 3, 1 + 3 / 20 / 8)],
)
def test_merges_are_counted_by_interval_and_number_of_words(machines, every, words, payload):
    run = replace(RUN, inside_every=every[0], between_every=every[1], words=words)
    assert bytes_sent(SHAPE, of(8, machines), run).dense == pytest.approx(4_000 * payload)


@pytest.mark.parametrize(
    ("what", "part", "seconds"),
    [
        ({"value_read_ns": 2}, "read", 2e-9 * 250_000),
        ({"key_planned_ns": 1e6}, "plan", 1e-3 * 10 / 4),
        ({"row_trained_ns": 1e6}, "train", 1e-3 * 10 / 4),
        ({"row_exchanged_ns": 1e6}, "train", 1e-3 * 2 * 10 * 3 / 4),
        ({"parameter_trained_ns": 0.5}, "train", 0.5e-9 * 250_000 * 1_000),
        ({"step_s": 0.25}, "train", 0.25),
    ],
)
def test_each_cost_counts_for_its_part_in_its_unit(what, part, seconds):
    found = predict(SHAPE, replace(NOTHING, **what), of(4), RUN)
    assert found.binds == part
    assert found.parts[part] == pytest.approx(seconds, rel=1e-4)
    assert found.examples_per_s == pytest.approx(1_000_000 / seconds, rel=1e-4)


@pytest.mark.parametrize(
    ("cluster", "part", "seconds"),
    [
        (of(4, source_bytes_per_s=1e6), "source", 8),
        # A page is read for each row that no cache holds; to a GPU go the rows alone, of a hundred bytes.
        (of(2, disk_bytes_per_s=4096, device_rows=1, host_rows=2), "disk", 10 - 6),
        (of(2, on_gpu=True, upload_bytes_per_s=100, device_rows=1), "upload", (10 - 2) / 2),
        # Rows and gradients one after the other, in training; keys meanwhile.
        (of(4, inside=Link(1, 0)), "train", (16 + 20) * 7.5 + 2 * 3 * 1_000),
        (of(4, inside=Link(1e30, 0.5)), "train", 2 * 3 * 0.5 + 6 * 0.5),
        # Two of four workers are in another machine; a quarter of the dense part goes between them, twice.
        (of(2, 2, between=Link(1, 0)), "train", (16 + 20) * 7.5 * 2 / 3 + 2 * (4_000 / 2 / 2)),
    ],
)
def test_each_link_takes_the_time_of_its_bytes_and_messages(cluster, part, seconds):
    found = predict(SHAPE, NOTHING, cluster, RUN)
    assert found.binds == part
    assert found.parts[part] == pytest.approx(seconds, rel=1e-3)


def test_parts_overlap_as_far_as_the_cores_allow():
    costs = replace(NOTHING, value_read_ns=4, value_deduplicated_ns=2, value_trained_ns=3)
    many = predict(SHAPE, costs, of(1, cores=100), RUN)
    assert (many.binds, many.parts["read"]) == ("read", 4e-3)
    few = predict(SHAPE, costs, of(1, cores=1), RUN)
    assert few.binds == "cores"
    assert few.parts["cores"] == pytest.approx(9e-3)
    # Two workers on two cores do half each.
    assert predict(SHAPE, costs, of(2, cores=2), RUN).examples_per_s == pytest.approx(2 * few.examples_per_s)
    # A GPU takes training and dedup from the cores.
    assert predict(SHAPE, costs, of(1, cores=1, on_gpu=True), RUN).parts["cores"] == pytest.approx(4e-3)


def test_unique_keys_grow_with_examples_and_fall_with_the_cache():
    fields = (Fields(1e6, 3), Fields(100, 2))
    grown = [unique_keys(fields, 1.05, n) for n in (1, 10, 1_000, 100_000, 1e12)]
    assert grown == sorted(grown)
    assert grown[0] == pytest.approx(5, rel=0.05)
    assert grown[-1] == pytest.approx(3e6 + 200, rel=1e-3)
    left = [unique_keys(fields, 1.05, 100_000, cached) for cached in (0, 10, 1_000, 1e6, 3_000_200, 1e9)]
    assert left == sorted(left, reverse=True)
    assert left[-2] == pytest.approx(0, abs=5)
    assert left[-1] == 0
    # After all keys were seen, a cache leaves what it has no room for.
    assert unique_keys(fields, 1.05, 1e12, 1e6) == pytest.approx(2e6 + 200, rel=1e-2)
    assert unique_keys((Fields(100, 1),), 0.5, 1e9, 30) == pytest.approx(70)


def test_a_point_is_compared_at_its_own_workers_and_cores():
    costs = replace(NOTHING, example_trained_ns=1_000)
    found = check([Point(1, 1, 900_000), Point(2, 2, 1_500_000), Point(4, 2, 900_000)], SHAPE, costs, ENDLESS, RUN)
    assert [one.predicted for one in found] == pytest.approx([1e6, 2e6, 2e6])
    assert [one.ratio for one in found] == pytest.approx([0.9, 0.75, 0.45])
    assert [one.scaling for one in found] == pytest.approx([1, 0.75 / 0.9, 0.5])


def test_the_model_predicts_the_measured_speed_of_one_worker():
    """(a) of `end_to_end` with an MLP of 64, two cores (2026-11-20); the constants are from stages there."""
    here = replace(MACHINE, workers=1, cores=2, threads=2, on_gpu=False)
    (one,) = check([Point(1, 2, 341_565)], CRITEO, TWO_CORES, here, Run(8_192))
    assert one.ratio == pytest.approx(1, abs=0.15)


def test_the_formula_gives_the_unique_keys_of_drawn_batches():
    sizes, examples, exponent = (1_000_000, 20_000, 20), 8_192, 1.05
    rng = np.random.default_rng(1)
    drawn = [sum(len(np.unique(draw_keys(rng, examples, size, exponent))) for size in sizes) for _ in range(20)]
    expected = unique_keys(tuple(Fields(size, 1) for size in sizes), exponent, examples)
    assert expected == pytest.approx(np.mean(drawn), rel=0.02)
