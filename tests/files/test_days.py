"""A log in folders of days, from `init` to scores: the days divide the rows, are features, and stay in the output."""

import json
import random
import re

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from support.data.drafts import init

from pipeline.run import main as run
from pipeline.serving.score import main as score
from pipeline.workflow import load


def write_days(root, suffix, days=10, rows=300):
    """A log whose label depends on user and site; the site is in the path alone."""
    draw = random.Random(1)
    for day in range(1, days + 1):
        for site in (7, 12):
            users = [draw.randrange(40) for _ in range(rows)]
            clicks = [int(draw.random() < 0.1 + 0.4 * (user % 2) + 0.4 * (site == 7)) for user in users]
            path = root / f"day=2026-11-{day:02}" / f"site={site}" / f"part-0{suffix}"
            path.parent.mkdir(parents=True)
            table = pa.table({"click": clicks, "user_id": users})
            (pa_csv.write_csv if suffix == ".csv" else pq.write_table)(table, path)
            (path.parent / "_SUCCESS").touch()


@pytest.mark.parametrize("named", ["log", "log/*/*/*.csv"])
def test_init_divides_text_by_folders_of_days(tmp_path, monkeypatch, capsys, named):
    """Its own `prepare` takes the --split that it writes, whose patterns have `=` in them."""
    monkeypatch.chdir(tmp_path)
    write_days(tmp_path / "log", ".csv", rows=20)
    assert init([named, "--out", "w.py"]) == 0
    out = capsys.readouterr().out
    assert "by the time in the paths of the files, by whole days: validation from 2026-11-07" in out
    splits = {name: ds.dataset(tmp_path / "w_data" / name).to_table() for name in ("train", "validation", "test")}
    days = {name: sorted(set(map(str, table.column("day").to_pylist()))) for name, table in splits.items()}
    assert sum(table.num_rows for table in splits.values()) == 400
    assert days["train"][0] == "2026-11-01"
    assert days["train"] <= days["validation"] <= days["test"]
    assert days["test"] in (["2026-11-10"], ["2026-11-09", "2026-11-10"])
    assert set(splits["train"].column("site").cast(pa.int64()).to_pylist()) == {7, 12}


@pytest.mark.prove
@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_log_of_days_is_trained_and_scored_with_its_days(tmp_path, monkeypatch, capsys, suffix):
    monkeypatch.chdir(tmp_path)
    write_days(tmp_path / "log", suffix)
    assert init(["log", "--out", "w.py"]) == 0
    data = load(tmp_path / "w.py").data
    assert "site" in {category.name for category in data.categories} | {f.reads[0] for f in data.features}
    assert run(["w.py", "--serial", "--run-dir", "r", "--set", "device=cpu"]) == 0
    assert json.loads((tmp_path / "r/result.json").read_bytes())["auc"] > 0.8
    if suffix == ".parquet":
        assert score(["r", "log/day=2026-11-10", "--out", "s", "--keep", "site", "day"]) == 0
        assert score(["r", "log/day=2026-11-10/*/*", "--out", "t", "--keep", "site", "day"]) == 0
        scored = [sorted((tmp_path / out).rglob("*.parquet")) for out in "st"]
        assert [[str(file.relative_to(tmp_path / "s")) for file in scored[0]]] == [
            ["site=12/part-0.parquet", "site=7/part-0.parquet"]
        ]
        for one, other in zip(*scored, strict=True):
            assert one.read_bytes() == other.read_bytes()
            table = pq.read_table(one, partitioning=None)
            assert set(table.column("site").to_pylist()) == {int(re.search(r"site=(\d+)", str(one))[1])}
            assert set(table.column("day").to_pylist()) == {"2026-11-10"}
