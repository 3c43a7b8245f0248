"""`init --daily`: a workflow on the files of a log's days, which the next day extends."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from support.data.drafts import drafted, init

from pipeline.run import main as run

DAY = 86_400
BEGIN = 1_795_478_400
"""The first second of 24 November 2026."""
AS_COLUMN = "{:02}.parquet"
PLACES = {
    "timestamps": (AS_COLUMN, ("at",), lambda at: at.astype("datetime64[s]")),
    "seconds": (AS_COLUMN, ("at",), lambda at: at),
    "a folder": ("day=2026-11-{:02}/part.parquet", ("day",), lambda at: at.astype("datetime64[s]")),
    "three folders": ("year=2026/month=11/day={:02}/part.parquet", ("year", "month", "day"), lambda at: at % 3 + 0.5),
}


def write(place: Path, day: int, times, rows: int = 300) -> Path:
    rng = np.random.default_rng(day)
    user, at = rng.integers(0, 30, rows), BEGIN + DAY * (day - 24) + np.sort(rng.integers(0, DAY, rows))
    columns = {"click": (rng.random(rows) < 0.1 + 0.7 * (user % 2)).astype(np.int8), "user_id": user, "at": times(at)}
    place.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns | {"price": rng.random(rows)}), place)
    return place


@pytest.mark.parametrize("form", PLACES)
def test_a_daily_draft_reads_the_files_and_takes_the_next_day(tmp_path, capsys, form):
    name, time, times = PLACES[form]
    for day in range(24, 27):
        write(tmp_path / "log" / name.format(day), day, times)
    found = drafted(tmp_path, "--daily", source=tmp_path / "log")
    assert "my_data" not in {path.name for path in tmp_path.iterdir()}
    assert (found.data.time.names, found.data.late) == (time, "take")
    assert (found.storage.keep_spans, found.metrics.guard_then, found.schedule.plateau) == (7, "hold", None)
    assert not {*time} & {category.name for category in found.data.categories}
    if form == "a folder":
        argv = [str(tmp_path / "my.py"), "--serial", "--out", str(tmp_path / "run"), "--set", "device=cpu"]
        assert run(argv) == 0
        assert run([*argv, "--extend", str(write(tmp_path / "log" / name.format(27), 27, times))]) == 0
        result = json.loads((tmp_path / "run/result.json").read_bytes())
        assert result["data"]["train"]["spans"] == [f"2026-11-{day}" for day in range(24, 28)]
        assert f"pipeline run {tmp_path}/my.py --extend DATA" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop(["at"]), "--daily needs a time: folders such as day=2026-11-24, or a column of"),
        (lambda table: table.set_column(2, "at", table["at"].cast(pa.string())), "; at cannot be data.time; add one"),
        (None, "--daily trains on the files as they are, so they must be Parquet files"),
    ],
)
def test_a_log_without_a_time_is_refused_for_daily_runs(tmp_path, capsys, change, message):
    place = write(tmp_path / "log/a.parquet", 24, PLACES["timestamps"][2])
    table = pq.read_table(place)
    if change:
        pq.write_table(change(table), place)
    else:
        pa_csv.write_csv(table, tmp_path / "log/a.csv")
        place.unlink()
    assert init([str(tmp_path / "log"), "--daily", "--out", str(tmp_path / "my.py")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "my.py").exists()
