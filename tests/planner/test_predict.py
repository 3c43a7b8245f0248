"""Seconds of a made-up machine, computed by hand: each constant is a round number."""

import math
from dataclasses import replace

import pytest
from support.data.round_costs import MACHINE, WORK

from pipeline.data.agenda import Leg
from pipeline.device.device import RAM
from pipeline.metrics.totals import COUNTS
from pipeline.planner.costs import Basis, exchanging, ram_of_worker, reading, stage_costs
from pipeline.planner.hits import Forecast, LegForecast
from pipeline.planner.output import as_json, lines_of
from pipeline.planner.predict import block_times, predict
from pipeline.planner.timing import Cost
from pipeline.preflight.setup import set_up

MOVES = {"keys": 400, "device_hits": 200, "host_hits": 100, "disk_hits": 60, "new": 40, "device_to_host": 50,
         "device_to_disk": 10, "host_to_disk": 30, "unchanged": 10, "padding": 20}  # fmt: skip


def leg_of(split="train", blocks=10.0, **rows):
    counts = {name: blocks * float((MOVES | rows)[name]) for name in COUNTS}
    return LegForecast(Leg(split, 0), blocks, 2 * blocks, 12 * blocks, counts)


@pytest.fixture
def basis(small_workflow):
    setup, source = set_up(small_workflow().with_settings({"storage.direct": True}), RAM, print)
    source.close()
    legs = (leg_of(), leg_of("validation", 2.0))
    forecast = Forecast(legs, 2, 2000.0, 5000.0, 8192.0, 4096.0, 2, 2, 1.0, 1)
    return Basis(setup, MACHINE, WORK, forecast, dense_bytes=3000)


def changed(basis, path, value):
    return replace(basis, setup=replace(basis.setup, workflow=basis.setup.workflow.with_settings({path: value})))


def test_stage_seconds_are_counts_times_costs(basis):
    costs = stage_costs(basis, leg_of())
    row, sizes = basis.row_bytes, basis.setup.fit.sizes
    assert costs["read"] == Cost(12 * 0.01, 12 * 0.01)
    assert costs["dedup"].seconds == pytest.approx(12 * 5 * 0.001)
    moved = 40 + 100 + 60 + 60 + 30
    scanned = 1e-6 * (sizes.device_rows + sizes.host_rows)
    assert costs["plan"].seconds == pytest.approx(1e-3 * 400 + 2e-3 * moved / 2 + scanned)
    # 60 rows lie 8192 / 60 rows apart: further than the disk streams in the time of a read.
    gap = 8192 * (row + 8) / 60 / 1e6
    from_disk = 60 * (gap * (1 - math.exp(-1e-3 / gap)) + row / 1e6)
    assert costs["prefetch"].seconds == pytest.approx(40 * 0.01 + 100 * row / 1e6 + from_disk)
    assert costs["train"].seconds == pytest.approx(2 * 2.0 + (200 + 60) * row / 1e6)
    written = 10 + 30 - 10 + 20
    chunks = written / sizes.chunk_rows
    assert costs["write_back"].seconds == pytest.approx(60 * row / 1e6 + written * (row + 8) / 1e5 + 2 * chunks * 0.5)
    assert set(costs) == {"read", "dedup", "plan", "prefetch", "train", "write_back"}


def test_foresight_scans_once_the_device_is_nearly_full(basis):
    setup = basis.setup
    foresees = changed(basis, "storage.host_policy", "foresight").setup
    few, many = (replace(basis.forecast, keys=share * setup.fit.sizes.device_rows) for share in (0.8, 0.9))
    assert "scan" not in stage_costs(replace(basis, forecast=many), leg_of())
    assert "scan" not in stage_costs(replace(basis, setup=foresees, forecast=few), leg_of())
    costs = stage_costs(replace(basis, setup=foresees, forecast=many), leg_of())
    assert costs["scan"].cpu_seconds == pytest.approx(0.6 * (12 * 0.01 + 12 * 5 * 0.001))


def test_an_evaluation_scores_and_moves_nothing(basis):
    still = dict.fromkeys(("device_to_host", "device_to_disk", "host_to_disk", "unchanged", "padding"), 0)
    costs = stage_costs(basis, leg_of("validation", **still))
    assert costs["train"].seconds == 2 * 1.0
    assert costs["write_back"].seconds == 0
    assert costs["plan"].seconds == pytest.approx(1e-3 * 400)


def test_what_binds_a_block_is_its_slowest_part(basis):
    costs = stage_costs(basis, leg_of())
    others = 0.25 + sum(cost.cpu_seconds for name, cost in costs.items() if name != "train")
    times = block_times(basis, leg_of())
    assert (times.binds, times.seconds) == ("train", pytest.approx(costs["train"].seconds + 0.5 * others))

    slow_disk = replace(basis, machine=MACHINE.model_copy(update={"disk_read_bytes_per_second": 1e4}))
    times = block_times(slow_disk, leg_of(disk_hits=6000))
    assert (times.binds, times.seconds) == ("prefetch", times.stages["prefetch"].seconds)

    busy = replace(basis, machine=MACHINE.model_copy(update={"cores": 1}), work=replace(WORK, slowdown=0.0))
    times = block_times(busy, leg_of())
    assert (times.binds, times.seconds) == ("cores", pytest.approx(others + costs["train"].cpu_seconds))

    times = block_times(replace(basis, serial=True), leg_of())
    assert times.seconds == pytest.approx(sum(cost.seconds for cost in costs.values()))


def test_the_page_cache_spares_reads_as_far_as_ram_is_left(basis):
    cached = changed(basis, "storage.direct", False)
    assert reading(cached, 60.0) == Cost(60 * 1e-6 / 4, 60 * 1e-6)
    left = (8192 * (basis.row_bytes + 8)) // 4
    ram = int(sum(ram_of_worker(basis).values())) + left
    quarter = replace(cached, machine=MACHINE.model_copy(update={"ram": ram}))
    assert reading(quarter, 60.0).seconds == pytest.approx(0.75 * reading(basis, 60.0).seconds, rel=1e-3)
    assert reading(basis, 0.0) == Cost()


def test_run_seconds_are_the_sum_of_all_phases(basis):
    p = predict(basis)
    train, evaluation = (block_times(basis, leg) for leg in basis.forecast.legs)
    row = basis.row_bytes
    assert p.examples_per_second == pytest.approx(12 / train.seconds)
    assert p.disk_rows_per_second == pytest.approx(60 / train.seconds)
    assert p.commit_bytes == 1000 * (row + 8) + 3000
    chunks = 1000 / basis.setup.fit.sizes.chunk_rows
    assert p.commit_seconds == pytest.approx(1000 * (row + 8) / 1e5 + 2 * chunks * 0.5 + 12 * 0.5)
    stages = {name: cost.seconds for name, cost in train.stages.items()}
    filling = 3 * (stages["read"] + stages["dedup"]) + stages["plan"] + stages["prefetch"] + stages["write_back"]
    blocks = 10 * train.seconds + 2 * evaluation.seconds
    hashing = 5000 * (row / 1e6 + 1e-3 + 1e-6)
    assert p.run_seconds == pytest.approx(7 + blocks + 2 * (p.commit_seconds + filling) + hashing)
    assert p.price == pytest.approx(p.run_seconds / 100)
    assert p.disk_bytes == pytest.approx((8192 + 4096) * (row + 8) + 3 * 3000 + 3000 / 3)


def test_commits_by_time_come_between_the_others(basis):
    often = changed(basis, "commit.every_minutes", 0.1)
    blocks = sum(block_times(basis, leg).seconds * leg.blocks for leg in basis.forecast.legs)
    assert predict(basis).commits == 2
    assert predict(often).commits == 2 + 2 * int(blocks / 2 / 6) > 2


def test_workers_share_cores_and_exchange_gradients(basis):
    two = replace(basis, setup=replace(basis.setup, world=2))
    dense = 3000 / (1 + basis.setup.workflow.optimizer.numbers_a_parameter)
    sent = 2 * (4 * basis.setup.row.num_weights * 10 * 0.5) + 2 * 0.5 * dense
    assert exchanging(two, 2.0).seconds == pytest.approx(2 * (sent / 1e6 + 8 * 1e-3))
    costs = stage_costs(two, leg_of())
    assert costs["unite"].seconds == pytest.approx(2 * 200 * 0.001)
    assert costs["read"].seconds == pytest.approx(6 * 0.01)


def test_words_name_the_stage_that_binds_and_what_does_not_fit(basis):
    lines = lines_of(predict(basis), basis)
    assert [line.partition(" ")[0] for line in lines if line.endswith("<- binds")] == ["train"]
    assert any(line.startswith("price:") and line.endswith("at 36.00 an hour") for line in lines)
    assert "examples)" not in "\n".join(lines)
    small = replace(basis, machine=MACHINE.model_copy(update={"ram": 1 << 20, "price_per_hour": None}))
    stopped = replace(small, forecast=replace(basis.forecast, stopped="the key map would need more", replayed=0.25))
    text = "\n".join(lines_of(predict(stopped), stopped))
    assert "price" not in text
    assert "the run would stop early: the key map would need more" in text
    assert "more RAM than the machine's 1 MiB: lower storage.host or storage.device" in text
    assert "from disk" in text
    assert "(from 25% of the examples)" in text


def test_values_are_json_without_nan(basis):
    legs = (leg_of(keys=0, device_hits=0, host_hits=0, disk_hits=0, new=0),)
    value = as_json(predict(empty := replace(basis, forecast=replace(basis.forecast, legs=legs))), empty)
    assert value["hit_rates"] == {"device": None, "host": None, "disk": None}
    assert value["block"]["binds"] == "train"
    assert value["machine"]["find_seconds"] == 1e-3
    assert value["work"]["slowdown"] == 0.5
    assert len(value["replay"]["legs"]) == 1
