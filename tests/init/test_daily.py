"""`init --daily`: a workflow on the files of a log's days, which the next day extends."""

import json
import re

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from support.data.days import write_days
from support.data.drafts import drafted, init

from pipeline.prepare.main import main as prepare
from pipeline.run import main as run

FORMS = {
    "timestamps": ("{}.parquet", ("at",), lambda at: at),
    "seconds": ("{}.parquet", ("at",), lambda at: at.cast(pa.timestamp("s"), safe=False).cast(pa.int64())),
    "a folder": ("day=2026-11-2{}/part.parquet", ("day",), lambda at: at),
    "a table": ("", ("at",), lambda at: at),
    "folders": ("year=2026/month=11/day=2{}/part.parquet", ("year", "month", "day"), lambda at: at.cast(pa.string())),
}
"""Form -> name of a day's file, the columns of its time, and the column `at` of timestamps in this form."""


def write(folder, form, days):
    for day, file in enumerate(write_days(folder / "made", [80] * 4)):
        name, _, made = FORMS[form]
        table, place = (
            pq.read_table(file, columns=["click", "item", "user", "price", "at"]),
            folder / "log" / name.format(day),
        )
        if day in days and not name:
            pytest.importorskip("deltalake").write_deltalake(str(place), table, mode="append")
        elif day in days:
            place.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table.set_column(4, "at", made(table["at"])), place)
    return place


@pytest.mark.parametrize("form", FORMS)
def test_a_daily_draft_reads_the_files_and_takes_the_next_day(tmp_path, form):
    write(tmp_path, form, range(3))
    found = drafted(tmp_path, "--daily", source=tmp_path / "log")
    assert (found.data.time.names, found.data.late, found.metrics.guard_then) == (FORMS[form][1], "take", "hold")
    assert (found.storage.keep_spans, found.schedule.plateau, found.data.validation) == (7, None, ())
    assert {category.name for category in found.data.categories} >= {"item", "user"}
    assert not {*found.data.time.names} & {category.name for category in found.data.categories}
    if form in ("a folder", "a table"):
        argv = [str(tmp_path / "my.py"), "--serial", "--out", str(tmp_path / "run"), "--set", "model.args.hidden=[4]"]
        assert run(argv) == 0
        assert run([*argv, "--known-ok", "--extend", str(write(tmp_path, form, [3]))]) == 0
        result = json.loads((tmp_path / "run/result.json").read_bytes())
        assert (len(result["data"]["train"]["spans"]), result["examples"]) == (4, 320)


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (["click", "item"], "--daily needs a time: folders such as day=2026-11-24, or a column of"),
        (["click", "item", "at"], "; at cannot be data.time; add one"),
    ],
)
def test_a_log_without_a_time_of_days_is_refused(tmp_path, capsys, kept, message):
    place = write(tmp_path, "timestamps", [3])
    table = pq.read_table(place)
    pq.write_table(table.set_column(4, "at", table["at"].cast(pa.string())).select(kept), place)
    assert init([str(tmp_path / "log"), "--daily", "--out", str(tmp_path / "my.py")]) == 2
    assert message in capsys.readouterr().err


def test_text_is_refused_with_a_way_that_works(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pa_csv.write_csv(pq.read_table(write(tmp_path, "timestamps", [3])), "day.csv")
    assert init(["day.csv", "--daily", "--out", "my.py"]) == 2
    (way,) = re.findall("--daily trains on .* by `pipeline prepare (csv .*?)`", capsys.readouterr().err)
    assert init(["day.csv", "--out", "shown.py"]) == 0
    assert prepare(way.replace("DAY", "day.csv").replace("SCHEMA", "shown_schema.json").split()) == 0
    assert drafted(tmp_path, "--daily", source=tmp_path / "days").data.train == ("day=2026-11-24",)
