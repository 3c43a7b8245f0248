"""Traffic of the tiers, summed over blocks."""

import dataclasses
import json
import math

import pytest

from pipeline.metrics.totals import TierTotals
from pipeline.records import Moves

TRAINED = Moves(
    keys=100, device_hits=60, host_hits=20, disk_hits=15, new=5, device_to_host=30, device_to_disk=4, host_to_disk=9,
    padding=3,
)  # fmt: skip
EVALUATED = Moves(keys=50, device_hits=20, host_hits=5, disk_hits=15, new=10, arrives=False)


def report(*moves):
    totals = TierTotals()
    for one in moves:
        totals.add(one)
    return totals.report({"device": 1_000, "host": 2_000}, 224, 555, 9_999)


COUNTED = ("hits", "hit_rate", "rows_in", "rows_out", "bytes", "rows_read")
TIERS = {
    "device": ({"capacity_rows": 1_000}, (120, 0.6, 80, 68, 148 * 224, 0)),
    "host": ({"capacity_rows": 2_000}, (40, 0.5, 60, 58, 118 * 224, 0)),
    "disk": ({"capacity_bytes": 9_999, "used_bytes": 555}, (30, 1.0, 26, 30, 56 * 224, 0)),
}


def test_training_rows_are_counted_per_tier():
    tiers = report(TRAINED, TRAINED)
    assert list(tiers) == [*TIERS]
    for tier, (capacity, counts) in TIERS.items():
        assert tiers[tier] == capacity | dict(zip(COUNTED, counts, strict=True))


def test_a_row_with_a_copy_on_disk_moves_without_a_write():
    totals = TierTotals()
    totals.add(TRAINED)
    assert totals.written == 13
    totals.add(dataclasses.replace(TRAINED, unchanged=6))
    assert totals.written == 13 + 7
    disk = totals.report({"device": 1, "host": 1}, 224, 0, 1)["disk"]
    assert disk["rows_in"] == 26


def test_loaded_totals_keep_every_count_and_share_none():
    before = TierTotals()
    before.add(TRAINED)
    before.add(EVALUATED)
    kept = json.loads(json.dumps(before.counts()))
    after = TierTotals()
    after.load(kept)
    assert after.counts() == before.counts()
    after.add(TRAINED)
    before.add(TRAINED)
    assert after.counts() == before.counts()
    assert kept["trained"]["keys"] == 100


def test_evaluation_moves_no_rows_but_its_lookups_count():
    before, after = report(TRAINED), report(TRAINED, EVALUATED)
    for tier in before:
        for same in ("rows_in", "rows_out", "bytes"):
            assert after[tier][same] == before[tier][same]
    assert [after[tier]["rows_read"] for tier in after] == [20, 5, 15]
    assert [after[tier]["hits"] for tier in after] == [80, 25, 30]
    assert after["device"]["hit_rate"] == pytest.approx(80 / 150)
    assert after["host"]["hit_rate"] == pytest.approx(25 / 70)


def test_no_lookups_give_a_rate_of_nan():
    tiers = report()
    assert all(math.isnan(tier["hit_rate"]) and tier["bytes"] == 0 for tier in tiers.values())
