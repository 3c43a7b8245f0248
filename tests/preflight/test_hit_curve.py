"""Hit rates of every size before a run: those of a plain list, and near those of runs with the policy lru."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import make_workflow
from hypothesis import given
from hypothesis import strategies as st
from support.data.days import days_workflow, write_days
from support.depth import examples, some
from support.runs.crew_threads import make_crew_driver, train

from pipeline.device.device import RAM
from pipeline.driver.session import open_session, plan_session
from pipeline.models import LR
from pipeline.preflight.hit_curve import LruStack, hit_curve
from pipeline.preflight.setup import check, divide_caps
from pipeline.stages.unique_keys import KeyReader
from pipeline.workflow import Category, Data, Model, Schedule, Storage, Workflow

SETS = st.lists(st.frozensets(st.integers(0, 9), max_size=6), max_size=9)


@pytest.fixture(scope="module")
def zipf(tmp_path_factory):
    """Workflow on three columns of Zipf-distributed keys, in blocks of one batch."""
    root, rng, num = tmp_path_factory.mktemp("zipf"), np.random.default_rng(0), 6000
    keys = {f"c{f}": rng.zipf(1.2, num) % 3000 * 3 + f for f in range(3)}
    table = pa.table({**keys, "click": rng.integers(0, 2, num).astype(np.float32)})
    pq.write_table(table, root / "train.parquet", row_group_size=1000)
    return Workflow(
        name="zipf",
        data=Data(root=root, train=("train.parquet",), labels=("click",), shuffle_window=512,
                  categories=tuple(Category(name=f"c{f}") for f in range(3))),
        model=Model(kind=LR, embedding_dim=0, init_std=0.0),
        storage=Storage(device="1 MiB", host="1 MiB", disk="1 GiB", read="8 MiB", map="8 MiB", chunk_rows=1024,
                        device_policy="lru", host_policy="lru"),
        schedule=Schedule(batch_size=64, epochs=2, block_batches=1, look_ahead=1, threads=1),
        device="cpu",
    )  # fmt: skip


def curve_of(workflow, world=1, **limits):
    checked = check(workflow, RAM, print, world)
    try:
        return hit_curve(checked, divide_caps(checked), **limits)
    finally:
        checked.source.close()


def trained(workflow, run_dir, world=0, **sizes):
    """Keys of the training blocks of a run, by where they were found. `world`: see `make_crew_driver`."""
    driver = make_crew_driver(workflow, run_dir, world, chunk_rows=16, **sizes)
    train(driver)
    driver.crew.close()
    return driver.history.tiers.counts()["trained"]


def check_near(curve, counts, device_rows, host_rows):
    """Check the hit rates, which are within two points."""
    both = counts["device_hits"] + counts["host_hits"]
    for rows, hits in ((device_rows, counts["device_hits"]), (device_rows + host_rows, both)):
        assert curve.hit_rate(rows) == pytest.approx(hits / counts["keys"], abs=0.02)


@pytest.mark.parametrize("rows", some([(700, 300), (1000, 500), (1500, 500)], (1000, 500)))
def test_hit_rates_are_near_those_of_a_run_with_lru(zipf, tmp_path, rows):
    device_rows, host_rows = rows
    counts = trained(zipf, tmp_path, device_rows=device_rows, host_rows=host_rows)
    curve = curve_of(zipf)
    assert (curve.uses, curve.keys) == (counts["keys"], counts["new"])
    assert counts["disk_hits"] > 0
    check_near(curve, counts, *rows)


@pytest.mark.prove
def test_sizes_of_all_workers_together_give_their_hit_rates(zipf, tmp_path):
    """A block that one worker refuses counts twice for the other."""
    curve, counts = curve_of(zipf, 2), trained(zipf, tmp_path, 2, device_rows=500, host_rows=250)
    assert curve.uses == pytest.approx(counts["keys"], rel=0.02)
    check_near(curve, counts, 1000, 500)


@examples(8, 1000)
@given(SETS)
def test_depths_are_those_in_a_plain_list(sets):
    stack, plain = LruStack(), []
    for keys in map(sorted, sets):
        depths = stack.use(np.array(keys, np.uint64))
        assert depths.tolist() == [depth for depth, key in enumerate(plain, 1) if key in keys]
        plain = [*keys, *(key for key in plain if key not in keys)]


@pytest.mark.parametrize("changes", some([{}, {"block_batches": 3, "epochs": 1}], {}))
def test_hit_rates_with_lists_are_those_of_a_plain_list(data_root, changes):
    workflow = make_workflow(data_root, **changes)
    checked = check(workflow, RAM, print)
    setup, reader = divide_caps(checked), KeyReader(workflow.data, workflow.seed)
    blocks = [b for b in setup.agenda.blocks(setup.fit.block_batches) if b.trains]
    uses = [reader.distinct_keys(block).tolist() for block in blocks]
    reader.close()
    curve = hit_curve(checked, setup)
    checked.source.close()
    for capacity in (1, 7, 30, 60, 1000):
        plain, hits = [], 0
        for keys in uses:
            hits += len({*keys} & {*plain[:capacity]})
            plain = [*keys, *(key for key in plain if key not in keys)]
        assert curve.hit_rate(capacity) == hits / sum(map(len, uses))
    assert curve.looked_at == 1


def test_a_sample_of_the_keys_is_within_two_points(zipf):
    whole, sampled = curve_of(zipf), curve_of(zipf, sampled_keys=2000)
    assert (whole.share, sampled.share) == (1, 1 / 4)
    assert sampled.keys == pytest.approx(whole.keys, rel=0.05)
    for rows in (300, 600, 1000, math.inf):
        assert sampled.hit_rate(rows) == pytest.approx(whole.hit_rate(rows), abs=0.02)


@pytest.mark.parametrize(
    ("limits", "share"), [({"max_values": 3 * 5000}, 4992 / 12_000), ({"max_values": 100}, 0), ({"max_seconds": 0}, 0)]
)
def test_what_exceeds_the_limits_is_not_looked_at(zipf, limits, share):
    curve = curve_of(zipf, **limits)
    assert curve.looked_at == pytest.approx(share)
    assert (curve.uses > 0) == (share > 0)
    assert math.isnan(curve.hit_rate(1)) == (share == 0)


@pytest.mark.prove
def test_later_spans_are_looked_at_without_earlier_files(tmp_path):
    files = [str(file) for file in write_days(tmp_path / "data", [40, 33, 25])]
    workflow = days_workflow(tmp_path / "data").with_settings({"data.train": files[:2]})
    counts = []
    for extend in ((), files[2:]):
        session = plan_session(workflow, tmp_path / "run", True, None, None, print, extend=extend)
        if extend:
            (tmp_path / "data" / files[0]).unlink()
            curve = hit_curve(session.checked, session.set_up())
        with open_session(session, False) as driver:
            driver.run()
            counts.append(dict(driver.history.tiers.counts()["trained"]))
    assert curve.looked_at == 1
    assert curve.uses == counts[1]["keys"] - counts[0]["keys"] > 0
