"""Files and rows that `init` samples, which no regular layout hides, and columns that it can read."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data.drafts import drafted, init, write_logs

from pipeline.init.look import look_at_files
from pipeline.prepare.command import sources_of

ROWS = 300


def log(seed=0, **more):
    rng = np.random.default_rng(seed)
    return pa.table({"click": rng.integers(0, 2, ROWS), "user_id": rng.integers(0, 50, ROWS), **more})


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_each_value_of_regular_folders_is_seen(tmp_path, suffix):
    """Every 24th file is of one hour."""
    for day in range(1, 9):
        for hour in range(24):
            table = pa.table({"click": [0, 1], "twin": [hour, hour]})
            write_logs(tmp_path / f"day={day:02}" / f"hour={hour}", suffix, a=table)
    look = look_at_files(sources_of([str(tmp_path)])[0])
    found = {column.name: column.num_different for column in look.columns}
    assert (found["day"], found["hour"], found["twin"]) == (8, 24, 24)


def test_rows_are_drawn_from_row_groups_that_recur(tmp_path, monkeypatch):
    """Every 40th row group is of one slot."""
    slots = np.repeat(np.arange(3961) % 40, 100)
    table = pa.table({"click": np.arange(len(slots)) % 2, "slot": slots})
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=100)
    monkeypatch.setattr("pipeline.init.look.LOOKED_AT_ROWS", 625)
    assert look_at_files(sources_of([str(tmp_path)])[0]).columns[1].num_different > 30


CONFLICTS = {
    "date or time": (pa.array([1] * ROWS, pa.date32()), pa.array([1] * ROWS, pa.timestamp("us"))),
    "zones": (pa.array([1] * ROWS, pa.timestamp("us")), pa.array([1] * ROWS, pa.timestamp("us", "UTC"))),
    "text or number": (pa.array(["a"] * ROWS), pa.array([1] * ROWS)),
    "maps": (
        pa.array([[("a", 1)]] * ROWS, pa.map_(pa.string(), pa.int64())),
        pa.array([[("a", "b")]] * ROWS, pa.map_(pa.string(), pa.string())),
    ),
}


@pytest.mark.parametrize("form", [*CONFLICTS, "objects"])
def test_a_column_of_several_types_is_left_out(tmp_path, capsys, form):
    (data := tmp_path / "data").mkdir()
    if form == "objects":
        values = [{"a": 1}, [1]]
        rows = [row | {"x": values[n % 2]} for n, row in enumerate(log().to_pylist())]
        (data / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        write_logs(data, **{str(number): log(number, x=values) for number, values in enumerate(CONFLICTS[form])})
    order = [str(data), "--out", str(tmp_path / "my.py")]
    assert init([*order, "--as", "x=category"]) == 2
    assert "x=category: " in (said := capsys.readouterr().err)
    assert "'x'" in said
    assert [category.name for category in drafted(tmp_path, source=data).data.categories] == ["user_id"]
    assert "warning: " in (said := capsys.readouterr().out)
    assert " several types" in said
    drafted(tmp_path, "--as", "x=nothing", "--fresh", source=data)
    assert "'x'" not in capsys.readouterr().out


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_column_without_a_role_is_not_read(tmp_path, suffix, capsys):
    """A value other than that of the path, or bytes that are no text, would stop the command."""
    folder = write_logs(tmp_path / "log" / "day=1")
    if suffix == "csv":
        lines = [b"%d,%d,\xff\n" % tuple(row.values()) for row in log().to_pylist()]
        (folder / "a.csv").write_bytes(b"".join([b"click,user_id,x\n", *lines]))
    else:
        write_logs(folder, a=log(day=[2] * ROWS))
    assert init([str(tmp_path / "log"), "--out", str(tmp_path / "my.py")]) == 2
    name = "x" if suffix == "csv" else "day"
    drafted(tmp_path, "--as", f"{name}=nothing", source=tmp_path / "log")
    assert re.search(rf"^{name} +nothing +named by --as$", capsys.readouterr().out, re.MULTILINE)


def test_a_label_of_several_types_is_refused(tmp_path, capsys):
    tables = [log().set_column(0, "click", pa.array(values * (ROWS // 2))) for values in (["0", "1"], [0, 1])]
    write_logs(tmp_path, a=tables[0], b=tables[1])
    assert init([str(tmp_path), "--out", str(tmp_path / "my.py")]) == 2
    assert "column 'click' has type int64, and string in files before it" in capsys.readouterr().err
