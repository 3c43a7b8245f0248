"""Space on the disk: bounded by the live rows, never more than the quota, and given back when nobody needs it."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import make_workflow
from support.depth import some
from support.runs.harness import make_driver

from pipeline.commits.manifest import Manifest
from pipeline.driver.committer import Committer
from pipeline.errors import PipelineError
from pipeline.storage.chunks import MIN_GROWTH, max_chunks
from pipeline.storage.files import Files
from pipeline.storage.log import rows_file
from pipeline.storage.shards import Shards
from pipeline.workflow import Category, Commit

SIZES = {"device_rows": 60, "host_rows": 20, "chunk_rows": 4}
SLABS = 20
"""Chunks of all their rows."""


@pytest.fixture(scope="module")
def workflow(tmp_path_factory):
    """600 examples whose keys drift: most rows are never seen again, and some now and then."""
    root, rng = tmp_path_factory.mktemp("space"), np.random.default_rng(0)
    drift = np.arange(600) // 3
    columns = {"click": rng.integers(0, 2, 600).astype(np.int8), "item": drift + rng.zipf(1.5, 600) % 300}
    columns["user"] = drift // 2 + rng.zipf(1.5, 600) % 100
    pq.write_table(pa.table(columns), root / "train-0.parquet", row_group_size=60)
    categories = (Category(name="item"), Category(name="user"))
    workflow = make_workflow(root, categories=categories, shuffle_window=0, batch_size=6, block_batches=1, epochs=2)
    without = {"data.validation": (), "data.test": (), "data.numbers": ()}
    return workflow.with_settings(without | {"commit": Commit(every_blocks=7, keep=2)})


class Weighed(Files):
    """Knows the most bytes that ever lay under the run directory's table, with and without the reserve."""

    def __init__(self, run_dir):
        super().__init__()
        self.run_dir, self.max_chunks, self.max_with_reserve = run_dir, 0, 0

    def write(self, path, buffers):
        checksum = super().write(path, buffers)
        self._weigh()
        return checksum

    def reserve(self, path, num_bytes):
        super().reserve(path, num_bytes)
        self._weigh()

    def _weigh(self):
        self.max_chunks = max(self.max_chunks, len(chunk_files(self.run_dir)))
        files = [file for file in self.run_dir.rglob("*") if file.is_file()]
        self.max_with_reserve = max(self.max_with_reserve, sum(file.stat().st_size for file in files))


def chunk_files(run_dir):
    return set((run_dir / "table.zarr").rglob("rows/c.*"))


def kept(run_dir):
    return [Manifest.of(file) for file in sorted((run_dir / "commits").glob("*.json"))]


@pytest.mark.parametrize(
    ("multiple", "growth", "num_shards"),
    some([(2.0, 1.0, 1), (1.2, 0.1, 1), (2.0, 1.0, 3)], (2.0, 1.0, 3), several=True),
)
def test_the_log_is_bounded_by_the_live_rows_and_kept_commits(
    workflow, tmp_path, monkeypatch, multiple, growth, num_shards
):
    workflow = workflow.with_settings({"storage.log_multiple": multiple, "storage.log_growth": growth})
    shards = Shards.all(num_shards)
    driver = make_driver(workflow, tmp_path, shards=shards, **SIZES)
    places, commit, seen = driver.crew.worker.tiers.places, Committer.commit, []

    def checked(self, *args, **named):
        assert places.chunks.growth <= places.chunks.allowance, "more was written than was allowed until this commit"
        num_before = places.chunks.num
        given_up = commit(self, *args, **named)
        maximum = max_chunks(80, 4, num_shards) + places.chunks.allowance + MIN_GROWTH * num_shards
        assert places.chunks.num - num_before <= maximum
        manifests = kept(tmp_path)
        for m in manifests:
            assert len(m.chunks) * m.chunk_rows <= multiple * m.live_rows + num_shards * m.chunk_rows
        table = tmp_path / "table.zarr"
        assert chunk_files(tmp_path) == {rows_file(table, c.number, num_shards) for m in manifests for c in m.chunks}
        assert len(manifests) <= 2
        seen.append(len(chunk_files(tmp_path)))
        return given_up

    monkeypatch.setattr(Committer, "commit", checked)
    result = driver.run()
    assert len(seen) > 25
    assert result["disk"]["rows_merged"] > 0
    assert places.chunks.num > 2 * max(seen), "nothing was ever deleted: this shows too little"


@pytest.mark.prove
@pytest.mark.parametrize(("num_shards", "quota"), some([(1, 75), (3, 110)], (3, 110), several=True))
def test_the_quota_is_kept_and_a_run_that_it_stopped_can_go_on(workflow, tmp_path, monkeypatch, num_shards, quota):
    """Room for one commit of all rows, but not next to two older ones: those are given up before the run stops."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    files, commit, given_up = Weighed(run_dir), Committer.commit, []

    def seen(self, *args, **named):
        before = len(kept(run_dir))
        of_spans = commit(self, *args, **named)
        given_up.append((named["give_up"], before, len(kept(run_dir))))
        return of_spans

    monkeypatch.setattr(Committer, "commit", seen)
    shards = Shards.all(num_shards)
    driver = make_driver(workflow, run_dir, files=files, shards=shards, disk_chunks=quota, **SIZES)
    with pytest.raises(PipelineError) as caught:
        driver.run()
    said = str(caught.value)
    assert "the disk, with its reserve for a whole commit, would need " in said
    assert f"and has {quota}; raise storage.disk from 1 GiB to at least " in said
    assert re.search(r"\ncommit .*: the same command with a larger storage.disk resumes from there$", said), said
    assert [entry[0] for entry in given_up][-2:] == [True, True]
    assert (True, 2, 1) in given_up
    assert len(kept(run_dir)) == 1
    assert json.loads((run_dir / "result.json").read_text())["stopped"]
    assert files.max_chunks <= quota
    chunk_bytes = driver.crew.worker.tiers.log.chunk_bytes
    small = 1 << 17
    assert files.max_with_reserve <= quota * chunk_bytes + small

    result = make_driver(workflow, run_dir, shards=shards, **SIZES).run()
    (tmp_path / "other").mkdir()
    assert result["fingerprint"] == make_driver(workflow, tmp_path / "other", **SIZES).run()["fingerprint"]
    assert result["stopped"] is None


def test_a_run_that_fits_a_small_quota_reaches_its_end(workflow, tmp_path):
    """Twice the live rows, the slabs and what may grow: older commits are in the way, and given up."""
    driver = make_driver(workflow, tmp_path, disk_chunks=2 * 600 // 4 + SLABS + 2 * MIN_GROWTH, **SIZES)
    assert driver.run()["stopped"] is None
