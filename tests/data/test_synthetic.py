"""Synthetic data: made once, the same for any number of threads, learnable."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from pipeline.data import synthetic
from pipeline.workflow import Category, Data, Synthetic

SMALL = Synthetic(
    train_examples=3000, validation_examples=500, test_examples=2000, keys_per_field=(50, 1000, 7), num_numbers=2
)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(synthetic, "GROUP_EXAMPLES", 400)
    monkeypatch.setattr(synthetic, "PART_EXAMPLES", 1200)


def data_of(root, planted=SMALL):
    categories = tuple(Category(name=f"c{f}") for f in range(3))
    return Data(root=root, train=("train",), labels=("click",), categories=categories, synthetic=planted)


def test_files_are_the_same_for_any_number_of_threads(tmp_path):
    for threads in (1, 3):
        synthetic.generate(SMALL, tmp_path / str(threads), threads=threads)
    for split, rows in (("train", 3000), ("validation", 500), ("test", 2000)):
        one, three = (pq.read_table(tmp_path / t / split) for t in ("1", "3"))
        assert one.equals(three)
        assert one.num_rows == rows
    assert pq.ParquetFile(tmp_path / "1/train/part-00000.parquet").num_row_groups == 3


def test_columns_are_those_of_the_workflow(tmp_path):
    synthetic.ensure(data_of(tmp_path))
    table = pq.read_table(tmp_path / "train")
    assert table.schema.names == ["click", "i0", "i1", "c0", "c1", "c2"]
    assert [str(t) for t in table.schema.types] == ["int8", "float", "float", "int64", "int64", "int64"]
    for name, size in (("c0", 50), ("c1", 1000), ("c2", 7)):
        assert 0 <= min(table[name].to_pylist()) <= max(table[name].to_pylist()) < size
    assert 0.2 < np.mean(table["click"].to_pylist()) < 0.3


def test_data_is_made_once(tmp_path):
    done = synthetic.ensure(data_of(tmp_path))
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    assert synthetic.ensure(data_of(tmp_path)) == done == tmp_path / "synthetic.json"
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before
    assert not list(tmp_path.rglob("*.partial"))


def test_processes_that_begin_at_once_make_the_data_once(tmp_path, monkeypatch):
    """Threads, which hold a lock each, as processes do."""
    begin, made, make_part = threading.Barrier(4), [], synthetic._make_part
    monkeypatch.setattr(synthetic, "_make_part", lambda *part: (made.append(part[3:5]), make_part(*part))[1])

    def make(_):
        begin.wait()
        return synthetic.generate(SMALL, tmp_path / "data", threads=2)

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(make, range(4)))
    assert {*done} == {tmp_path / "data/synthetic.json"}
    assert len(made) == len({*made}) == 6
    alone = synthetic.generate(SMALL, tmp_path / "alone")
    assert done[0].read_bytes() == alone.read_bytes()
    for split in ("train", "validation", "test"):
        assert pq.read_table(tmp_path / "data" / split).equals(pq.read_table(tmp_path / "alone" / split))
    assert not list(tmp_path.rglob("*.partial"))


def test_other_parameters_for_existing_data_are_refused(tmp_path):
    synthetic.ensure(data_of(tmp_path))
    other = SMALL.model_copy(update={"zipf": 0.5})
    with pytest.raises(ValueError, match=r"zipf is 1.05 there and 0.5 here; choose another data.root, or delete"):
        synthetic.ensure(data_of(tmp_path, other))


def test_generation_resumes_and_refuses_foreign_files(tmp_path):
    done = synthetic.ensure(data_of(tmp_path / "a"))
    begun = json.loads(done.read_text())
    done.rename(tmp_path / "a/synthetic.begun.json")
    (tmp_path / "a/train/part-00000.parquet.0123.partial").write_bytes(b"half")
    synthetic.ensure(data_of(tmp_path / "a"))
    assert not list(tmp_path.rglob("*.partial"))
    assert json.loads(done.read_text()) == begun
    (tmp_path / "b/train").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"b/train exists, but no synthetic.json"):
        synthetic.ensure(data_of(tmp_path / "b"))
    (tmp_path / "c").mkdir()
    (tmp_path / "c/.synthetic.lock").symlink_to(tmp_path / "private")
    with pytest.raises(ValueError, match=r"c/.synthetic.lock is a symbolic link"):
        synthetic.ensure(data_of(tmp_path / "c"))


def test_the_planted_auc_is_that_of_the_true_probability(tmp_path):
    done = synthetic.generate(SMALL, tmp_path)
    table = pq.read_table(tmp_path / "test")
    keys = [table[f"c{f}"].to_numpy() for f in range(3)]
    logits = synthetic.raw_logits(SMALL, keys, [table[f"i{x}"].to_numpy() for x in range(2)])
    auc = json.loads(done.read_text())["planted_auc"]
    assert auc == pytest.approx(roc_auc_score(table["label"].to_numpy(), logits), abs=1e-4)
    assert auc > 0.7


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 1.05, 2.0])
def test_keys_follow_the_power_law(exponent):
    keys = synthetic.draw_keys(np.random.default_rng(0), 200_000, 100, exponent)
    edges = np.arange(1.0, 102.0)
    mass = np.log(edges) if exponent == 1 else edges ** (1 - exponent) / (1 - exponent)
    expected = np.diff(mass) / (mass[-1] - mass[0])
    np.testing.assert_allclose(np.bincount(keys, minlength=100) / len(keys), expected, atol=4e-3)


def test_a_workflow_without_synthetic_data_makes_no_file(tmp_path):
    assert synthetic.ensure(data_of(tmp_path, None)) is None
    assert list(tmp_path.iterdir()) == []
