"""Rows that other programs write are trained, scored and predicted: each once, with its nulls and keys."""

import random
import subprocess
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.api import train
from pipeline.init.main import main as init_main
from pipeline.serving.score import main as score_main
from pipeline.workflow import load

PROJECT = Path(__file__).parents[2]
PYTHON = PROJECT / ".writers/bin/python"
ROWS = 20_000
DAILY, WEEKLY = ("polars", "duckdb", "clickhouse"), ("daft", "datafusion", "pandas", "fastparquet", "deltalake")
WRITERS = [*DAILY, *(pytest.param(name, marks=pytest.mark.prove(weekly=True)) for name in WEEKLY)]
"""`make prove` runs the daily ones."""
KEYS = ("user", "large", "city", "site")
TYPES = {
    "click": pa.int8(), "user": pa.int64(), "large": pa.int64(), "city": pa.string(), "price": pa.float64(),
    "seen": pa.timestamp("us"), "site": pa.string(), "day": pa.date32(),
}  # fmt: skip
pytestmark = [
    pytest.mark.prove(every=True),
    pytest.mark.skipif(
        not (PROJECT / ".writers/done").exists(), reason="the programs are not installed: make test-writers"
    ),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    draw, begin = random.Random(1), datetime(2026, 11, 1)
    seen = [begin + timedelta(seconds=43 * n) for n in range(ROWS)]
    made = {
        "click": [int(draw.random() < 0.2 + 0.3 * (n % 3 == 0)) for n in range(ROWS)],
        "user": [draw.randrange(500) if n % 10 else None for n in range(ROWS)],
        "large": [draw.randrange(50) + (1 << 62) for _ in range(ROWS)],
        "city": [f"é {draw.randrange(40)}" if n % 7 else None for n in range(ROWS)],
        "price": [round(draw.random(), 3) if n % 9 else None for n in range(ROWS)],
        "seen": seen,
        "site": [f"s{draw.randrange(4)}" if n % 5 else None for n in range(ROWS)],
        "day": [time.date() for time in seen],
    }
    path = tmp_path_factory.mktemp("source") / "source.parquet"
    pq.write_table(pa.table(made, schema=pa.schema([*TYPES.items()])), path)
    return path


@pytest.mark.parametrize("writer", WRITERS)
def test_rows_of_other_programs_are_all_trained_and_scored(writer, source, tmp_path):
    command = [PYTHON, Path(__file__).parent / "write.py", writer, source, tmp_path / "log"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    expected = {name: Counter(pq.read_table(source)[name].to_pylist()) for name in KEYS}
    roles = [word for name in KEYS for word in ("--as", f"{name}=category")]
    for layout in ("one", "day", "site"):
        file, run_dir = tmp_path / f"{layout}.py", tmp_path / f"run_{layout}"
        assert (
            init_main([str(tmp_path / "log" / layout), "--label", "click", *roles, "--no-try", "--out", str(file)]) == 0
        )
        workflow = load(file).with_settings(
            {"schedule.epochs": 1, "model.args": {"hidden": (4,)}, "model.embedding_dim": 4}
        )
        with train(workflow, run_dir, serial=True, verbose=False):
            pass
        seen = {name: Counter() for name in KEYS}
        for split in ("train", "validation", "test"):
            files = [str(workflow.data.root / one) for one in getattr(workflow.data, split)]
            out = tmp_path / f"scored_{layout}_{split}"
            assert score_main([str(run_dir), *files, "--out", str(out), "--keep", *KEYS]) == 0
            for name, counts in seen.items():
                counts.update(pq.read_table(out, columns=[name], partitioning=None)[name].to_pylist())
        assert seen == expected, layout
    frame = pa.ipc.open_file(tmp_path / "log" / "frame.arrow").read_all()
    with pipeline.open_run(run_dir) as run:
        assert run.predict(frame).num_rows == ROWS
