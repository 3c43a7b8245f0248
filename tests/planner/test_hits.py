"""Forecasts of rows: those of a run where all of it is replayed; near them where a sample or the beginning is."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.depth import some
from support.runs.replayed_runs import with_settings

from pipeline.device.device import RAM
from pipeline.driver.open import open_local
from pipeline.driver.session import open_session, plan_session
from pipeline.models import LR
from pipeline.planner import hits
from pipeline.planner.hits import forecast
from pipeline.planner.start import start_of
from pipeline.preflight.setup import set_up
from pipeline.workflow import Category, Data, Model, Schedule, Storage, Workflow

TIERS = ("device", "host", "disk")
SCHEDULE = {"batch_size": 64, "epochs": 2, "block_batches": 1, "look_ahead": 1, "threads": 1}


def zipf_workflow(root, num_train, num_keys, **schedule):
    """Three columns of Zipf-distributed keys, which do not fit device and host."""
    root.mkdir()
    rng = np.random.default_rng(0)
    for split, count in (("train", num_train), ("validation", num_train // 8)):
        keys = {f"c{f}": rng.zipf(1.2, count) % num_keys * 3 + f for f in range(3)}
        table = pa.table({**keys, "click": rng.integers(0, 2, count).astype(np.float32)})
        pq.write_table(table, root / f"{split}.parquet", row_group_size=2000)
    storage = Storage(device="32 KiB", host="52 KiB", disk="1 GiB", read="8 MiB", map="8 MiB", chunk_rows=1024)
    return with_settings(
        Workflow(
            name="zipf",
            data=Data(root=root, train=("train.parquet",), validation=("validation.parquet",), labels=("click",),
                      categories=tuple(Category(name=f"c{f}") for f in range(3)), shuffle_window=512),
            model=Model(kind=LR, embedding_dim=0, init_std=0.0),
            storage=storage, device="cpu",
            schedule=Schedule(**SCHEDULE | schedule),
        )
    )  # fmt: skip


def forecast_of(workflow, **limits):
    setup, source = set_up(workflow, RAM, print)
    source.close()
    return setup, forecast(setup, 3.0, **limits)


def ran(workflow, run_dir):
    setup, source = set_up(workflow, RAM, print)
    run_dir.mkdir()
    with open_local(setup, source, run_dir, serial=True) as driver:
        return driver.run()


@pytest.mark.parametrize("every_blocks", some([None, 7], None))
@pytest.mark.prove
def test_a_whole_replay_forecasts_the_counts_of_the_run(tmp_path, every_blocks):
    workflow = zipf_workflow(tmp_path / "data", 6000, 3000)
    workflow = with_settings(workflow, every_blocks=every_blocks, keep_best=False)
    _, found = forecast_of(workflow)
    result = ran(workflow, tmp_path / "run")
    assert (found.replayed, found.sample) == (1.0, 1)
    assert {tier: found.hit_rates[tier] for tier in TIERS} == {t: result["tiers"][t]["hit_rate"] for t in TIERS}
    assert found.total("disk_hits") == result["tiers"]["disk"]["hits"] > 0
    assert (found.keys, found.commits) == (result["rows"], result["disk"]["commits"])
    assert found.rows_committed == result["disk"]["rows_changed"] + result["disk"]["rows_merged"]
    assert found.log_rows * (32 + 8) == result["tiers"]["disk"]["used_bytes"]


def test_what_is_left_is_forecast_without_the_first_files(tmp_path):
    workflow, root = zipf_workflow(tmp_path / "data", 6000, 3000, epochs=1), tmp_path / "data"
    whole = pq.read_table(root / "train.parquet")
    for n in range(3):
        pq.write_table(whole.slice(2000 * n, 2000), root / f"part-{n}.parquet", row_group_size=500)
    data = {"train": ("part-0.parquet", "part-1.parquet"), "validation": (), "span": "file"}
    workflow = workflow.model_copy(update={"data": workflow.data.model_copy(update=data)})
    results, session = [], plan_session(workflow, tmp_path / "run", True, None, None, print)
    with open_session(session, False) as driver:
        results.append(driver.run())
    (root / "part-0.parquet").unlink()
    session = plan_session(
        workflow, tmp_path / "run", True, None, None, print, extend=[str(root / "part-2.parquet")]
    )  # fmt: skip
    found = forecast(session.set_up(), 3.0, start=start_of(session))
    with open_session(session, False) as driver:
        results.append(driver.run())
    before, after = (result["tiers"] for result in results)
    assert [(leg.leg.split, leg.leg.span, leg.examples) for leg in found.legs] == [
        ("span", 2, 2000),
        ("train", 2, 2000),
    ]
    assert (found.replayed, found.keys) == (1.0, results[-1]["rows"])
    for tier in TIERS:
        assert found.total(f"{tier}_hits") == after[tier]["hits"] - before[tier]["hits"] > 0


def test_a_leg_has_the_blocks_and_examples_of_the_agenda(tmp_path):
    setup, found = forecast_of(zipf_workflow(tmp_path / "data", 3000, 500))
    assert [leg.leg for leg in found.legs] == setup.agenda.legs
    assert [leg.examples for leg in found.legs] == [3000, 375, 3000, 375]
    assert [(leg.blocks, leg.batches) for leg in found.legs] == [(47, 47), (6, 6)] * 2
    moved = [leg.rows["device_to_host"] + leg.rows["device_to_disk"] for leg in found.legs]
    assert moved[0] > 0 < moved[2]
    assert moved[1] == moved[3] == 0, "evaluation moves nothing"


def test_of_many_epochs_the_first_blocks_are_replayed(tmp_path, monkeypatch):
    workflow = zipf_workflow(tmp_path / "data", 3000, 2000, epochs=50)
    monkeypatch.setattr(hits, "MAX_BLOCKS", 150)
    _, found = forecast_of(workflow)
    assert found.replayed == pytest.approx(150 / (50 * 53), rel=0.05)
    assert (len(found.legs), found.commits) == (100, 50)
    later = [leg for leg in found.legs if leg.leg.split == "train"][5:]
    assert all(leg.rows["new"] == 0 for leg in later), "all keys come in the first epoch"
    assert all(leg.rows["keys"] == pytest.approx(found.legs[2].rows["keys"], rel=0.05) for leg in later)


@pytest.mark.prove
def test_a_sample_or_a_beginning_is_within_two_points(tmp_path, monkeypatch):
    workflow = zipf_workflow(tmp_path / "data", 24_000, 30_000, batch_size=256, block_batches=2)
    workflow = workflow.with_settings({"storage.device": "120000 B", "storage.host": "160000 B"})
    _, whole = forecast_of(workflow)
    _, beginning = forecast_of(workflow, max_values=60_000)
    monkeypatch.setattr(hits, "BLOCK_KEYS", 200)
    _, sampled = forecast_of(workflow)
    assert (whole.replayed, whole.sample, sampled.sample) == (1.0, 1, 4)
    assert beginning.replayed < 0.4
    for found in (beginning, sampled):
        assert found.keys == pytest.approx(whole.keys, rel=0.05)
        assert found.total("disk_hits") == pytest.approx(whole.total("disk_hits"), rel=0.15)
        for tier in ("device", "host"):
            assert found.hit_rates[tier] == pytest.approx(whole.hit_rates[tier], abs=0.02)
